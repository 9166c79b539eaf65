"""Saved filters: the searches of pages that a user named, to come back to. Each sees only
their own.
"""

from __future__ import annotations

from dataclasses import dataclass

from metadata.actors import Actor
from metadata.db import audit
from metadata.db.transactions import reachable, transactional
from metadata.errors import Forbidden, Invalid, NotFound
from metadata.models import SavedFilter

MOST = 30  # of a user on one page
MOST_NAME = 60  # characters
MOST_QUERY = 2_000


@dataclass(frozen=True, slots=True)
class FilterView:
    """A saved filter; `query` is what stands behind the ? of its URL."""

    name: str
    query: str


def list_filters(*, page: str, actor: Actor) -> list[FilterView]:
    """Return what the actor saved of a page, by name. Raises MetadataUnavailable."""
    with reachable():
        rows = SavedFilter.objects.filter(user=actor.name, page=page).order_by("name")
        return [FilterView(*row) for row in rows.values_list("name", "query")[:MOST]]


@transactional
def save(*, page: str, name: str, query: str, actor: Actor) -> None:
    """Save a filter of a page; one of that name is replaced. Raises Invalid, and Forbidden
    for programs.
    """
    _require_user(actor)
    if not 1 <= len(name) <= MOST_NAME or not name.isprintable():
        raise Invalid.field(
            "name", f"a filter's name has 1 to {MOST_NAME} characters that can be printed"
        )
    if not 1 <= len(query) <= MOST_QUERY:
        raise Invalid.field("query", f"a filter has 1 to {MOST_QUERY} characters")
    mine = SavedFilter.objects.filter(user=actor.name, page=page)
    before = mine.filter(name=name).values("query").first()
    if before is None and mine.count() >= MOST:
        raise Invalid.field(
            "name", f"a page has at most {MOST} saved filters; delete one of them first"
        )
    mine.update_or_create(
        name=name, defaults={"user": actor.name, "page": page, "query": query}
    )
    after = {"query": query}
    audit.record(
        actor=actor,
        verb="save",
        kind="filter",
        name=f"{page}/{name}",
        before=before,
        after=after,
    )


@transactional
def delete(*, page: str, name: str, actor: Actor) -> None:
    """Delete a filter of the actor's. Raises NotFound."""
    _require_user(actor)
    found = SavedFilter.objects.filter(user=actor.name, page=page, name=name)
    before = found.values("query").first()
    if before is None:
        raise NotFound(f"{actor.name} has no saved filter {name} of page {page}.")
    found.delete()
    audit.record(
        actor=actor, verb="delete", kind="filter", name=f"{page}/{name}", before=before
    )


def _require_user(actor: Actor) -> None:
    if actor.kind != "user":
        raise Forbidden(f"{actor.kind} {actor.name} has no pages, so it saves no filters.")
