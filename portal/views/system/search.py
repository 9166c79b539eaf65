"""The search over everything: pages, topics, groups, messages and actions, for the palette
and as a page.

Words that begin an action's name choose actions, such as "pause bil"; the others are parts
of names. A message is found by its id, or by `key:` with the name of its topic. Names come
from the snapshot in memory, so a key stroke costs no query.
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
from portal.actions import pickers
from portal.auth.access import actor, may
from portal.kit import pages
from portal.kit.pages import SECTIONS, page_url
from portal.kit.tables import Text

MAX_PER_KIND = 8  # of each kind
MAX_QUERY_LENGTH = 200  # characters
MESSAGE_ID = re.compile(r"([0-9]{1,18})-([0-9]{1,18})", re.ASCII)
FOR_ADMINISTRATORS = ("nodes", "keys", "users", "pipeline", "reports", "checks", "settings")
Kind = str  # topic or group


@dataclass(frozen=True, slots=True)
class SearchResult:
    """A result: `kind` says in words of which sort it is."""

    kind: Text
    label: Text
    href: str


@dataclass(frozen=True, slots=True)
class NamedAction:
    """An action on a topic or group: the English word for it, its label, its page, and the
    right it needs.
    """

    english_word: str
    label: Text
    page: str
    right: str = "manage"


NAMED_ACTIONS: Mapping[Kind, Sequence[NamedAction]] = {
    "topic": (
        NamedAction("messages", lazy("Messages"), "messages", ""),
        NamedAction("send", lazy("Send"), "send", "produce"),
        NamedAction("expand", lazy("Expand"), "topic-expand"),
        NamedAction("shrink", lazy("Shrink"), "topic-shrink"),
        NamedAction("settings", lazy("Settings"), "topic-settings"),
        NamedAction("tokens", lazy("Send tokens"), "topic-tokens"),
        NamedAction("delayed", lazy("Delayed"), "delayed", ""),
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
CREATE_PAGES: Sequence[tuple[Text, str, str]] = (  # label, page, right
    (lazy("Create a topic"), "topic-create", "manage"),
    (lazy("Create a group"), "group-create", "manage"),
    (lazy("Create a user"), "user-create", "admin"),
    (lazy("Create a key"), "key-create", "admin"),
    (lazy("Register a node"), "node-register", "admin"),
    (lazy("Create a report"), "report-make", "admin"),
)


def search(request: HttpRequest) -> HttpResponse:
    """The page; the palette shows its list of results."""
    check_look(actor(request))
    query = request.GET.get("q", "").replace("\0", "").strip()[:MAX_QUERY_LENGTH]
    return pages.render_page(
        request,
        "system/search",
        _("Search"),
        query=query,
        found=list(_found(request, query)) if query else [],
    )


def names(request: HttpRequest, kind: str) -> HttpResponse:
    """Return names of topics or groups as options, by what is typed in the field that
    `?field=` names.
    """
    check_look(actor(request))
    if kind not in NAMED_ACTIONS:
        raise Http404
    typed = request.GET.get(request.GET.get("field", ""), "")[:MAX_QUERY_LENGTH]
    return HttpResponse(pickers.name_options(kind, typed))


def _found(request: HttpRequest, query: str) -> Iterator[SearchResult]:
    yield from _message(query)
    words = query.lower().split()
    yield from _keyed(words, query)
    parts = [one for one in words if ":" not in one]
    verbs = {
        one
        for one in parts
        if any(_begins(one, deed) for kind in NAMED_ACTIONS.values() for deed in kind)
    }
    plain = _named(parts)
    yield from (
        SearchResult(_kind(kind), name, page_url(kind, name)) for kind, name in plain
    )
    if verbs:
        chosen = _named([one for one in parts if one not in verbs])
        yield from _deeds(request, chosen, verbs)
    elif plain:
        yield from _deeds(request, plain[:1], set())
    yield from _pages(request, parts)


def _message(query: str) -> Iterator[SearchResult]:
    """Yield the message of an id."""
    matched = MESSAGE_ID.fullmatch(query)
    known = snapshot.current()
    queue = known.queues.get(int(matched[1])) if matched else None
    topic = known.topics.get(queue.topic_id) if queue else None
    if topic is not None:
        yield SearchResult(
            _("Message"), f"{topic.name} {query}", page_url("message", topic.name, query)
        )


def _keyed(words: Sequence[str], query: str) -> Iterator[SearchResult]:
    """Yield searches for messages with a key, in the topics that are named beside it."""
    key = next((one[4:] for one in query.split() if one.lower().startswith("key:")), "")
    if not key:
        return
    for kind, topic in _named([one for one in words if ":" not in one]):
        if kind == "topic":
            label = _("%(topic)s, key %(key)s") % {"topic": topic, "key": key}
            yield SearchResult(
                _("Messages"),
                label,
                f"{page_url('messages')}?{urlencode({'topic': topic, 'key': key})}",
            )


def _kind(kind: Kind) -> Text:
    return _("Topic") if kind == "topic" else _("Group")


def _named(parts: Sequence[str]) -> list[tuple[Kind, str]]:
    """Return the first topics and groups whose names hold all parts, those that begin with
    them first.
    """
    return [
        (kind, name)
        for kind in NAMED_ACTIONS
        for name in pickers.best_matches(
            pickers.names_of_kind(kind), parts, limit=MAX_PER_KIND
        )
    ]


def _begins(part: str, deed: NamedAction) -> bool:
    return deed.english_word.startswith(part) or str(deed.label).lower().startswith(part)


def _deeds(
    request: HttpRequest, named: Sequence[tuple[Kind, str]], verbs: set[str]
) -> Iterator[SearchResult]:
    """Yield the actions that the words choose, all without any, that the person may do on
    what is named.
    """
    for kind, name in named:
        for deed in NAMED_ACTIONS[kind]:
            if verbs and not any(_begins(one, deed) for one in verbs):
                continue
            if deed.right and not may(request, deed.right, name, what=kind):
                continue
            href = (
                f"{page_url('messages')}?{urlencode({'topic': name})}"
                if deed.page == "messages"
                else page_url(deed.page, name)
            )
            yield SearchResult(_("Action"), f"{deed.label}: {name}", href)


def _pages(request: HttpRequest, parts: Sequence[str]) -> Iterator[SearchResult]:
    """Yield pages of the navigation and what makes something new, by words of their labels."""
    admin = may(request, "admin")
    for section, (label, page) in SECTIONS.items():
        if _says(label, parts) and (admin or section not in FOR_ADMINISTRATORS):
            yield SearchResult(_("Page"), label, page_url(page))
    for label, page, right in CREATE_PAGES:
        if _says(label, parts) and (
            admin or (right == "manage" and actor(request).rights.get("manage"))
        ):
            yield SearchResult(_("Action"), label, page_url(page))


def _says(label: Text, parts: Sequence[str]) -> bool:
    return bool(parts) and all(one in str(label).lower() for one in parts)
