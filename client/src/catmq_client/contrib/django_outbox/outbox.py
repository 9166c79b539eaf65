"""Sending inside a transaction: the message is committed with the business rows, or rolled
back with them.
"""

from __future__ import annotations

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
    plain,
)
from catmq_client.errors import CatmqError, OptionError
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

# Every message of an outbox carries this header: the id by which it is known, however often
# it is stored.
ID_HEADER = OUTBOX_ID_HEADER
# What brokers keep a message for, at most.
MOST_DELAY_MS = 366 * 86_400_000
# Of one INSERT: rows, and about how many bytes.
BATCH_ROWS, BATCH_BYTES = 500, 1024 * 1024

# One for all rows: to make it takes as long as to insert one.
NOW = UtcNow()

T = TypeVar("T")


class OutsideTransaction(CatmqError, code="outside_transaction"):
    """A message or task was sent, or a message handled, where no rollback would take it
    back.
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
    """Put a message into the outbox, as part of the transaction under way; the relay sends
    it afterwards.

    Give `body`, which is bytes or text, or any JSON value as `json`; in it, dates, times,
    decimals and UUIDs become text as DjangoJSONEncoder writes them. Messages with the same
    key are sent in the order in which their transactions commit. For that the key's lane is
    locked until the commit (on SQLite everything is): send last, and repeat a transaction
    that the database ends for a deadlock. Brokers keep the message until
    `deliver_at` (with a time zone), for at most 366 days. `using`: the database alias,
    default the outbox's own. Raises OutsideTransaction, OptionError.
    """
    alias = _inside_transaction("send", topic, using)
    data = encode_body(body, plain(json))
    message = NewMessage(data, key, tag, headers, trace_id, deliver_at=deliver_at)
    row = _row(topic, message, alias, conf.current())
    _lock_lanes([row], alias)
    notify.on_commit(alias)
    row.save(using=alias, force_insert=True)
    return row


def send_batch(
    topic: str, messages: Iterable[NewMessage], *, using: str | None = None
) -> int:
    """Put messages into the outbox, in batches, as part of the transaction under way;
    return their number.

    As `send`, but fast for many. The outbox knows neither `queue` nor `delay_ms` of a
    message. Raises OutsideTransaction, OptionError; of a wrong message before anything is
    written.
    """
    alias = _inside_transaction("send_batch", topic, using)
    limits = conf.current()
    rows = [_row(topic, message, alias, limits) for message in messages]
    _lock_lanes(rows, alias)
    notify.on_commit(alias)
    for some in in_batches(rows, lambda row: row.size):
        OutboxMessage.objects.using(alias).bulk_create(some)
    return len(rows)


def in_batches(items: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Yield lists of items that one statement takes: so many, or so many bytes together."""
    batch, left = list[T](), BATCH_BYTES
    for item in items:
        if batch and (len(batch) == BATCH_ROWS or size(item) > left):
            yield batch
            batch, left = [], BATCH_BYTES
        batch.append(item)
        left -= size(item)
    if batch:
        yield batch


def _inside_transaction(verb: str, topic: str, using: str | None) -> str:
    """Return the alias of the database. Raises OutsideTransaction."""
    alias = using or router.db_for_write(OutboxMessage)
    if not transaction.get_connection(alias).in_atomic_block:
        raise OutsideTransaction(
            f"outbox.{verb}({topic!r}) was called outside of a transaction on database "
            f"{alias!r}: call it "
            f"within `with transaction.atomic(using={alias!r}):`, together with the rows "
            "it belongs to"
        )
    return alias


def check_other_transactions(verb: str, alias: str) -> None:
    """Raise OutsideTransaction if the caller's transaction is on another database.

    What is written to `alias` would stay when that transaction is rolled back.
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
    """Lock the lanes of keys, in the order of their slots, so that two batches do not wait
    for each other.
    """
    if conf.current().order != "commit":
        return
    if not transaction.get_connection(alias).features.has_select_for_update:
        return
    for slot in sorted({row.slot for row in rows if row.slot is not None}):
        OutboxLane.objects.using(alias).select_for_update().get_or_create(slot=slot)


def _row(
    topic: str, message: NewMessage, alias: str, limits: conf.OutboxSettings
) -> OutboxMessage:
    body, key, tag, headers, trace_id, queue, delay_ms, deliver_at, _ = message
    if queue is not None or delay_ms is not None:
        raise OptionError(
            f"{message!r}: the outbox chooses the queue, and takes deliver_at, not delay_ms"
        )
    data = encode_body(body)
    given = checked_headers(headers or {})
    slot = None if key is None else slot_of(checked_text("key", key, MAX_KEY))
    for name, text, most in (
        ("key", key, MAX_KEY),
        ("tag", tag, MAX_TAG),
        ("trace_id", trace_id, MAX_TRACE),
    ):
        check_text(name, None if text is None else checked_text(name, text, most), alias)
    all_headers = {**given, ID_HEADER: new_id(check_topic(topic), key, data)}
    check_size(data, all_headers, limits)
    return OutboxMessage(
        topic=topic,
        key=key,
        slot=slot,
        tag=tag,
        # As escapes, any text fits into any database.
        headers=json_text.dumps(all_headers),
        trace_id=trace_id,
        body=data,
        size=OVERHEAD_BYTES
        + len(data)
        + sum(len(name) + len(text) for name, text in given.items()),
        deliver_at_ms=None if deliver_at is None else _due_ms(deliver_at),
        created_at=NOW,
    )


def _due_ms(deliver_at: datetime) -> int:
    at_ms = due_fields(None, deliver_at)["deliver_at_ms"]
    if at_ms > time.time_ns() // 1_000_000 + MOST_DELAY_MS:
        raise OptionError(
            f"deliver_at={deliver_at!r}: brokers keep a message for 366 days at most"
        )
    return at_ms
