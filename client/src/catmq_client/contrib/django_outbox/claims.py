"""The relay's half that is in the database: the lease, what may be sent now, and what
became of it.

Every change of a row's state but the deletion of what was sent begins by renewing the lease
in the same transaction. So a relay that was frozen, and lost the lease meanwhile, changes
nothing any more.
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

LOOK_AT = 2_000  # waiting rows in one claim
MAX_ERROR = 2_000
# A time of delivery that passed so long ago is left out: brokers refuse one that passed ten
# minutes ago, and
# clocks differ.
PASSED_MS = 60_000

WAITING, CLAIMED = OutboxMessage.State.WAITING, OutboxMessage.State.CLAIMED
FAILED, HELD = OutboxMessage.State.FAILED, OutboxMessage.State.HELD


class LeaseLost(Exception):
    """Another relay works now."""


class Waiting(NamedTuple):
    """A row that may be claimed, without its body."""

    id: int
    topic: str
    key: str | None
    slot: int | None
    size: int


class Place(NamedTuple):
    """Destination of a batch; queue None: the broker chooses, by key or batch id."""

    topic: str
    queue: int | None


@dataclass(frozen=True, slots=True)
class Claimed:
    """A batch that may have been sent before; `slots` are those of its keys."""

    batch_id: uuid.UUID
    place: Place
    count: int
    slots: frozenset[int]


class Counts(NamedTuple):
    """Number of rows in each state."""

    waiting: int
    claimed: int
    failed: int
    held: int


class Failed(NamedTuple):
    """A message that was refused for good, and how many wait behind it."""

    id: int
    topic: str
    key: str | None
    created_at: datetime
    error: str
    held: int


class Claims:
    """Operations of one relay, `holder`, on the outbox rows of a database.

    A relay that is not heard for `lease_s` seconds is taken for dead, and the next one
    works. At `address` it is notified of commits.
    """

    def __init__(
        self,
        holder: str,
        *,
        using: str | None = None,
        lease_s: float = 15.0,
        address: str = "",
    ) -> None:
        self.holder, self.address = holder, address
        self.lease_s = lease_s
        self.alias = using or router.db_for_write(OutboxMessage)

    @property
    def _rows(self) -> QuerySet[OutboxMessage]:
        return OutboxMessage.objects.using(self.alias)

    def acquire(self) -> str:
        """Take the lease if it is free, over or ours already; '' then, else the name of its
        holder.
        """
        relays = OutboxRelay.objects.using(self.alias)
        relays.get_or_create(pk=1)
        free = Q(holder__in=("", self.holder)) | Q(
            seen_at__lt=UtcNow() - timedelta(seconds=self.lease_s)
        )
        if relays.filter(free, pk=1).update(
            holder=self.holder, address=self.address, seen_at=UtcNow()
        ):
            return ""
        return str(relays.values_list("holder", flat=True).get(pk=1)) or self.acquire()

    def idle(self) -> bool:
        return not self._rows.filter(state__in=(WAITING, CLAIMED)).exists()

    def release(self) -> None:
        """Give the lease back, so that another relay need not wait for its end."""
        OutboxRelay.objects.using(self.alias).filter(holder=self.holder).update(
            holder="", address=""
        )

    def _renew(self) -> None:
        """The first statement of a transaction: it holds the lease's row until the end.
        Raises LeaseLost.
        """
        mine = OutboxRelay.objects.using(self.alias).filter(pk=1, holder=self.holder)
        if not mine.update(seen_at=UtcNow()):
            raise LeaseLost

    def open(self) -> list[Claimed]:
        """The batches that were claimed and have no end yet, the oldest first."""
        found: dict[uuid.UUID, tuple[Place, list[int | None]]] = {}
        rows = self._rows.filter(state=CLAIMED).order_by("id")
        for batch_id, topic, queue, slot in rows.values_list(
            "batch_id", "topic", "queue", "slot"
        ):
            if batch_id is not None:
                found.setdefault(batch_id, (Place(topic, queue), []))[1].append(slot)
        return [
            Claimed(
                batch_id,
                place,
                len(slots),
                frozenset(slot for slot in slots if slot is not None),
            )
            for batch_id, (place, slots) in found.items()
        ]

    def waiting(
        self, *, busy: Mapping[str, Collection[int]], closed: Collection[str]
    ) -> list[Waiting]:
        """The oldest rows that may be sent: none of `closed` topics, none whose slot is
        `busy` in its topic.

        Those behind a failed message of their key are put aside.
        """
        with transaction.atomic(using=self.alias):
            self._renew()
            rows = self._rows.filter(state=WAITING).exclude(topic__in=closed)
            for topic, slots in busy.items():
                rows = rows.exclude(
                    Q(topic=topic, slot__isnull=False, slot__in=sorted(slots))
                )
            fields = rows.order_by("id").values_list(*Waiting._fields)
            found = [Waiting(*row) for row in fields[:LOOK_AT]]
            stuck = self._stuck()
            behind = [
                row.id
                for row in found
                if row.key is not None and (row.topic, row.key) in stuck
            ]
            if behind:
                self._rows.filter(pk__in=behind).update(state=HELD)
        return [
            row for row in found if row.key is None or (row.topic, row.key) not in stuck
        ]

    def _stuck(self) -> set[tuple[str, str | None]]:
        """(topic, key) of the failed rows; compared here, because databases may not tell A
        from a.
        """
        failed = self._rows.filter(state=FAILED, key__isnull=False)
        return set(failed.values_list("topic", "key"))

    def claim(self, batches: Mapping[Place, Sequence[int]]) -> set[uuid.UUID]:
        """Write down, before anything is sent, which rows go together, where, and under
        which id.
        """
        made: set[uuid.UUID] = set()
        with transaction.atomic(using=self.alias):
            self._renew()
            for place, ids in batches.items():
                batch_id = uuid.UUID(uuid7())
                chosen = self._rows.filter(pk__in=ids, state=WAITING)
                # Before the first send: a batch that is repeated has to be the same.
                chosen.filter(deliver_at_ms__lt=_passed_ms()).update(deliver_at_ms=None)
                chosen.update(state=CLAIMED, batch_id=batch_id, queue=place.queue)
                made.add(batch_id)
        return made

    def messages(self, claimed: Claimed) -> tuple[list[int], list[dict[str, Any]]]:
        """(ids, messages as they go on the wire) of a batch; the same at every call."""
        rows = list(self._rows.filter(batch_id=claimed.batch_id).order_by("id"))
        return [row.pk for row in rows], [_on_the_wire(row) for row in rows]

    def sent(self, ids: Sequence[int], batch_id: uuid.UUID) -> int:
        """Delete what has a receipt; needs no lease, because it is stored whoever asks."""
        deleted, _ = self._rows.filter(pk__in=ids, batch_id=batch_id).delete()
        return deleted

    def let_go(self, claimed: Claimed) -> None:
        """Make rows waiting again that were refused for certain: they may go elsewhere,
        under another id.
        """
        with transaction.atomic(using=self.alias):
            self._renew()
            batch = self._rows.filter(batch_id=claimed.batch_id)
            batch.update(state=WAITING, batch_id=None, queue=None)

    def fail(self, claimed: Claimed, errors: Mapping[int, str]) -> None:
        """Mark rows that were refused for good (id → why).

        The others of the batch wait again, as do those whose time of delivery has passed
        meanwhile.
        """
        with transaction.atomic(using=self.alias):
            self._renew()
            for pk, error in errors.items():
                row = self._rows.filter(pk=pk, batch_id=claimed.batch_id)
                if not row.filter(deliver_at_ms__lt=_passed_ms()).update(
                    deliver_at_ms=None
                ):
                    row.update(
                        state=FAILED, batch_id=None, queue=None, error=error[:MAX_ERROR]
                    )
            batch = self._rows.filter(batch_id=claimed.batch_id)
            batch.update(state=WAITING, batch_id=None, queue=None)


def _on_the_wire(row: OutboxMessage) -> dict[str, Any]:
    given = {"key": row.key, "tag": row.tag, "trace_id": row.trace_id, "queue": row.queue}
    given |= {"deliver_at_ms": row.deliver_at_ms}
    return {
        "body_bytes": bytes(row.body),
        "headers": json.loads(row.headers),
        **{name: value for name, value in given.items() if value is not None},
    }


def _passed_ms() -> int:
    return time.time_ns() // 1_000_000 - PASSED_MS


def counts(*, using: str | None = None) -> Counts:
    rows = OutboxMessage.objects.using(using or router.db_for_write(OutboxMessage))
    return Counts(
        *(rows.filter(state=state).count() for state in (WAITING, CLAIMED, FAILED, HELD))
    )


def failed(*, using: str | None = None, most: int = 1_000) -> list[Failed]:
    """The messages that were refused for good, the oldest first."""
    rows = OutboxMessage.objects.using(using or router.db_for_write(OutboxMessage))
    listed = rows.filter(state=FAILED).order_by("id")[:most]
    held = Counter(rows.filter(state=HELD, key__isnull=False).values_list("topic", "key"))
    return [
        Failed(
            row.pk,
            row.topic,
            row.key,
            row.created_at,
            row.error,
            held[row.topic, row.key],
        )
        for row in listed.defer("body", "headers")
    ]


def retry(ids: Iterable[int] | None, *, using: str | None = None) -> int:
    """Let failed messages (None: all) go again, and those behind them; return the number
    that had failed.
    """
    return _end_failures(ids, using, discard=False)


def discard(ids: Iterable[int], *, using: str | None = None) -> int:
    """Delete failed messages, which then never exist, and let those behind them go; return
    their number.
    """
    return _end_failures(ids, using, discard=True)


def _end_failures(ids: Iterable[int] | None, using: str | None, *, discard: bool) -> int:
    alias = using or router.db_for_write(OutboxMessage)
    rows = OutboxMessage.objects.using(alias)
    relays = OutboxRelay.objects.using(alias)
    with transaction.atomic(using=alias):
        # The relay puts rows aside under this lock, by the failures it sees: none may end
        # meanwhile. Nothing
        # is read before it: MariaDB may refuse to lock what changed since a transaction's
        # first read.
        if not relays.filter(pk=1).update(id=1):
            relays.get_or_create(pk=1)
        chosen = rows.filter(state=FAILED)
        if ids is not None:
            chosen = chosen.filter(pk__in=list(ids))
        ended = chosen.delete()[0] if discard else chosen.update(state=WAITING, error="")
        # those still behind a failed one are put aside again
        rows.filter(state=HELD).update(state=WAITING)
    return ended
