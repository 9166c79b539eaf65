"""Pulls of Java clients: when each queue was last pulled, and clients that must restart
queues.

A Java client *polls* for its assignment, and *pulls* the messages of each queue with a thread
of its own. It can lose such a thread without noticing, and then still polls: CatMQ's client
loses it after two failed pulls. So a queue that its owner stopped pulling is found here, and
the answer to the owner's next poll orders it to restart the queue.

Pulls arrive at all processes of all brokers, so each process notes them in memory and writes
them in batches (`java_pulled_at`). A queue is watched from the first pull of its owner on. An
order to restart it ends the watch until the next pull. So an owner that cannot pull a queue
gets a single order, and an owner that loses the thread again gets another.

In broadcasting groups queues have no owner, so nothing is noted.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

from django.db.models import BigIntegerField, Case, F, Value, When
from msgspec import Struct

from metadata.db.clock import UtcNow, before, database_now
from metadata.db.consumer_ids import ConsumerId, check
from metadata.db.transactions import reachable, transactional
from metadata.grouping import chunks
from metadata.membership import java_members
from metadata.models import ConsumerGroupConsumer, QueueOffset

FLUSH_S = 15.0  # pause between two flushes
# Without a pull for this time, a queue is silent. A client pulls each queue at least every 9 s,
# or as soon as its last pull was answered.
SILENT_S = 60.0
# A client that polled within this time is alive. The times of polls are written every 15 s.
POLLED_S = 30.0
MAX_NOTED = 100_000  # queues with a pull that was not written yet
MAX_ROWS = 500  # per statement
MAX_SILENT = 1_000  # silent queues that a call returns


class SilentQueue(Struct, frozen=True):
    """A queue that its owner stopped pulling, although it still polls for its assignment.

    All messages below `delivered_end` were delivered to it.
    """

    consumer: ConsumerId
    queue: int
    delivered_end: int


_lock = threading.Lock()
# (member id, queue id) → end of the messages that were delivered, since the last flush
_noted: dict[tuple[int, int], int] = {}


def note(consumer: ConsumerId, queue: int, delivered_end: int = 0) -> None:
    """Note a pull, and the end of the messages that it returned."""
    # An instance of a broadcasting group: its queues have no owner.
    if consumer.instance_id:
        return
    with _lock:
        if len(_noted) < MAX_NOTED:
            _noted[consumer.member_id, queue] = max(
                delivered_end, _noted.get((consumer.member_id, queue), 0)
            )


def flush() -> None:
    """Write the noted pulls. Raises MetadataUnavailable; then they are lost, but more
    pulls follow.
    """
    with _lock:
        noted = dict(_noted)
        _noted.clear()
    for keys in chunks(sorted(noted), MAX_ROWS):
        _write_pulls({key: noted[key] for key in keys})


@transactional
def _write_pulls(noted: Mapping[tuple[int, int], int]) -> None:
    members, queues = {member for member, _ in noted}, {queue for _, queue in noted}
    rows = QueueOffset.objects.filter(owner__in=sorted(members), queue__in=sorted(queues))
    # Locked rows are skipped, so that this never waits for a rebalance. Their next pull is
    # written instead.
    unlocked = rows.order_by("pk").select_for_update(skip_locked=True)
    columns = unlocked.values_list("pk", "owner_id", "queue_id", "java_given")
    delivered_ends = {
        pk: (noted[owner, queue], stored_end)
        for pk, owner, queue, stored_end in columns
        if (owner, queue) in noted
    }
    QueueOffset.objects.filter(pk__in=sorted(delivered_ends)).update(
        java_pulled_at=UtcNow()
    )
    advanced = [
        When(pk=pk, then=Value(noted_end))
        for pk, (noted_end, stored_end) in sorted(delivered_ends.items())
        if noted_end > stored_end
    ]
    if advanced:
        stored_ends = Case(
            *advanced, default=F("java_given"), output_field=BigIntegerField()
        )
        QueueOffset.objects.filter(pk__in=sorted(delivered_ends)).update(
            java_given=stored_ends
        )


def find_silent_queues() -> list[SilentQueue]:
    """Return queues that were pulled before, but not for SILENT_S, and whose owners still
    poll.
    """
    with reachable():
        now = database_now()
        rows = QueueOffset.objects.filter(
            java_pulled_at__lt=before(now, seconds=SILENT_S),
            owner__java_id__isnull=False,
            owner__java_polled_at__gt=before(now, seconds=POLLED_S),
            target=F("owner"),  # not while the owner must release the queue
        )
        columns = rows.values_list("owner__consumer_id", "queue_id", "java_given")[
            :MAX_SILENT
        ]
        return [
            SilentQueue(check(consumer_id), queue, delivered_end)
            for consumer_id, queue, delivered_end in columns
        ]


@transactional
def order_restart(*, consumer: ConsumerId, queues: Iterable[int]) -> bool:
    """Order a client, in the answer to its next poll, to stop and restart some queues.

    Return False if another answer was stored meanwhile, or the membership has ended.
    """
    rows = ConsumerGroupConsumer.objects.filter(
        pk=consumer.member_id, consumer_id=consumer.text
    )
    columns = rows.values_list("java_id", "java_version", "java_told").first()
    if columns is None:
        return False
    java_id, version, answer = columns[0], columns[1], dict(columns[2] or {})
    java_members.forget_client(java_id or 0)
    # A higher `rb_version` in its answer makes the client stop and restart its queues.
    answer |= {"rb_version": answer.get("rb_version", 0) + 1}
    # Guarded by the version of the stored answer: each answer with news has a higher one.
    if not rows.filter(java_version=version).update(
        java_version=version + 1, java_told=answer
    ):
        return False
    # Without a time of a pull the queues are not watched until they are pulled again.
    QueueOffset.objects.filter(owner=consumer.member_id, queue__in=list(queues)).update(
        java_pulled_at=None
    )
    return True
