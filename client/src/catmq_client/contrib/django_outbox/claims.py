"""The relay's database operations: the lease, the batches, and the states of the rows.

Every change of a row's state by a relay renews its lease first, in the same transaction. So
a relay that was frozen and lost the lease meanwhile changes nothing any more. The only
exception is the deletion of stored messages, which is right whichever relay does it.

retry() and discard() are called by an operator, who has no lease. They only lock its row, so
that they never run during a transaction of the relay.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import router, transaction
from django.db.models import Q, QuerySet

from catmq_client.contrib.django_outbox.models import OutboxMessage, OutboxRelay, UtcNow
from catmq_client.sending.ids import uuid7

MAX_WAITING_ROWS = 2_000  # rows read in a pass
MAX_ERROR = 2_000
# A time of delivery that passed longer ago than this is dropped, and the message is
# delivered at once: brokers refuse a time that passed ten minutes ago. The wide margin is
# for clocks that differ.
PASSED_MS = 60_000

WAITING, CLAIMED = OutboxMessage.State.WAITING, OutboxMessage.State.CLAIMED
FAILED, HELD = OutboxMessage.State.FAILED, OutboxMessage.State.HELD


class LeaseLost(Exception):
    """Another relay has the lease. The argument, if any, is its name."""


class WaitingRow(NamedTuple):
    """A row that may be claimed, without its body.

    `slot` is a hash of its key (sending/routing.py), None without a key. A topic's layout
    names the queue of each slot, so messages of a slot keep their order if no two batches
    with messages of it are open at the same time.
    """

    id: int
    topic: str
    key: str | None
    slot: int | None
    size: int


class Destination(NamedTuple):
    """Topic and queue of a batch. With queue None the broker chooses, by key or batch id."""

    topic: str
    queue: int | None


@dataclass(frozen=True, slots=True)
class ClaimedBatch:
    """A batch that may have been sent before. `slots` are the slots of its keys, so no
    other batch may be sent with messages of these slots until it ends.
    """

    batch_id: uuid.UUID
    destination: Destination
    count: int
    slots: frozenset[int]


class RowCounts(NamedTuple):
    """Number of rows in each state."""

    waiting: int
    claimed: int
    failed: int
    held: int


class FailedMessage(NamedTuple):
    """A message that was refused for good. `held` messages of its key wait for it."""

    id: int
    topic: str
    key: str | None
    created_at: datetime
    error: str
    held: int


class Claims:
    """Operations of one relay, `holder`, on the outbox of a database.

    A relay that has not renewed its lease for `lease_s` seconds counts as dead, and another
    relay may take over. Processes that commit messages notify the relay at `address`.
    """

    def __init__(
        self,
        holder: str,
        *,
        using: str | None = None,
        lease_s: float = 15.0,
        address: str = "",
    ) -> None:
        self.holder: str = holder
        self.address: str = address
        self.lease_s: float = lease_s
        self.alias: str = using or router.db_for_write(OutboxMessage)

    @property
    def _rows(self) -> QuerySet[OutboxMessage]:
        return OutboxMessage.objects.using(self.alias)

    def acquire(self) -> str:
        """Acquire or renew the lease. Return '' on success, else the name of its holder."""
        relays = OutboxRelay.objects.using(self.alias)
        relays.get_or_create(pk=1)
        is_free = Q(holder__in=("", self.holder)) | Q(
            seen_at__lt=UtcNow() - timedelta(seconds=self.lease_s)
        )
        if relays.filter(is_free, pk=1).update(
            holder=self.holder, address=self.address, seen_at=UtcNow()
        ):
            return ""
        # An empty holder: the other relay has released the lease since the update.
        return str(relays.values_list("holder", flat=True).get(pk=1)) or self.acquire()

    def is_idle(self) -> bool:
        return not self._rows.filter(state__in=(WAITING, CLAIMED)).exists()

    def release(self) -> None:
        """Release the lease, so that another relay need not wait until it expires."""
        OutboxRelay.objects.using(self.alias).filter(holder=self.holder).update(
            holder="", address=""
        )

    def _renew(self) -> None:
        """Renew the lease and lock its row until the end of the transaction.

        Must be the first statement of the transaction. Raises LeaseLost.
        """
        lease = OutboxRelay.objects.using(self.alias).filter(pk=1, holder=self.holder)
        if not lease.update(seen_at=UtcNow()):
            raise LeaseLost

    def open_batches(self) -> list[ClaimedBatch]:
        """Return the batches whose outcome is not settled yet, the oldest first."""
        batches: dict[uuid.UUID, tuple[Destination, list[int | None]]] = {}
        rows = self._rows.filter(state=CLAIMED).order_by("id")
        for batch_id, topic, queue, slot in rows.values_list(
            "batch_id", "topic", "queue", "slot"
        ):
            if batch_id is not None:
                batches.setdefault(batch_id, (Destination(topic, queue), []))[1].append(
                    slot
                )
        return [
            ClaimedBatch(
                batch_id,
                destination,
                len(slots),
                frozenset(slot for slot in slots if slot is not None),
            )
            for batch_id, (destination, slots) in batches.items()
        ]

    def sendable_rows(
        self, *, busy: Mapping[str, Collection[int]], closed: Collection[str]
    ) -> list[WaitingRow]:
        """Return the oldest waiting rows that may be sent now, and hold back the others.

        Rows of `closed` topics, and rows whose slot is in `busy[topic]`, are skipped. Rows
        whose key has a failed message become HELD. Raises LeaseLost.
        """
        with transaction.atomic(using=self.alias):
            self._renew()
            rows = self._rows.filter(state=WAITING).exclude(topic__in=closed)
            for topic, slots in busy.items():
                # slot__isnull: NOT (slot IN ...) alone would drop the rows without a key.
                rows = rows.exclude(
                    Q(topic=topic, slot__isnull=False, slot__in=sorted(slots))
                )
            fields = rows.order_by("id").values_list(*WaitingRow._fields)
            waiting = [WaitingRow(*row) for row in fields[:MAX_WAITING_ROWS]]
            # (topic, key) pairs are compared in Python: a database's collation may take A
            # and a for the same key.
            failed = self._rows.filter(state=FAILED, key__isnull=False)
            failed_keys = set(failed.values_list("topic", "key"))
            held_ids = [
                row.id
                for row in waiting
                if row.key is not None and (row.topic, row.key) in failed_keys
            ]
            if held_ids:
                self._rows.filter(pk__in=held_ids).update(state=HELD)
        return [
            row
            for row in waiting
            if row.key is None or (row.topic, row.key) not in failed_keys
        ]

    def claim(self, batches: Mapping[Destination, Sequence[int]]) -> set[uuid.UUID]:
        """Record the batches (destination → row ids) before anything is sent. Return their
        new batch ids. Raises LeaseLost.
        """
        batch_ids: set[uuid.UUID] = set()
        with transaction.atomic(using=self.alias):
            self._renew()
            for destination, ids in batches.items():
                batch_id = uuid.UUID(uuid7())
                batch = self._rows.filter(pk__in=ids, state=WAITING)
                # Before the first send, because a repeated batch must not differ from it.
                batch.filter(deliver_at_ms__lt=_passed_ms()).update(deliver_at_ms=None)
                batch.update(state=CLAIMED, batch_id=batch_id, queue=destination.queue)
                batch_ids.add(batch_id)
        return batch_ids

    def load_messages(
        self, claimed: ClaimedBatch
    ) -> tuple[list[int], list[dict[str, Any]]]:
        """Return the row ids of a batch and its messages as the API takes them. Every call
        returns the same.
        """
        rows = list(self._rows.filter(batch_id=claimed.batch_id).order_by("id"))
        return [row.pk for row in rows], [
            {
                "body_bytes": bytes(row.body),
                "headers": json.loads(row.headers),
                **{
                    name: value
                    for name in ("key", "tag", "trace_id", "queue", "deliver_at_ms")
                    if (value := getattr(row, name)) is not None
                },
            }
            for row in rows
        ]

    def delete_stored(self, ids: Sequence[int], batch_id: uuid.UUID) -> int:
        """Delete rows that have a receipt. Return their number.

        Needs no lease: the broker has stored the messages, whichever relay asks.
        """
        return self._rows.filter(pk__in=ids, batch_id=batch_id).delete()[0]

    def return_to_waiting(self, claimed: ClaimedBatch) -> None:
        """Dissolve a batch that is certainly not stored. Its rows may go to another queue,
        under another batch id. Raises LeaseLost.
        """
        with transaction.atomic(using=self.alias):
            self._renew()
            self._rows.filter(batch_id=claimed.batch_id).update(
                state=WAITING, batch_id=None, queue=None
            )

    def fail(self, claimed: ClaimedBatch, errors: Mapping[int, str]) -> None:
        """Mark rows that were refused for good; `errors` has the reason by row id. The other
        rows of the batch wait again. Raises LeaseLost.

        A row whose time of delivery has passed meanwhile waits again without that time,
        because brokers refuse a time that passed long ago.
        """
        with transaction.atomic(using=self.alias):
            self._renew()
            for pk, error in errors.items():
                # A passed time of delivery may be why the row was refused. Without it the
                # row is sent again instead of failing.
                row = self._rows.filter(pk=pk, batch_id=claimed.batch_id)
                if not row.filter(deliver_at_ms__lt=_passed_ms()).update(
                    deliver_at_ms=None
                ):
                    row.update(
                        state=FAILED, batch_id=None, queue=None, error=error[:MAX_ERROR]
                    )
            # Failed rows have left the batch. The remaining rows wait again.
            self._rows.filter(batch_id=claimed.batch_id).update(
                state=WAITING, batch_id=None, queue=None
            )


def _passed_ms() -> int:
    """Return the latest time of delivery that counts as passed, ms since 1970."""
    return time.time_ns() // 1_000_000 - PASSED_MS


def count_rows(*, using: str | None = None) -> RowCounts:
    rows = OutboxMessage.objects.using(using or router.db_for_write(OutboxMessage))
    return RowCounts(
        *(rows.filter(state=state).count() for state in (WAITING, CLAIMED, FAILED, HELD))
    )


def read_oldest_age_s(*, using: str | None = None) -> float | None:
    """Return how long the oldest message that is not sent yet has waited, by the clock of
    the database, in seconds. None if there is none. Refused messages do not count.
    """
    rows = OutboxMessage.objects.using(using or router.db_for_write(OutboxMessage))
    unsent = rows.filter(state__in=(WAITING, CLAIMED)).order_by("id")
    times = unsent.annotate(now=UtcNow()).values_list("created_at", "now").first()
    return None if times is None else max(0.0, (times[1] - times[0]).total_seconds())


def list_failed(*, using: str | None = None, limit: int = 1_000) -> list[FailedMessage]:
    """Return the messages that were refused for good, the oldest first."""
    rows = OutboxMessage.objects.using(using or router.db_for_write(OutboxMessage))
    failed_rows = rows.filter(state=FAILED).order_by("id")[:limit]
    held = Counter(rows.filter(state=HELD, key__isnull=False).values_list("topic", "key"))
    return [
        FailedMessage(
            row.pk,
            row.topic,
            row.key,
            row.created_at,
            row.error,
            held[row.topic, row.key],
        )
        for row in failed_rows.defer("body", "headers")
    ]


def retry(ids: Iterable[int] | None, *, using: str | None = None) -> int:
    """Let failed messages (None: all) and the messages that they hold back wait again.
    Return the number of failed messages.
    """
    return _end_failures(ids, using, discard=False)


def discard(ids: Iterable[int], *, using: str | None = None) -> int:
    """Delete failed messages, and let the messages that they hold back wait again. Return
    the number of deleted messages.
    """
    return _end_failures(ids, using, discard=True)


def _end_failures(ids: Iterable[int] | None, using: str | None, *, discard: bool) -> int:
    alias = using or router.db_for_write(OutboxMessage)
    rows = OutboxMessage.objects.using(alias)
    relays = OutboxRelay.objects.using(alias)
    with transaction.atomic(using=alias):
        # Lock the row of the lease: the update changes nothing, because pk is id. The relay
        # holds this lock while it reads the failures and holds rows back by them: no
        # failure may end in between. On SQLite, too, an update locks; a SELECT … FOR UPDATE
        # would not. Nothing is read before the lock, because MariaDB may refuse to lock a
        # row that changed since a transaction's first read (1020).
        if not relays.filter(pk=1).update(id=1):
            relays.get_or_create(pk=1)
        failed_rows = rows.filter(state=FAILED)
        if ids is not None:
            failed_rows = failed_rows.filter(pk__in=list(ids))
        ended = (
            failed_rows.delete()[0]
            if discard
            else failed_rows.update(state=WAITING, error="")
        )
        # Rows of other failed keys wait, too; the relay's next pass holds them back again.
        rows.filter(state=HELD).update(state=WAITING)
    return ended
