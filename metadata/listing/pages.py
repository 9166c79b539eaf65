"""Pages of lists in the portal, by page number, because these lists can be sorted by any
column. (Lists of the API are sorted by name: metadata/db/paging.py.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any, Generic, TypeVar

from django.db.models import F, Model, Q, QuerySet
from django.db.models.expressions import OrderBy
from django.db.models.functions import Lower

from metadata.db.transactions import reachable

M = TypeVar("M", bound=Model)
V = TypeVar("V")
W = TypeVar("W")
PAGE_ROWS = 50
MAX_SEARCH_CHARS = 200


@dataclass(frozen=True, slots=True)
class ListQuery:
    """A requested page of a list. `sort` is the key of a column, with `-` in front for
    descending order.
    """

    search: str = ""
    sort: str = ""
    page: int = 1
    rows: int = PAGE_ROWS


@dataclass(frozen=True, slots=True)
class ListPage(Generic[V]):
    """A page of a list. `total` is the number of all rows that match the search."""

    items: tuple[V, ...]
    total: int
    page: int
    pages: int

    def map(self, show: Callable[[V], W]) -> ListPage[W]:
        return ListPage(tuple(map(show, self.items)), self.total, self.page, self.pages)


@dataclass(frozen=True, slots=True)
class ListLayout:
    """How a list is searched and sorted: the fields that a search looks in, the field of
    each column key, and the default sort.

    `figures` are aggregates over other tables, by name. They are computed for the rows of
    the page only, except the figure by which the list is sorted.
    """

    search_in: tuple[str, ...]
    sorts: Mapping[str, str]
    default: str
    figures: Mapping[str, Any] = field(default_factory=dict)


def select_page(rows: QuerySet[M], *, query: ListQuery, layout: ListLayout) -> ListPage[M]:
    """Return a page of rows, with three queries.

    An unknown sort key is replaced by the default. Rows without a value come last.
    """
    if text := query.search[:MAX_SEARCH_CHARS]:
        # Names have a binary collation on MySQL, so `icontains` alone would not ignore case.
        lowered = {
            f"lower_{number}": Lower(field) for number, field in enumerate(layout.search_in)
        }
        matches = [Q(**{f"{alias}__contains": text.lower()}) for alias in lowered]
        matches += [Q(**{f"{field}__icontains": text}) for field in layout.search_in]
        rows = rows.alias(**lowered).filter(reduce(or_, matches))
    key = query.sort if query.sort.removeprefix("-") in layout.sorts else layout.default
    column = layout.sorts[key.removeprefix("-")]
    # Only ids are sorted, because rows can be long, and each aggregate over other tables
    # costs time for every row.
    ordered: QuerySet[M] = rows
    if column in layout.figures:
        ordered = rows.annotate(**{column: layout.figures[column]})
    # By default both engines put rows without a value first in ascending order.
    order: OrderBy = (
        F(column).desc() if key.startswith("-") else F(column).asc(nulls_last=True)
    )
    # Equal values are sorted by id, so that pages do not overlap.
    sorted_ids = ordered.order_by(order, "pk").values_list("pk", flat=True)
    with reachable():
        total = rows.count()
        pages = max(1, -(-total // query.rows))
        page = min(max(1, query.page), pages)
        first = (page - 1) * query.rows
        ids = list(sorted_ids[first : first + query.rows])
        by_id = rows.annotate(**layout.figures).in_bulk(ids)
    # A row may have been deleted between the two queries.
    return ListPage(tuple(by_id[id] for id in ids if id in by_id), total, page, pages)


def page_of(items: Sequence[V], *, query: ListQuery) -> ListPage[V]:
    """Return a page of a list that is complete in memory.

    >>> page_of("abcde", query=ListQuery(page=2, rows=2)).items
    ('c', 'd')
    >>> page_of("abcde", query=ListQuery(page=9, rows=2)).items
    ('e',)
    """
    pages = max(1, -(-len(items) // query.rows))
    page = min(max(1, query.page), pages)
    first = (page - 1) * query.rows
    return ListPage(tuple(items[first : first + query.rows]), len(items), page, pages)
