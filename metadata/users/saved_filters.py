"""Saved filters: searches on pages of the portal that a user stored under a name. Users see
only their own filters.
"""

from __future__ import annotations

from msgspec import Struct

from metadata.actors import Actor
from metadata.db import audit
from metadata.db.transactions import reachable, transactional
from metadata.errors import Forbidden, Invalid, NotFound
from metadata.models import SavedFilter
from metadata.rules.audit_verbs import Verb
from metadata.rules.rights import ActorKind

MAX_FILTERS = 30  # of a user and page
MAX_NAME_CHARS = 60
MAX_QUERY_CHARS = 2_000


class FilterView(Struct, frozen=True):
    """A saved filter. `query` is the query string of its URL."""

    name: str
    query: str


def list_filters(*, page: str, actor: Actor) -> list[FilterView]:
    """Return the actor's filters of a page, by name. Raises MetadataUnavailable."""
    with reachable():
        rows = SavedFilter.objects.filter(user=actor.name, page=page).order_by("name")
        return [FilterView(*row) for row in rows.values_list("name", "query")[:MAX_FILTERS]]


@transactional
def save(*, page: str, name: str, query: str, actor: Actor) -> None:
    """Save a filter of a page. Replaces a filter with the same name. Raises Invalid, and
    Forbidden if the actor is no user.
    """
    _require_user(actor)
    if not 1 <= len(name) <= MAX_NAME_CHARS or not name.isprintable():
        raise Invalid.field(
            "name",
            f"a filter's name has 1 to {MAX_NAME_CHARS} characters that can be printed",
        )
    if not 1 <= len(query) <= MAX_QUERY_CHARS:
        raise Invalid.field("query", f"a filter has 1 to {MAX_QUERY_CHARS} characters")
    filters = SavedFilter.objects.filter(user=actor.name, page=page)
    before = filters.filter(name=name).values("query").first()
    # Two tabs at once may exceed the limit by a few. It only bounds the menu of the page.
    if before is None and filters.count() >= MAX_FILTERS:
        raise Invalid.field(
            "name",
            f"a page has at most {MAX_FILTERS} saved filters; delete one of them first",
        )
    filters.update_or_create(
        name=name, defaults={"user": actor.name, "page": page, "query": query}
    )
    after = {"query": query}
    audit.record(
        actor=actor,
        verb=Verb.SAVE,
        kind="filter",
        name=f"{page}/{name}",
        before=before,
        after=after,
    )


@transactional
def delete(*, page: str, name: str, actor: Actor) -> None:
    """Delete a filter of the actor. Raises NotFound."""
    _require_user(actor)
    rows = SavedFilter.objects.filter(user=actor.name, page=page, name=name)
    before = rows.values("query").first()
    if before is None:
        raise NotFound(f"{actor.name} has no saved filter {name} of page {page}.")
    rows.delete()
    audit.record(
        actor=actor, verb=Verb.DELETE, kind="filter", name=f"{page}/{name}", before=before
    )


def _require_user(actor: Actor) -> None:
    if actor.kind != ActorKind.USER:
        raise Forbidden(f"{actor.kind} {actor.name} has no pages, so it saves no filters.")
