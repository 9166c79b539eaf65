"""Shapes of delayed messages, which wait to be moved into their queues."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from brokerapi.http import formats
from brokerapi.shapes.base import Answer, Request
from brokerapi.shapes.fields import body_field
from messagestore.engine.messages import parse_headers
from messagestore.produce.delayed_admin import Waiting
from metadata.config import config


class DelayedQuery(Request, kw_only=True):
    """Page of delayed messages: `after` is `next` of the previous page."""

    after: str | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=config.max_pull_messages)] = 100


class DelayedMessage(Answer, kw_only=True, omit_defaults=True):
    """A delayed message: `body` (text) or `body_base64` in JSON, `body_bytes` in
    MessagePack. `queue` is the queue it was stored for. A message with a key is delivered
    to the queue that its key then has."""

    # Without the fields of the row that say how it is stored.
    message_id: str
    due_at_ms: int
    queue: int
    key: str | None
    tag: str | None
    headers: dict[str, str] | None
    trace_id: str | None
    producer: str
    stored_at_ms: int
    attempt: int
    body: str | UnsetType = UNSET
    body_base64: bytes | UnsetType = UNSET
    body_bytes: bytes | UnsetType = UNSET


class DelayedAnswer(Answer, kw_only=True):
    """Delayed messages. `next`: `after` of the next page (null: none). `count`: all delayed
    messages, counted up to 100,000 on each node. `away`: nodes that did not answer."""

    messages: list[DelayedMessage]
    next: str | None
    count: int
    away: list[str]


def delayed_answer(page: Waiting, kind: formats.Format) -> DelayedAnswer:
    """Return the answer for a page of delayed messages, in the format of the request."""
    messages = []
    for message in page.messages:
        row = message.row
        # `known_as` is the id that the sender got, if it differs from that of the row.
        message_id = row.known_as or message.message_id
        answer = DelayedMessage(
            message_id=message_id,
            due_at_ms=row.due_at_ms,
            queue=row.queue,
            key=row.key,
            tag=row.tag,
            headers=parse_headers(row.headers),
            trace_id=row.trace_id,
            producer=row.producer,
            stored_at_ms=row.stored_at_ms,
            attempt=row.attempt,
        )
        # Sets `body`, `body_base64` or `body_bytes`; the other two stay unset and are left out.
        setattr(answer, *body_field(row.body, kind))
        messages.append(answer)
    return DelayedAnswer(
        messages=messages, next=page.next, count=page.count, away=list(page.away)
    )
