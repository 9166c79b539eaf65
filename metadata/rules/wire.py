"""Field types of views that are answers of the HTTP API as they are.

Such a view is a msgspec struct. Its docstring and the descriptions of its fields are texts of
the OpenAPI schema; a field without a description gets that of its name (brokerapi.descriptions).
`rename` has the names of fields that are keywords of Python.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

MAX_BIGINT = 2**63 - 1
# What fits a BIGINT column.
Number = Annotated[int, Meta(ge=0, le=MAX_BIGINT, extra_json_schema={"format": "int64"})]
