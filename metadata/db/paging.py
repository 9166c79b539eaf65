"""The one way to page through a list: by name, after a name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from django.db.models import Model, QuerySet

from metadata.actors import Actor
from metadata.db.access import may, may_see
from metadata.db.transactions import reachable
from metadata.errors import Invalid

M = TypeVar("M", bound=Model)
V = TypeVar("V")
MAX_LIMIT = 1000


@dataclass(frozen=True, slots=True)
class Page(Generic[V]):
    """Some items in order of name; `next` is the name to ask after, None on the last page."""

    items: tuple[V, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class Window:
    """Part of a list that is wanted: names that contain `search`, at most `limit`, behind
    `after`.
    """

    search: str = ""
    limit: int = 100
    after: str = ""


def select_page(
    rows: QuerySet[M], *, window: Window, actor: Actor, right: str | None = None
) -> tuple[list[M], str | None]:
    """The rows of a window on which the actor has `right` (None: any), and the name to go
    on after.
    """
    if not 1 <= window.limit <= MAX_LIMIT:
        raise Invalid.field("limit", f"must be 1 to {MAX_LIMIT}")
    if window.search:
        rows = rows.filter(name__icontains=window.search)
    found: list[M] = []
    after = window.after
    with reachable():
        while True:
            chunk = list(rows.filter(name__gt=after).order_by("name")[: window.limit + 1])
            found += [row for row in chunk if _shown(actor, right, _name(row))]
            if len(found) > window.limit:
                return found[: window.limit], _name(found[window.limit - 1])
            if len(chunk) <= window.limit:
                return found, None
            after = _name(chunk[-1])


def _shown(actor: Actor, right: str | None, name: str) -> bool:
    return may_see(actor, name) if right is None else may(actor, right, name)


def _name(row: Any) -> str:
    return str(row.name)
