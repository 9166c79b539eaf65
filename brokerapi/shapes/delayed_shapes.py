"""Shapes of delayed messages, which wait to be moved into their queues."""

from __future__ import annotations

from typing import Annotated, get_type_hints

from msgspec import UNSET, Meta, UnsetType

from brokerapi.http import formats
from brokerapi.shapes.base import Answer, Request, fields_of
from brokerapi.shapes.fields import body_field
from messagestore.engine.messages import parse_headers
from messagestore.produce.delayed_admin import Waiting, WaitingMessage
from metadata.config import config


class DelayedQuery(Request, kw_only=True):
    """Page of delayed messages: `after` is `next` of the previous page."""

    after: str | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=config.max_pull_messages)] = 100


# Fields named and typed as the columns of the row. `message_id` is not in the row, and
# `headers` is decoded.
@fields_of(
    get_type_hints(WaitingMessage)["row"],
    "message_id due_at_ms queue key tag headers trace_id producer stored_at_ms attempt",
    message_id=str,
    headers=dict[str, str] | None,
)
class DelayedMessage(Answer, kw_only=True, omit_defaults=True):
    """A delayed message: `body` (text) or `body_base64` in JSON, `body_bytes` in
    MessagePack. `queue` is the queue it was stored for. A message with a key is delivered
    to the queue that its key then has."""

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
        answer = DelayedMessage.from_view(
            row, message_id=message_id, headers=parse_headers(row.headers)
        )
        # Sets `body`, `body_base64` or `body_bytes`; the other two stay unset and are left out.
        setattr(answer, *body_field(row.body, kind))
        messages.append(answer)
    return DelayedAnswer(
        messages=messages, next=page.next, count=page.count, away=list(page.away)
    )
