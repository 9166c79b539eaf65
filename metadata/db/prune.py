"""Deletes old rows in small steps, so that no statement locks or logs more than a few hundred of them."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet

MOST_TRIMMED = 20_000  # rows in one pass
AT_ONCE = 500  # rows in one statement


def delete(rows: QuerySet[Any], *, limit: int = MOST_TRIMMED) -> int:
    """Deletes up to `limit` of some rows, in their order; how many went, without those that went with them.

    A row that is not among them any more when its turn comes stays.
    """
    model = rows.model._meta.label
    ids = list(rows.values_list("pk", flat=True)[:limit])
    count = 0
    for first in range(0, len(ids), AT_ONCE):
        _, gone = rows.filter(pk__in=ids[first : first + AT_ONCE]).delete()
        count += gone.get(model, 0)
    return count
