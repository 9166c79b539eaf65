"""Finding messages: the latest of a topic, those from an offset on, one by its id, or by
what they carry.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from django.http import HttpRequest
from django.utils.translation import gettext as _

from messagestore.engine.messages import StoredMessage, Wanted, parse_message_id
from messagestore.inspect import browse, search
from messagestore.inspect.browse import Browsed
from messagestore.inspect.search import Times
from messagestore.topology import topics
from messagestore.topology.topics import QueueState
from metadata.actors import Actor
from metadata.config import config
from metadata.db.clock import database_now, ms
from metadata.errors import Invalid
from portal.kit import outages
from portal.views.messages import query

FIELDS = (
    "topic", "q", "queue", "offset", "key", "tag", "trace_id", "header", "contains", "minutes",
    "since",
    "until", "message_id", "after", "seen",
)  # fmt: skip
FILTER_FIELDS = (
    "key",
    "tag",
    "trace_id",
    "header",
    "contains",
    "minutes",
    "since",
    "until",
)
TAIL_MS = 60_000  # a live tail that filters looks through what was sent in this time
MAX_COLLECTED_BYTES = 16 << 20
MAX_COLLECTING_S = 10.0  # after which a collection begins no further step
MAX_NUMBER = 1 << 62

Query = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class FoundMessages:
    """Messages, of how many that were looked at; `following`: words of the URL that lead to
    the next part.

    `masked`: headers and bodies are left out, as the person may not read them. `away`:
    nodes that did not answer, whose messages are missing.
    """

    messages: Sequence[StoredMessage]
    scanned: int
    total: int
    following: Mapping[str, str] = field(default_factory=dict)
    masked: bool = False
    away: str = ""


def fields(request: HttpRequest) -> dict[str, str]:
    """Return what the URL asks for, '' for what it does not name."""
    return {name: request.GET.get(name, "").replace("\0", "").strip() for name in FIELDS}


def is_filtered(asked: Query) -> bool:
    """Return True if messages are looked for by what they carry. Raises Invalid."""
    words = {**asked, **query.parse_query(asked["q"])}
    return any(words[name] for name in FILTER_FIELDS)


def find(asked: Query, *, limit: int, actor: Actor) -> FoundMessages:
    """Return at most `limit` messages that the fields and the query box ask for.

    Raises NotFound, Invalid, Forbidden, and what nodes that do not answer raise.
    """
    asked = {**asked, **query.parse_query(asked["q"])}
    topic = asked["topic"]
    if asked["message_id"]:
        one = browse.by_id(topic=topic, message_id=asked["message_id"], actor=actor)
        return FoundMessages(one.messages, 1, 1, masked=one.masked)
    if any(asked[name] for name in FILTER_FIELDS):
        return _searched(asked, limit=limit, actor=actor)
    if asked["queue"]:
        return _browsed(asked, limit=limit, actor=actor)
    return _latest(
        topic, topics.describe(name=topic, actor=actor).queues, limit=limit, actor=actor
    )


def tail(asked: Query, *, limit: int, actor: Actor) -> FoundMessages:
    """Return the latest messages, the youngest first: of one queue or of all, or of those
    of the last minute that carry what is asked for."""
    asked = {**asked, **query.parse_query(asked["q"])}
    topic = asked["topic"]
    if any(asked[name] for name in FILTER_FIELDS):
        since = {**asked, "minutes": "", "since": "", "until": "", "after": ""}
        found = _searched(
            since, limit=limit, actor=actor, from_ms=ms(database_now()) - TAIL_MS
        )
        return replace(found, messages=_youngest_first(found.messages))
    queues: Sequence[QueueState] = topics.describe(name=topic, actor=actor).queues
    number = _number(asked, "queue")
    if number is not None:
        # NotFound, if it is none
        browse.by_offset(topic=topic, queue=number, offset=0, limit=1, actor=actor)
        queues = [one for one in queues if one.queue.queue == number]
    return _latest(topic, queues, limit=limit, actor=actor)


def collect(asked: Query, *, most: int, actor: Actor) -> FoundMessages:
    """Return up to `most` messages, in steps: fewer if they are heavy or take long to be
    found.

    `following` holds where it would go on. Raises what `find` raises.
    """
    ends_at = time.monotonic() + MAX_COLLECTING_S
    found = find(asked, limit=min(most, config.max_pull_messages), actor=actor)
    messages, weight = [*found.messages], _weight(found)
    while found.following and len(messages) < most and weight < MAX_COLLECTED_BYTES:
        if time.monotonic() > ends_at:
            break
        room = min(most - len(messages), config.max_pull_messages)
        found = find({**asked, **found.following}, limit=room, actor=actor)
        messages += found.messages
        weight += _weight(found)
    return replace(found, messages=messages)


def _weight(found: FoundMessages) -> int:
    return sum(len(one.body) for one in found.messages)


def _number(asked: Query, name: str) -> int | None:
    word = asked[name]
    if not word:
        return None
    if not (word.isascii() and word.isdigit()) or int(word[:20]) > MAX_NUMBER:
        raise Invalid.field(name, _("must be a whole number"))
    return int(word)


def _searched(
    asked: Query, *, limit: int, actor: Actor, from_ms: int | None = None
) -> FoundMessages:
    minutes, seen = _number(asked, "minutes"), asked["seen"]
    part = asked["contains"].encode() if asked["contains"] else None
    if from_ms is None:
        from_ms = _moment(asked, "since") if minutes is None else _ago(minutes)
    found = search.search(
        topic=asked["topic"],
        wanted=Wanted(
            asked["key"] or None,
            asked["tag"] or None,
            asked["trace_id"] or None,
            part,
            query.parse_header(asked["header"]),
        ),
        times=Times(from_ms=from_ms, to_ms=_moment(asked, "until")),
        queue=_number(asked, "queue"),
        limit=limit,
        after=asked["after"] or None,
        actor=actor,
    )
    before = (
        int(seen)
        if asked["after"] and seen.isascii() and seen.isdigit() and len(seen) < 19
        else 0
    )
    scanned = before + found.scanned
    following = {"after": found.next, "seen": str(scanned)} if found.next else {}
    total = max(_held(topics.describe(name=asked["topic"], actor=actor).queues), scanned)
    return FoundMessages(found.messages, scanned, total, following, found.masked)


def _held(queues: Sequence[QueueState]) -> int:
    return sum((one.head or 0) - (one.low or 0) for one in queues)


def _moment(asked: Query, name: str) -> int | None:
    """Return a date and time in UTC as ms since 1970."""
    if not asked[name]:
        return None
    try:
        return round(
            datetime.fromisoformat(asked[name]).replace(tzinfo=UTC).timestamp() * 1000
        )
    except ValueError:
        raise Invalid.field(
            name, _("must be a date and time such as 2026-11-24T09:30")
        ) from None


def _ago(minutes: int) -> int:
    """Ms since 1970, by the clock of the database."""
    return max(0, ms(database_now()) - minutes * 60_000)


def _browsed(asked: Query, *, limit: int, actor: Actor) -> FoundMessages:
    queue, offset = _number(asked, "queue") or 0, _number(asked, "offset") or 0
    if asked["after"]:
        _queue, offset = parse_message_id(asked["after"])
    found = browse.by_offset(
        topic=asked["topic"], queue=queue, offset=offset, limit=limit, actor=actor
    )
    following = {"after": f"{queue}-{found.next}"} if found.next is not None else {}
    return FoundMessages(
        found.messages, len(found.messages), len(found.messages), following, found.masked
    )


def _latest(
    topic: str, queues: Sequence[QueueState], *, limit: int, actor: Actor
) -> FoundMessages:
    """The latest messages of every queue, the youngest first."""
    holding = [one for one in queues if one.head]
    each = max(1, limit // max(1, len(holding)))
    found: list[Browsed] = [
        browse.by_offset(
            topic=topic,
            queue=one.queue.queue,
            offset=max(one.low or 0, (one.head or 0) - each),
            limit=each,
            actor=actor,
        )
        for one in holding[:limit]
    ]
    messages = _youngest_first([one for part in found for one in part.messages])
    masked = any(part.masked for part in found)
    return FoundMessages(
        messages,
        len(messages),
        _held(queues),
        {},
        masked,
        outages.silent_nodes_of_topic(queues),
    )


def _youngest_first(found: Sequence[StoredMessage]) -> list[StoredMessage]:
    return sorted(found, key=lambda row: (-row.stored_at_ms, row.queue, -row.offset))
