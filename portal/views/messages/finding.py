"""Finding messages: the latest of a topic, from an offset on, by id, or by their content."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from django.http import HttpRequest
from django.utils.translation import gettext as _

from messagestore.engine.messages import MessageSearch, StoredMessage, parse_message_id
from messagestore.inspect import browse, search
from messagestore.inspect.browse import MessagePage
from messagestore.inspect.search import SearchedBy, TimeRange
from messagestore.topology import topics
from messagestore.topology.topics import QueueBounds
from metadata.actors import Actor
from metadata.config import config
from metadata.db.clock import database_now, ms
from metadata.errors import Invalid
from portal.kit import outages
from portal.views.messages import query as query_box

FIELDS = (
    "topic", "q", "queue", "offset", "key", "tag", "trace_id", "header", "contains", "minutes",
    "since",
    "until", "message_id", "after", "seen",
)  # fmt: skip
# Fields that filter messages by their content or time.
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
# A live tail with a filter searches the messages of this time.
TAIL_MS = 60_000
# A collection of heavier messages ends early, because it is held in memory.
MAX_COLLECTED_BYTES = 16 << 20
# A collection begins no further step after this time.
MAX_COLLECTING_S = 10.0
# Larger numbers would not fit into a BIGINT of the database.
MAX_NUMBER = 1 << 62

Query = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class FoundMessages:
    """Messages, and how many were scanned for them.

    `next_parameters` are URL parameters that continue the search. `masked`: headers and
    bodies are left out, because the user may not read them. `silent_nodes` did not answer,
    so their messages are missing. `searched_by`: see SearchResult.by.
    """

    messages: Sequence[StoredMessage]
    scanned: int
    total: int
    next_parameters: Mapping[str, str] = field(default_factory=dict)
    masked: bool = False
    silent_nodes: str = ""
    searched_by: SearchedBy = SearchedBy.RANGE


def fields(request: HttpRequest) -> dict[str, str]:
    """Return the fields of the search from the URL, '' for missing fields."""
    return {name: request.GET.get(name, "").replace("\0", "").strip() for name in FIELDS}


def is_filtered(query: Query) -> bool:
    """Return True if the query filters messages by content or time. Raises Invalid."""
    all_fields = {**query, **query_box.parse_query(query["q"])}
    return any(all_fields[name] for name in FILTER_FIELDS)


def find(query: Query, *, limit: int, actor: Actor) -> FoundMessages:
    """Return at most `limit` messages that match the query.

    Raises NotFound, Invalid, Forbidden, and the errors of nodes that do not answer.
    """
    query = {**query, **query_box.parse_query(query["q"])}
    topic = query["topic"]
    # An id is unique, so all other fields are ignored.
    if query["message_id"]:
        browsed = browse.read_message(
            topic=topic, message_id=query["message_id"], actor=actor
        )
        return FoundMessages(browsed.messages, 1, 1, masked=browsed.masked)
    # A filter needs a scan. Otherwise the messages are read by offset.
    if any(query[name] for name in FILTER_FIELDS):
        return _search(query, limit=limit, actor=actor)
    if query["queue"]:
        queue, offset = (
            _parse_number(query, "queue") or 0,
            _parse_number(query, "offset") or 0,
        )
        # `after` is the id of the next message to read.
        if query["after"]:
            _queue, offset = parse_message_id(query["after"])
        page = browse.read_page(
            topic=query["topic"], queue=queue, offset=offset, limit=limit, actor=actor
        )
        next_parameters = {"after": f"{queue}-{page.next}"} if page.next is not None else {}
        return FoundMessages(
            page.messages,
            len(page.messages),
            len(page.messages),
            next_parameters,
            page.masked,
        )
    return _read_latest(
        topic, topics.describe(name=topic, actor=actor).queues, limit=limit, actor=actor
    )


def tail(query: Query, *, limit: int, actor: Actor) -> FoundMessages:
    """Return the latest messages, youngest first.

    Of a single queue or all queues. With a filter, only the messages of the last minute are
    searched.
    """
    query = {**query, **query_box.parse_query(query["q"])}
    topic = query["topic"]
    if any(query[name] for name in FILTER_FIELDS):
        # The tail has its own time range and always starts at the end.
        unbounded_query = {**query, "minutes": "", "since": "", "until": "", "after": ""}
        recent = _search(
            unbounded_query, limit=limit, actor=actor, from_ms=ms(database_now()) - TAIL_MS
        )
        return replace(recent, messages=_youngest_first(recent.messages))
    queues: Sequence[QueueBounds] = topics.describe(name=topic, actor=actor).queues
    queue_id = _parse_number(query, "queue")
    if queue_id is not None:
        # Raises NotFound if the topic has no such queue.
        browse.read_page(topic=topic, queue=queue_id, offset=0, limit=1, actor=actor)
        queues = [queue for queue in queues if queue.queue.queue == queue_id]
    return _read_latest(topic, queues, limit=limit, actor=actor)


def collect(query: Query, *, limit: int, actor: Actor) -> FoundMessages:
    """Return up to `limit` messages, found in steps. There are fewer if they are large or
    take long to find.

    `next_parameters` continue the search. Raises the errors of `find`.
    """
    deadline = time.monotonic() + MAX_COLLECTING_S
    batch = find(query, limit=min(limit, config.max_pull_messages), actor=actor)
    messages, size = [*batch.messages], _body_bytes(batch)
    # The limits on size and time protect the memory of the server and the patience of the
    # browser.
    while batch.next_parameters and len(messages) < limit and size < MAX_COLLECTED_BYTES:
        if time.monotonic() > deadline:
            break
        batch_limit = min(limit - len(messages), config.max_pull_messages)
        batch = find({**query, **batch.next_parameters}, limit=batch_limit, actor=actor)
        messages += batch.messages
        size += _body_bytes(batch)
    return replace(batch, messages=messages)


def _body_bytes(batch: FoundMessages) -> int:
    return sum(len(message.body) for message in batch.messages)


def _parse_number(query: Query, name: str) -> int | None:
    text = query[name]
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or int(text[:20]) > MAX_NUMBER:
        raise Invalid.field(name, _("must be a whole number"))
    return int(text)


def _search(
    query: Query, *, limit: int, actor: Actor, from_ms: int | None = None
) -> FoundMessages:
    minutes, scanned_text = _parse_number(query, "minutes"), query["seen"]
    body_part = query["contains"].encode() if query["contains"] else None
    if from_ms is None:
        # By the clock of the database, which stamped the messages.
        from_ms = (
            _parse_time(query, "since")
            if minutes is None
            else max(0, ms(database_now()) - minutes * 60_000)
        )
    page = search.search_messages(
        topic=query["topic"],
        wanted=MessageSearch(
            query["key"] or None,
            query["tag"] or None,
            query["trace_id"] or None,
            body_part,
            query_box.parse_header(query["header"]),
        ),
        times=TimeRange(from_ms=from_ms, to_ms=_parse_time(query, "until")),
        queue=_parse_number(query, "queue"),
        limit=limit,
        after=query["after"] or None,
        actor=actor,
    )
    # The URL carries the number of messages scanned by earlier steps, to show the progress
    # of the whole search.
    scanned_before = (
        int(scanned_text)
        if query["after"]
        and scanned_text.isascii()
        and scanned_text.isdigit()
        and len(scanned_text) < 19
        else 0
    )
    scanned = scanned_before + page.scanned
    next_parameters = {"after": page.next, "seen": str(scanned)} if page.next else {}
    # Messages that arrive during a search could make it exceed the total.
    total = max(
        _count_messages(topics.describe(name=query["topic"], actor=actor).queues), scanned
    )
    return FoundMessages(
        page.messages, scanned, total, next_parameters, page.masked, searched_by=page.by
    )


def _count_messages(queues: Sequence[QueueBounds]) -> int:
    """Return the number of messages in queues. Queues whose node does not answer count as
    empty.
    """
    return sum((queue.head or 0) - (queue.low or 0) for queue in queues)


def _parse_time(query: Query, name: str) -> int | None:
    """Return a date and time in UTC as ms since 1970."""
    if not query[name]:
        return None
    try:
        return round(
            datetime.fromisoformat(query[name]).replace(tzinfo=UTC).timestamp() * 1000
        )
    except ValueError:
        raise Invalid.field(
            name, _("must be a date and time such as 2026-11-24T09:30")
        ) from None


def _read_latest(
    topic: str, queues: Sequence[QueueBounds], *, limit: int, actor: Actor
) -> FoundMessages:
    """Return the latest messages of all queues, youngest first."""
    queues_with_messages = [queue for queue in queues if queue.head]
    # The latest of all queues together are not known before they are read, so each queue
    # gets the same share.
    limit_per_queue = max(1, limit // max(1, len(queues_with_messages)))
    pages: list[MessagePage] = [
        browse.read_page(
            topic=topic,
            queue=queue.queue.queue,
            offset=max(queue.low or 0, (queue.head or 0) - limit_per_queue),
            limit=limit_per_queue,
            actor=actor,
        )
        for queue in queues_with_messages[:limit]
    ]
    messages = _youngest_first([queue for page in pages for queue in page.messages])
    masked = any(page.masked for page in pages)
    return FoundMessages(
        messages,
        len(messages),
        _count_messages(queues),
        {},
        masked,
        outages.silent_nodes_of_topic(queues),
    )


def _youngest_first(messages: Sequence[StoredMessage]) -> list[StoredMessage]:
    return sorted(messages, key=lambda row: (-row.stored_at_ms, row.queue, -row.offset))
