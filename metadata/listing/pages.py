"""Pages of a list in the portal: cut by page number, because it is sorted by more than the
name.
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
MOST_SEARCH = 200  # characters


@dataclass(frozen=True, slots=True)
class ListQuery:
    """Part of a list that is wanted; `sort` is a column's key, with `-` in front for the
    largest first.
    """

    search: str = ""
    sort: str = ""
    page: int = 1
    rows: int = PAGE_ROWS


@dataclass(frozen=True, slots=True)
class ListPage(Generic[V]):
    """One page of a list; `total` counts all rows that fit the search."""

    items: tuple[V, ...]
    total: int
    page: int
    pages: int

    def map(self, show: Callable[[V], W]) -> ListPage[W]:
        return ListPage(tuple(map(show, self.items)), self.total, self.page, self.pages)


@dataclass(frozen=True, slots=True)
class ListLayout:
    """Search and sort of one list: fields that are searched, column key → field, the
    default sort.

    `figures` are sums over other tables, by name: only one that is sorted by is made for
    all rows.
    """

    search_in: tuple[str, ...]
    sorts: Mapping[str, str]
    default: str
    figures: Mapping[str, Any] = field(default_factory=dict)


def select_page(rows: QuerySet[M], *, wanted: ListQuery, manner: ListLayout) -> ListPage[M]:
    """A page of rows, in three queries.

    What is sorted is ids alone: whole rows can be long, and sums over other tables cost
    something for each.
    """
    if wanted.search:
        rows = _searched(rows, wanted.search[:MOST_SEARCH], manner)
    with reachable():
        total = rows.count()
        pages = max(1, -(-total // wanted.rows))
        page = min(max(1, wanted.page), pages)
        first = (page - 1) * wanted.rows
        ids = list(_sorted(rows, wanted.sort, manner)[first : first + wanted.rows])
        found = rows.annotate(**manner.figures).in_bulk(ids)
    return ListPage(tuple(found[one] for one in ids if one in found), total, page, pages)


def page_of(items: Sequence[V], *, wanted: ListQuery) -> ListPage[V]:
    """One page of a list that is there as a whole.

    >>> (page_of("abcde", wanted=ListQuery(page=2, rows=2)).items,
    ...  page_of("abcde", wanted=ListQuery(page=9, rows=2)).items) (('c', 'd'), ('e',))
    """
    pages = max(1, -(-len(items) // wanted.rows))
    page = min(max(1, wanted.page), pages)
    first = (page - 1) * wanted.rows
    return ListPage(tuple(items[first : first + wanted.rows]), len(items), page, pages)


def _searched(rows: QuerySet[M], text: str, manner: ListLayout) -> QuerySet[M]:
    """Rows in which a field contains the text, whatever its case: on MySQL names compare
    byte by byte.
    """
    lowered = {
        f"lower_{number}": Lower(field) for number, field in enumerate(manner.search_in)
    }
    fits = [Q(**{f"{alias}__contains": text.lower()}) for alias in lowered]
    fits += [Q(**{f"{field}__icontains": text}) for field in manner.search_in]
    found: QuerySet[M] = rows.alias(**lowered).filter(reduce(or_, fits))
    return found


def _sorted(rows: QuerySet[M], sort: str, manner: ListLayout) -> Any:
    """The ids, in order. Rows without a value come last either way; ids settle ties: pages
    do not overlap.

    Both engines put what has no value first when they count up.
    """
    known = sort if sort.removeprefix("-") in manner.sorts else manner.default
    name = manner.sorts[known.removeprefix("-")]
    if name in manner.figures:
        rows = rows.annotate(**{name: manner.figures[name]})
    order: OrderBy = (
        F(name).desc() if known.startswith("-") else F(name).asc(nulls_last=True)
    )
    return rows.order_by(order, "pk").values_list("pk", flat=True)
