"""Search over everything: pages, topics, groups, messages and actions.

It is shown in the palette and as a page. Words that begin the name of an action choose
actions, as in "pause bil". The other words are parts of names. A message is found by its
id, or by `key:` with its topic. Names come from the snapshot in memory, so typing causes no
queries.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from metadata.cache import snapshot
from metadata.listing.topic_lists import check_look
from metadata.rules.rights import Right
from portal.actions import pickers
from portal.auth.access import actor, may
from portal.kit import pages
from portal.kit.pages import SECTIONS, page_url
from portal.kit.tables import Text

# Topics or groups in a result.
MAX_PER_KIND = 8
# Characters of a query. The rest is ignored.
MAX_QUERY_LENGTH = 200
MESSAGE_ID = re.compile(r"([0-9]{1,18})-([0-9]{1,18})", re.ASCII)
FOR_ADMINISTRATORS = ("nodes", "keys", "users", "pipeline", "reports", "checks", "settings")
Kind = str  # topic or group


@dataclass(frozen=True, slots=True)
class SearchResult:
    """A result. `kind` is its kind in words."""

    kind: Text
    label: Text
    href: str


@dataclass(frozen=True, slots=True)
class NamedAction:
    """An action on a topic or group.

    `english_word` finds it in every language. `page` is its URL name, `right` the right it
    needs.
    """

    english_word: str
    label: Text
    page: str
    right: Right | None = Right.MANAGE


NAMED_ACTIONS: Mapping[Kind, Sequence[NamedAction]] = {
    "topic": (
        NamedAction("messages", lazy("Messages"), "messages", None),
        NamedAction("send", lazy("Send"), "send", Right.PRODUCE),
        NamedAction("expand", lazy("Expand"), "topic-expand"),
        NamedAction("shrink", lazy("Shrink"), "topic-shrink"),
        NamedAction("settings", lazy("Settings"), "topic-settings"),
        NamedAction("tokens", lazy("Send tokens"), "topic-tokens"),
        NamedAction("delayed", lazy("Delayed"), "delayed", None),
        NamedAction("clean", lazy("Clean now"), "topic-clean"),
        NamedAction("delete", lazy("Delete"), "topic-delete"),
    ),
    "group": (
        NamedAction("pause", lazy("Pause"), "group-stop"),
        NamedAction("resume", lazy("Resume"), "group-start"),
        NamedAction("reset", lazy("Reset offsets"), "group-reset"),
        NamedAction("redrive", lazy("Redrive"), "redrive"),
        NamedAction("failures", lazy("Retries and dead letters"), "failures"),
        NamedAction("settings", lazy("Settings"), "group-settings"),
        NamedAction("subscribe", lazy("Subscribe"), "subscribe"),
        NamedAction("rebalance", lazy("Rebalance"), "group-rebalance"),
        NamedAction("delete", lazy("Delete"), "group-delete"),
    ),
}
# (label, URL name, right) of pages that create something.
CREATE_PAGES: Sequence[tuple[Text, str, str]] = (
    (lazy("Create a topic"), "topic-create", Right.MANAGE),
    (lazy("Create a group"), "group-create", Right.MANAGE),
    (lazy("Create a user"), "user-create", Right.ADMIN),
    (lazy("Create a key"), "key-create", Right.ADMIN),
    (lazy("Register a node"), "node-register", Right.ADMIN),
    (lazy("Create a report"), "report-make", Right.ADMIN),
)


def search(request: HttpRequest) -> HttpResponse:
    """Show the results. The palette takes its results from this page."""
    # Every name is visible to users who may look at all.
    check_look(actor(request))
    query = request.GET.get("q", "").replace("\0", "").strip()[:MAX_QUERY_LENGTH]
    return pages.render_page(
        request,
        "system/search",
        _("Search"),
        query=query,
        results=list(_find_results(request, query)) if query else [],
    )


def names(request: HttpRequest, kind: str) -> HttpResponse:
    """Return names of topics or groups as <option> elements.

    `?field=` is the name of the form field whose text they must contain.
    """
    check_look(actor(request))
    if kind not in NAMED_ACTIONS:
        raise Http404
    typed = request.GET.get(request.GET.get("field", ""), "")[:MAX_QUERY_LENGTH]
    return HttpResponse(pickers.name_options(kind, typed))


def _find_results(request: HttpRequest, query: str) -> Iterator[SearchResult]:
    """Yield the results of a query: messages, topics and groups, actions, pages."""
    yield from _find_message(query)
    query_words = query.lower().split()
    yield from _find_keys(query_words, query)
    # Words with a colon are fields such as `key:`.
    parts = [word for word in query_words if ":" not in word]
    # A word that begins the name of an action chooses actions.
    action_words = {
        word
        for word in parts
        if any(
            _matches_action(word, action)
            for actions in NAMED_ACTIONS.values()
            for action in actions
        )
    }
    named_objects = _find_names(parts)
    yield from (
        SearchResult(
            _("Topic") if kind == "topic" else _("Group"), name, page_url(kind, name)
        )
        for kind, name in named_objects
    )
    if action_words:
        chosen_objects = _find_names([word for word in parts if word not in action_words])
        yield from _find_actions(request, chosen_objects, action_words)
    # Without an action, the actions of the best match are offered.
    elif named_objects:
        yield from _find_actions(request, named_objects[:1], set())
    yield from _find_pages(request, parts)


def _find_message(query: str) -> Iterator[SearchResult]:
    """Yield the message with this id."""
    match = MESSAGE_ID.fullmatch(query)
    cluster = snapshot.current()
    queue = cluster.queues.get(int(match[1])) if match else None
    topic = cluster.topics.get(queue.topic_id) if queue else None
    if topic is not None:
        yield SearchResult(
            _("Message"), f"{topic.name} {query}", page_url("message", topic.name, query)
        )


def _find_keys(query_words: Sequence[str], query: str) -> Iterator[SearchResult]:
    """Yield searches for a key in the topics that are named as well."""
    key = next((word[4:] for word in query.split() if word.lower().startswith("key:")), "")
    if not key:
        return
    for kind, topic in _find_names([word for word in query_words if ":" not in word]):
        if kind == "topic":
            label = _("%(topic)s, key %(key)s") % {"topic": topic, "key": key}
            yield SearchResult(
                _("Messages"),
                label,
                f"{page_url('messages')}?{urlencode({'topic': topic, 'key': key})}",
            )


def _find_names(parts: Sequence[str]) -> list[tuple[Kind, str]]:
    """Return the first topics and groups whose names contain all parts."""
    return [
        (kind, name)
        for kind in NAMED_ACTIONS
        for name in pickers.best_matches(
            pickers.names_of_kind(kind), parts, limit=MAX_PER_KIND
        )
    ]


def _matches_action(word: str, action: NamedAction) -> bool:
    return action.english_word.startswith(word) or str(action.label).lower().startswith(
        word
    )


def _find_actions(
    request: HttpRequest, objects: Sequence[tuple[Kind, str]], action_words: set[str]
) -> Iterator[SearchResult]:
    """Yield the actions that the words choose, for objects on which the user may do them.

    Without words, yield all actions.
    """
    for kind, name in objects:
        for action in NAMED_ACTIONS[kind]:
            if action_words and not any(
                _matches_action(word, action) for word in action_words
            ):
                continue
            if action.right and not may(request, action.right, name, what=kind):
                continue
            href = (
                f"{page_url('messages')}?{urlencode({'topic': name})}"
                if action.page == "messages"
                else page_url(action.page, name)
            )
            yield SearchResult(_("Action"), f"{action.label}: {name}", href)


def _find_pages(request: HttpRequest, parts: Sequence[str]) -> Iterator[SearchResult]:
    """Yield pages of the navigation, and pages that create something, by their labels."""
    is_admin = may(request, Right.ADMIN)
    for section, (label, page) in SECTIONS.items():
        if _label_contains(label, parts) and (
            is_admin or section not in FOR_ADMINISTRATORS
        ):
            yield SearchResult(_("Page"), label, page_url(page))
    for label, page, right in CREATE_PAGES:
        if _label_contains(label, parts) and (
            is_admin or (right == Right.MANAGE and actor(request).rights.get(Right.MANAGE))
        ):
            yield SearchResult(_("Action"), label, page_url(page))


def _label_contains(label: Text, parts: Sequence[str]) -> bool:
    return bool(parts) and all(word in str(label).lower() for word in parts)
