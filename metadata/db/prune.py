"""Deletes old rows in small steps, so that no statement locks or logs more than a few
hundred of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.db.models import Count, QuerySet

from metadata.db.clock import before, database_now
from metadata.db.transactions import reachable
from metadata.grouping import chunks

MOST = 500_000  # rows in one pass
READ = 20_000  # keys in one read
AT_ONCE = 500  # rows in one statement


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class PruneRule:
    """Rows that are kept for `days`, by their time `at`; a call deletes up to `limit` older
    ones, the oldest first, and returns their number. With `each`, only the latest
    `most_each` rows of a value are kept at all.
    """

    rows: QuerySet[Any]
    at: str
    days: float
    each: str = ""
    most_each: int = 0

    def __call__(self, *, days: float | None = None, limit: int = MOST) -> int:
        with reachable():
            since = before(
                database_now(), seconds=(self.days if days is None else days) * 86_400
            )
            count = delete_rows(
                self.rows.filter(**{f"{self.at}__lt": since}).order_by(self.at, "pk"),
                limit=limit,
            )
            for rows in self._surplus() if self.each else ():
                count += delete_rows(rows, limit=limit - count)
        return count

    def _surplus(self) -> Iterator[QuerySet[Any]]:
        """Yield the rows beyond the latest `most_each` of each value that has more."""
        sizes = self.rows.order_by().values(self.each).annotate(size=Count("pk"))
        for one in sizes.filter(size__gt=self.most_each).values_list(self.each, flat=True):
            rows = self.rows.filter(**{self.each: one}).order_by("pk")
            for latest in rows.reverse().values_list("pk", flat=True)[
                self.most_each : self.most_each + 1
            ]:
                yield rows.filter(pk__lte=latest)


def delete_rows(rows: QuerySet[Any], *, limit: int) -> int:
    """Delete up to `limit` of some rows, in their order; return how many went, without
    those that went with them. A row that is not among them any more when its turn comes
    stays."""
    model = rows.model._meta.label
    seen = count = 0
    while seen < limit:
        ids = list(rows.values_list("pk", flat=True)[: min(READ, limit - seen)])
        for some in chunks(ids, AT_ONCE):
            _, gone = rows.filter(pk__in=some).delete()
            count += gone.get(model, 0)
        if len(ids) < READ:
            break
        seen += len(ids)
    return count
