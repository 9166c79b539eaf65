"""What an error of the metadata database is taken for."""

from __future__ import annotations

import pytest
from django.db import OperationalError

from metadata.db.transactions import reachable


@pytest.mark.parametrize(
    "error",
    [
        OperationalError(1054, "Unknown column 'x'"),
        OperationalError("no such table: metadata_topic"),
    ],
)
def test_a_missing_column_or_table_is_no_outage(error: OperationalError) -> None:
    with pytest.raises(OperationalError), reachable():
        raise error
