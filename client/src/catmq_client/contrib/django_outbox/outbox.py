"""Sending inside a transaction: the message is committed with the business rows, or rolled
back with them.
"""

from __future__ import annotations

import asyncio
import json as json_text
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, TypeVar

from django.conf import settings
from django.db import router, transaction

from catmq_client.contrib.django_outbox import conf, notify
from catmq_client.contrib.django_outbox.ids import new_id
from catmq_client.contrib.django_outbox.models import (
    MAX_KEY,
    MAX_TAG,
    MAX_TRACE,
    OutboxLane,
    OutboxMessage,
    UtcNow,
)
from catmq_client.contrib.django_outbox.values import (
    check_size,
    check_text,
    check_topic,
    to_json_types,
)
from catmq_client.errors import CatmqError, OptionError
from catmq_client.instrumentation import inject
from catmq_client.sending.new_messages import (
    NOT_GIVEN,
    OUTBOX_ID_HEADER,
    NewMessage,
    checked_headers,
    checked_text,
    due_fields,
    encode_body,
)
from catmq_client.sending.receipts import OVERHEAD_BYTES
from catmq_client.sending.routing import slot_of
from catmq_client.trace_context import find_trace_id

# Every message of an outbox carries its id in this header. If the message is stored twice,
# both copies have the same id.
ID_HEADER = OUTBOX_ID_HEADER
# Brokers keep a delayed message for at most 366 days.
MAX_DELAY_MS = 366 * 86_400_000
# Limits of an INSERT: rows, and approximate bytes.
BATCH_ROWS, BATCH_BYTES = 500, 1024 * 1024

# All rows share an expression: building an expression takes as long as inserting a row.
NOW = UtcNow()

T = TypeVar("T")


class OutsideTransaction(CatmqError, code="outside_transaction"):
    """A message or task was sent, or a message handled, outside the transaction whose
    rollback should undo it.
    """


def send(
    topic: str,
    body: bytes | str | None = None,
    *,
    json: Any = NOT_GIVEN,
    key: str | None = None,
    tag: str | None = None,
    headers: Mapping[str, str] | None = None,
    trace_id: str | None = None,
    deliver_at: datetime | None = None,
    using: str | None = None,
) -> OutboxMessage:
    """Write a message to the outbox as part of the current transaction. The relay sends it
    after the commit.

    Pass `body` (bytes or text), or any JSON value as `json`. Inside it, dates, times,
    decimals and UUIDs become text as DjangoJSONEncoder writes them. `deliver_at` has a time
    zone; brokers keep the message until then, for at most 366 days. `using` is the database
    alias, by default the alias that the database routers choose for the outbox.

    Messages with the same key are sent in the order in which their transactions commit. For
    that, the key's lane stays locked until the commit (on SQLite the whole database is
    locked): call send last, and repeat a transaction that the database ends because of a
    deadlock. Raises OutsideTransaction, OptionError.
    """
    alias = _require_transaction("send", topic, using)
    message = NewMessage(
        encode_body(body, to_json_types(json)),
        key,
        tag,
        headers,
        trace_id,
        deliver_at=deliver_at,
    )
    row = _build_row(topic, message, alias, conf.current())
    _lock_lanes([row], alias)
    notify.on_commit(alias)
    row.save(using=alias, force_insert=True)
    return row


def send_batch(
    topic: str, messages: Iterable[NewMessage], *, using: str | None = None
) -> int:
    """Write messages to the outbox in batches, as part of the current transaction. Return
    the number of messages.

    Like `send`, but faster for many messages. `queue` and `delay_ms` of a message are not
    supported. Raises OutsideTransaction, OptionError; if any message is invalid, nothing is
    written.
    """
    alias = _require_transaction("send_batch", topic, using)
    limits = conf.current()
    # The list is complete before the first write, so an invalid message writes nothing.
    rows = [_build_row(topic, message, alias, limits) for message in messages]
    _lock_lanes(rows, alias)
    notify.on_commit(alias)
    for batch in split_into_batches(rows, lambda row: row.size):
        OutboxMessage.objects.using(alias).bulk_create(batch)
    return len(rows)


def split_into_batches(items: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Yield lists of at most BATCH_ROWS items and about BATCH_BYTES bytes, each for a single
    statement.
    """
    batch, free_bytes = list[T](), BATCH_BYTES
    for item in items:
        if batch and (len(batch) == BATCH_ROWS or size(item) > free_bytes):
            yield batch
            batch, free_bytes = [], BATCH_BYTES
        batch.append(item)
        free_bytes -= size(item)
    if batch:
        yield batch


def _require_transaction(verb: str, topic: str, using: str | None) -> str:
    """Return the alias of the outbox's database. Raises OutsideTransaction."""
    alias = using or router.db_for_write(OutboxMessage)
    if not transaction.get_connection(alias).in_atomic_block:
        if _is_in_event_loop():
            raise OutsideTransaction(
                f"outbox.{verb}({topic!r}) was called in a coroutine, and Django has no "
                "asynchronous transactions: write a function with `with transaction.atomic("
                f"using={alias!r}):` around the message and the rows it belongs to, and call "
                "it with `await sync_to_async(function)(…)`"
            )
        raise OutsideTransaction(
            f"outbox.{verb}({topic!r}) was called outside of a transaction on database "
            f"{alias!r}: call it "
            f"within `with transaction.atomic(using={alias!r}):`, together with the rows "
            "it belongs to"
        )
    return alias


def _is_in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def check_other_transactions(verb: str, alias: str) -> None:
    """Raise OutsideTransaction if only another database than `alias` has a transaction.

    Rows written to `alias` would stay when that other transaction is rolled back.
    """
    if transaction.get_connection(alias).in_atomic_block:
        return
    for other in settings.DATABASES:
        if transaction.get_connection(other).in_atomic_block:
            raise OutsideTransaction(
                f"{verb} writes to database {alias!r}, but the transaction under way is on "
                f"{other!r} and "
                "would not take it back: let the routers send catmq_outbox and "
                f"catmq_tasks to {other!r}, or "
                f"call it within `with transaction.atomic(using={alias!r}):`"
            )


def _lock_lanes(rows: Iterable[OutboxMessage], alias: str) -> None:
    """Lock the lanes of the rows' keys until the end of the transaction."""
    # SQLite has no row locks and needs none: a writing transaction locks the database.
    has_row_locks = transaction.get_connection(alias).features.has_select_for_update
    if conf.current().order != "commit" or not has_row_locks:
        return
    # Ascending slots: two transactions that lock several lanes cannot deadlock.
    for slot in sorted({row.slot for row in rows if row.slot is not None}):
        OutboxLane.objects.using(alias).select_for_update().get_or_create(slot=slot)


def _build_row(
    topic: str, message: NewMessage, alias: str, limits: conf.OutboxSettings
) -> OutboxMessage:
    """Return the unsaved row of a message. Raises OptionError if it is invalid."""
    body, key, tag, headers, trace_id, queue, delay_ms, deliver_at, _ = message
    if queue is not None or delay_ms is not None:
        raise OptionError(
            f"{message!r}: the outbox chooses the queue, and takes deliver_at, not delay_ms"
        )
    data = encode_body(body)
    own_headers = dict(inject(checked_headers(headers or {})) or {})
    if trace_id is None:
        trace_id = find_trace_id(own_headers)
    slot = None if key is None else slot_of(checked_text("key", key, MAX_KEY))
    for name, text, max_length in (
        ("key", key, MAX_KEY),
        ("tag", tag, MAX_TAG),
        ("trace_id", trace_id, MAX_TRACE),
    ):
        check_text(
            name, None if text is None else checked_text(name, text, max_length), alias
        )
    all_headers = {**own_headers, ID_HEADER: new_id(check_topic(topic), key, data)}
    check_size(data, all_headers, limits)
    at_ms = None if deliver_at is None else due_fields(None, deliver_at)["deliver_at_ms"]
    if at_ms is not None and at_ms > time.time_ns() // 1_000_000 + MAX_DELAY_MS:
        raise OptionError(
            f"deliver_at={deliver_at!r}: brokers keep a message for 366 days at most"
        )
    return OutboxMessage(
        topic=topic,
        key=key,
        slot=slot,
        tag=tag,
        # json.dumps escapes all but ASCII, so any text fits into any database.
        headers=json_text.dumps(all_headers),
        trace_id=trace_id,
        body=data,
        size=OVERHEAD_BYTES
        + len(data)
        + sum(len(name) + len(text) for name, text in own_headers.items()),
        deliver_at_ms=at_ms,
        created_at=NOW,
    )
