"""Sending and looking at messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeVar
from uuid import UUID

from msgspec import UNSET, Meta, UnsetType, json

from brokerapi.http import formats, value_limits
from brokerapi.http.parsers import Body
from brokerapi.shapes.base import Answer, Id, Request
from brokerapi.shapes.fields import body_field
from messagestore.engine.messages import (
    MessageSearch,
    NewMessage,
    StoredMessage,
    StoredRow,
    message_id,
    parse_headers,
    stored_message,
)
from messagestore.engine.origins import Origin
from messagestore.inspect.browse import MessagePage
from messagestore.inspect.search import SearchResult, TimeRange
from messagestore.produce.publish import Fate, FateRun, Receipt
from metadata.config import config
from metadata.errors import CatmqError, Code, Invalid

T = TypeVar("T")


class Message(Request, kw_only=True):
    """Base of both formats of a message to send. Without `queue` the broker chooses one;
    one that is not strict may give way to another one of the topic."""

    raw: ClassVar[str]  # the field of a body that is no text
    body: str | UnsetType = UNSET
    key: str | None = None
    tag: str | None = None
    headers: dict[str, str] | None = None
    trace_id: str | None = None
    queue: Id | None = None
    queue_strict: bool = True
    delay_ms: Id | UnsetType = UNSET
    deliver_at_ms: Id | UnsetType = UNSET

    def to_new_message(self, index: int) -> NewMessage:
        """Return the message to store. Raises Invalid, naming the message by its index."""
        text, raw = self.body, getattr(self, self.raw)
        if (text is UNSET) == (raw is UNSET):
            problem = "one of them is needed" if raw is UNSET else "give only one of them"
            raise Invalid.field(f"messages[{index}].body", f"body or {self.raw}: {problem}")
        return NewMessage(
            body=text.encode() if isinstance(text, str) else raw,
            key=self.key,
            tag=self.tag,
            headers=self.headers,
            trace_id=self.trace_id,
            queue=self.queue,
            queue_strict=self.queue_strict,
            delay_ms=_unset_to_none(self.delay_ms) or None,  # no delay is none
            deliver_at_ms=_unset_to_none(self.deliver_at_ms),
        )


class JsonMessage(Message):
    """A message to send, in JSON."""

    raw = "body_base64"
    body_base64: bytes | UnsetType = UNSET


class PackedMessage(Message):
    """A message to send, in MessagePack."""

    raw = "body_bytes"
    body_bytes: bytes | UnsetType = UNSET


# How a send is answered: a result for each message, or runs of those that were stored side
# by side, which is less to write and to read.
Receipts = Literal["each", "runs"]


class SendRequest(Request, kw_only=True):
    """Messages for one topic. With the same `batch_id` (UUIDv7) a repeated request stores
    nothing twice.
    `receipts`: `each` (one result per message) or `runs` (one per run of consecutive
    offsets)."""

    messages: list[JsonMessage]
    batch_id: UUID | None = None
    receipts: Receipts = "each"


class PackedSendRequest(Request, kw_only=True):
    """The same in MessagePack."""

    messages: list[PackedMessage]
    batch_id: UUID | None = None
    receipts: Receipts = "each"


_RENAMED = {"body": "body_bytes"}


class UsualMessage(
    NewMessage, frozen=True, kw_only=True, forbid_unknown_fields=True, rename=_RENAMED
):
    """A message in MessagePack with its body as bytes: read as what is stored, without a
    step between.

    A delay of 0 and null as a delay are left to PackedMessage.
    """

    body: bytes
    queue: Id | None = None
    delay_ms: Annotated[int, Meta(ge=1, le=2**63 - 1)] = None  # type: ignore[assignment]  # msgspec checks no defaults
    deliver_at_ms: Id = None  # type: ignore[assignment]


class UsualSendRequest(Request, kw_only=True):
    """Send request as clients of ours write it."""

    messages: list[UsualMessage]
    batch_id: UUID | None = None
    receipts: Receipts = "each"


AnySend = SendRequest | PackedSendRequest | UsualSendRequest
SEND: Body[AnySend] = Body(
    SendRequest,
    PackedSendRequest,
    UsualSendRequest,
    check_packed=value_limits.check_packed_send,
)


def new_messages(request: AnySend) -> Sequence[NewMessage]:
    """Return the messages to store. Raises Invalid naming the first that is wrong."""
    if isinstance(request, UsualSendRequest):
        return request.messages
    return [message.to_new_message(index) for index, message in enumerate(request.messages)]


class SendError(Answer, kw_only=True):
    """Reason why one message was not stored."""

    code: Code
    detail: str
    retriable: bool


class SendResult(Answer, kw_only=False, omit_defaults=True, gc=False):
    """Result of one message: stored (queue, offset, message_id), delayed (message_id,
    due_at_ms) or refused (error)."""

    queue: int | UnsetType = UNSET
    offset: int | UnsetType = UNSET
    message_id: str | UnsetType = UNSET
    error: SendError | UnsetType = UNSET
    due_at_ms: int | UnsetType = UNSET


class SendRun(Answer, kw_only=False, omit_defaults=True, gc=False):
    """Result of `count` consecutive messages. If stored, `queue` and `offset` are those of
    the first; the others have the next offsets. Message ids are queue and offset, as in
    7-41. Otherwise `result` is the result of each."""

    count: int
    queue: int | UnsetType = UNSET
    offset: int | UnsetType = UNSET
    result: SendResult | UnsetType = UNSET


class SendAnswer(Answer, kw_only=True):
    """One result per message, in order. With `receipts: runs` there are `runs` instead;
    their counts add up to the number of messages."""

    results: list[SendResult] | UnsetType = UNSET
    runs: list[SendRun] | UnsetType = UNSET


def send_answer(runs: Sequence[FateRun], receipts: Receipts) -> SendAnswer:
    if receipts == "runs":
        return SendAnswer(
            runs=[
                SendRun(run.length, run.fate.queue, run.fate.offset)
                if isinstance(run.fate, Receipt)
                else SendRun(run.length, result=_send_result(run.fate))
                for run in runs
            ]
        )
    return SendAnswer(results=[_send_result(fate) for run in runs for fate in run.fates()])


def _send_result(fate: Fate) -> SendResult:
    if isinstance(fate, Receipt):  # most are
        return SendResult(fate.queue, fate.offset, f"{fate.queue}-{fate.offset}")
    if isinstance(fate, CatmqError):
        return SendResult(
            error=SendError(code=fate.code, detail=fate.detail, retriable=fate.retriable)
        )
    return SendResult(message_id=fate.message_id, due_at_ms=fate.due_at_ms)


class StoredAnswer(Answer, kw_only=False, omit_defaults=True, gc=False):
    """A stored message: `body` (text) or `body_base64` in JSON, `body_bytes` in
    MessagePack.

    Hundreds of them are made for a pull, so they are filled by position.
    """

    offset: int
    message_id: str
    key: str | None
    tag: str | None
    headers: dict[str, str] | None
    trace_id: str | None
    stored_at_ms: int
    attempt: int
    queue: int | UnsetType = UNSET
    body: str | UnsetType = UNSET
    body_base64: bytes | UnsetType = UNSET
    body_bytes: bytes | UnsetType = UNSET
    origin: Origin | UnsetType = UNSET  # of messages of a failure topic


def add_origins(
    answers: list[StoredAnswer], origins: Sequence[str | None]
) -> list[StoredAnswer]:
    """Set the origins of the messages of a retry topic. Return the messages."""
    for answer, text in zip(answers, origins, strict=True):
        origin = decode_origin(text)
        if origin is not None:
            answer.origin = origin
    return answers


def decode_origin(text: str | None) -> Origin | None:
    """Return the origin of a row, None if it has none.

    >>> decode_origin('{"topic": "orders", "offset": 7}')
    Origin(topic='orders', queue=0, offset=7, first_failed_at_ms=0, error='')
    """
    return None if text is None else json.decode(text, type=Origin)


def message_answer(
    message: StoredMessage, kind: formats.Format, queue: int | UnsetType = UNSET
) -> StoredAnswer:
    """Return a message in a format. `queue` is given where the answer does not name it
    elsewhere.
    """
    answer = StoredAnswer(
        message.offset,
        message_id(message.queue, message.offset),
        message.key,
        message.tag,
        message.headers,
        message.trace_id,
        message.stored_at_ms,
        message.attempt,
        queue,
    )
    setattr(answer, *body_field(message.body, kind))
    return answer


def row_answers(
    queue: int, rows: Sequence[StoredRow], kind: formats.Format
) -> list[StoredAnswer]:
    """Return the messages of a pull, straight from the rows of their queue."""
    if kind.name != formats.MSGPACK.name:
        return [message_answer(stored_message(queue, row), kind) for row in rows]
    # No StoredMessage between row and answer: a pull builds hundreds of answers.
    return [
        StoredAnswer(
            offset,
            f"{queue}-{offset}",
            key,
            tag,
            parse_headers(headers) if headers else None,
            trace_id,
            stored_at_ms,
            attempt,
            body_bytes=body,
        )
        for offset, key, tag, headers, body, trace_id, stored_at_ms, attempt in rows
    ]


def content_fields(
    queue: int,
    rows: Sequence[StoredRow],
    origins: Sequence[str | None] | None,
    kind: formats.Format,
) -> dict[str, Any]:
    """Return the field `messages` of an answer, or `rows` and `origins` if the format asks
    for rows. `origins` are those of the rows of a retry topic.
    """
    if kind.rows:
        return {
            "rows": rows,
            "origins": [*map(decode_origin, origins)] if origins else UNSET,
        }
    messages = row_answers(queue, rows, kind)
    return {"messages": add_origins(messages, origins) if origins else messages}


class TracesQuery(Request, kw_only=True):
    """The message, by its id. Required, but the right to look at the topic is asked for
    first.
    """

    message_id: str = ""


class MissingAnswer(Answer, kw_only=True):
    """Offsets `first` … `end` - 1 of a queue that have no messages: `expired` (deleted by
    retention), `lost` (declared when a node was lost), or `unexplained`."""

    first: int
    end: int
    reason: Literal["expired", "lost", "unexplained"]


class MessagesAnswer(Answer, kw_only=True):
    """Messages, and how many were scanned. `next` is the `offset` of the next page of a
    queue, or the `after` of the next page of a search; null: none. `searched_by` is there
    after a search, `missing` if a page of a queue skipped offsets. With `form=rows` and `Accept:
    application/msgpack;messages=rows`, a page of a queue has `rows`, as in pulls, and
    `messages` is empty."""

    messages: list[StoredAnswer]
    scanned: int
    next: int | str | None
    searched_by: str | UnsetType = UNSET
    missing: list[MissingAnswer] | UnsetType = UNSET
    rows: list[StoredRow] | UnsetType = UNSET


def messages_answer(
    page: MessagePage | SearchResult, kind: formats.Format
) -> MessagesAnswer:
    messages = [message_answer(message, kind, message.queue) for message in page.messages]
    answer = MessagesAnswer(messages=messages, scanned=page.scanned, next=page.next)
    if isinstance(page, SearchResult):
        answer.searched_by = page.by
    if isinstance(page, MessagePage) and page.rows:
        answer.rows = list(page.rows)
    if isinstance(page, MessagePage) and page.missing:
        answer.missing = [MissingAnswer(**missing._asdict()) for missing in page.missing]
    return answer


class BrowseQuery(Request, kw_only=True):
    """Messages to read: a queue from an offset, one message by its id, or a search in one
    or all queues of the topic, which continues after the message id `after`. Only at the
    end of a queue
    `wait_ms` waits."""

    queue: Id | UnsetType = UNSET
    offset: Id = 0
    limit: Annotated[int, Meta(ge=1, le=config.max_pull_messages)] = 100
    wait_ms: Annotated[int, Meta(ge=0, le=config.max_wait_ms)] = 0
    form: Literal["objects", "rows"] = "objects"
    message_id: str | UnsetType = UNSET
    key: str | UnsetType = UNSET
    trace_id: str | UnsetType = UNSET
    tag: str | UnsetType = UNSET
    from_ms: Id | UnsetType = UNSET
    to_ms: Id | UnsetType = UNSET
    contains: Annotated[str, Meta(min_length=1, max_length=200)] | UnsetType = UNSET
    header: Annotated[str, Meta(min_length=2, max_length=1000)] | UnsetType = UNSET
    after: str | UnsetType = UNSET

    def search_conditions(self) -> MessageSearch:
        """Return the key, tag, trace id, text and header that a message must have."""
        text, header = _unset_to_none(self.contains), _unset_to_none(self.header)
        name, colon, value = (header or "").partition(":")
        if header is not None and not (name and colon):
            raise Invalid.field("header", f"{header!r} is not name:value")
        return MessageSearch(
            _unset_to_none(self.key),
            _unset_to_none(self.tag),
            _unset_to_none(self.trace_id),
            None if text is None else text.encode(),
            None if header is None else (name, value),
        )

    def time_range(self) -> TimeRange:
        return TimeRange(_unset_to_none(self.from_ms), _unset_to_none(self.to_ms))

    def is_search(self) -> bool:
        """Return True if the query has conditions, besides the position in a queue."""
        return (
            self.search_conditions() != MessageSearch() or self.time_range() != TimeRange()
        )


def _unset_to_none(value: T | UnsetType) -> T | None:
    return None if isinstance(value, UnsetType) else value
