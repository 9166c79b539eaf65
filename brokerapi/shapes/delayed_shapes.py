"""Messages that wait for their time."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from brokerapi.http import formats
from brokerapi.shapes.base import Answer, Request
from brokerapi.shapes.fields import body_field
from messagestore.engine.messages import parse_headers
from messagestore.produce.delayed_admin import Waiting, WaitingMessage
from metadata.config import config


class DelayedQuery(Request, kw_only=True):
    """Page of delayed messages: `after` is `next` of the previous page."""

    after: str | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=config.max_pull_messages)] = 100


class DelayedMessage(Answer, kw_only=True, omit_defaults=True):
    """A delayed message: `body` (text) or `body_base64` in JSON, `body_bytes` in
    MessagePack. `queue` is the queue it was stored for. A message with a key is delivered
    to the queue that its key then has."""

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


def delayed_answer(found: Waiting, kind: formats.Format) -> DelayedAnswer:
    messages = [_message(one, kind) for one in found.messages]
    return DelayedAnswer(
        messages=messages, next=found.next, count=found.count, away=list(found.away)
    )


def _message(one: WaitingMessage, kind: formats.Format) -> DelayedMessage:
    row = one.row
    answer = DelayedMessage(
        message_id=row.known_as or one.message_id,
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
    setattr(answer, *body_field(row.body, kind))
    return answer
