"""The base of all shapes."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

# Ids, offsets, epochs and generations: what fits a signed BIGINT.
Id = Annotated[int, Meta(ge=0, le=2**63 - 1)]
ShortText = Annotated[str, Meta(max_length=200)]


class Request(Struct, forbid_unknown_fields=True, kw_only=True):
    """Base of all requests."""


class Answer(Struct, kw_only=True):
    """Base of all answers."""
