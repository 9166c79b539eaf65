"""Deletion of old rows in small steps, so that no statement locks or logs more than a few
hundred of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db.models import Count, QuerySet

from metadata.db.clock import before, database_now
from metadata.db.transactions import reachable
from metadata.grouping import chunks

MAX_ROWS = 500_000  # per pass
READ = 20_000  # keys per read
AT_ONCE = 500  # rows per statement


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class PruneRule:
    """Rows are kept for `days`, counted from their column `at`. With `each`, at most the
    latest `most_each` rows of each value of that column are kept.

    A call deletes up to `limit` rows, oldest first, and returns their number.
    """

    rows: QuerySet[Any]
    at: str
    days: float
    each: str = ""
    most_each: int = 0

    def __call__(self, *, days: float | None = None, limit: int = MAX_ROWS) -> int:
        with reachable():
            since = before(
                database_now(), seconds=(self.days if days is None else days) * 86_400
            )
            count = delete_rows(
                self.rows.filter(**{f"{self.at}__lt": since}).order_by(self.at, "pk"),
                limit=limit,
            )
            if not self.each:
                return count
            # Then the rows beyond the latest `most_each` of each value that has more.
            sizes = self.rows.order_by().values(self.each).annotate(size=Count("pk"))
            oversized = sizes.filter(size__gt=self.most_each)
            for value in oversized.values_list(self.each, flat=True):
                rows = self.rows.filter(**{self.each: value}).order_by("pk")
                newest_first = rows.reverse().values_list("pk", flat=True)
                # At most a single row: the newest that is deleted.
                for pk in newest_first[self.most_each : self.most_each + 1]:
                    count += delete_rows(rows.filter(pk__lte=pk), limit=limit - count)
        return count


def delete_rows(rows: QuerySet[Any], *, limit: int) -> int:
    """Delete up to `limit` rows, in the order of the query set. Return their number, without
    rows of other tables that were deleted with them.
    """
    model = rows.model._meta.label
    read = count = 0
    while read < limit:
        ids = list(rows.values_list("pk", flat=True)[: min(READ, limit - read)])
        for some_ids in chunks(ids, AT_ONCE):
            # Filtered again: a row that was changed since the read may be needed now.
            _, deleted = rows.filter(pk__in=some_ids).delete()
            count += deleted.get(model, 0)
        if len(ids) < READ:
            break
        read += len(ids)
    return count
