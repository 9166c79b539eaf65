"""Pages of API lists. A list is sorted by name, and a page begins after a name."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from django.db.models import Model, QuerySet
from msgspec import Struct

from metadata.actors import Actor
from metadata.db.access import may, may_see
from metadata.db.transactions import reachable
from metadata.errors import Invalid
from metadata.rules.rights import Right

M = TypeVar("M", bound=Model)
V = TypeVar("V")
MAX_LIMIT = 1000


@dataclass(frozen=True, slots=True)
class Page(Generic[V]):
    """Items in order of name. `next` is the name after which the next page begins, None on
    the last page.
    """

    items: tuple[V, ...]
    next: str | None


class Window(Struct, frozen=True):
    """A requested page: at most `limit` names that contain `search`, beginning after the
    name `after`.
    """

    search: str = ""
    limit: int = 100
    after: str = ""


def select_page(
    rows: QuerySet[M], *, window: Window, actor: Actor, right: Right | None = None
) -> tuple[list[M], str | None]:
    """Return the rows of a window on which the actor has `right` (None: any right), and the
    name after which the next page begins.
    """
    if not 1 <= window.limit <= MAX_LIMIT:
        raise Invalid.field("limit", f"must be 1 to {MAX_LIMIT}")
    if window.search:
        rows = rows.filter(name__icontains=window.search)
    is_visible = partial(may_see, actor) if right is None else partial(may, actor, right)
    visible: list[M] = []
    after = window.after
    with reachable():
        while True:
            chunk = list(rows.filter(name__gt=after).order_by("name")[: window.limit + 1])
            # Rights are patterns, which SQL cannot match, so rows are read until enough of
            # them are visible.
            visible += [row for row in chunk if is_visible(_name(row))]
            if len(visible) > window.limit:
                return visible[: window.limit], _name(visible[window.limit - 1])
            if len(chunk) <= window.limit:
                return visible, None
            after = _name(chunk[-1])


def _name(row: Any) -> str:
    return str(row.name)
