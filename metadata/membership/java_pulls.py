"""Pulls of Java clients: when each queue was pulled last and how far, and clients told to
start again.

A client may have lost the threads that pull and not know it: CatMQ's lose them after two
failed pulls. Pulls come to all processes of all brokers, so each notes them in memory and
writes them down in batches. A queue is watched once its owner has pulled it. Telling the
owner to start again ends that, so one that cannot pull a queue is told so once, and one
that loses its threads again is told again.

In broadcasting groups a queue has no owner, so nothing is noted.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from django.db.models import BigIntegerField, Case, F, Value, When

from metadata.db.clock import UtcNow, before, database_now
from metadata.db.consumer_ids import ConsumerId, check
from metadata.db.transactions import reachable, transactional
from metadata.grouping import chunks
from metadata.membership import java_members
from metadata.models import ConsumerGroupConsumer, QueueOffset

FLUSH_S = 15.0
# without a pull; they pull every 9 s at most, and those that wait as long as we let them
SILENT_S = 60.0
POLLED_S = 30.0  # polls are noted every 15 s
MOST_NOTED = 100_000
MOST_ROWS = 500  # of one statement
MOST_SILENT = 1_000


@dataclass(frozen=True, slots=True)
class SilentQueue:
    """A queue that its owner, who polls, has not pulled for long; it was given all messages
    below `given`.
    """

    consumer: ConsumerId
    queue: int
    given: int


_guard = threading.Lock()
_noted: dict[
    tuple[int, int], int
] = {}  # (member, queue) → the end of what it was given, since the last flush


def note(consumer: ConsumerId, queue: int, given: int = 0) -> None:
    """Note a pull, and the end of the messages that it was given."""
    if consumer.instance_id:
        return
    with _guard:
        if len(_noted) < MOST_NOTED:
            _noted[consumer.member_id, queue] = max(
                given, _noted.get((consumer.member_id, queue), 0)
            )


def flush() -> None:
    """Write down what was noted. Raises MetadataUnavailable, and then that is lost: more
    pulls come.
    """
    with _guard:
        noted = dict(_noted)
        _noted.clear()
    for some in chunks(sorted(noted), MOST_ROWS):
        _write({one: noted[one] for one in some})


@transactional
def _write(noted: Mapping[tuple[int, int], int]) -> None:
    """Rows that somebody has locked are left to the next flush: no rebalance waits for
    this.
    """
    members, queues = {member for member, _ in noted}, {queue for _, queue in noted}
    rows = QueueOffset.objects.filter(owner__in=sorted(members), queue__in=sorted(queues))
    free = rows.order_by("pk").select_for_update(skip_locked=True)
    found = free.values_list("pk", "owner_id", "queue_id", "java_given")
    mine = {
        pk: (noted[owner, queue], given)
        for pk, owner, queue, given in found
        if (owner, queue) in noted
    }
    QueueOffset.objects.filter(pk__in=sorted(mine)).update(java_pulled_at=UtcNow())
    further = [
        When(pk=pk, then=Value(new))
        for pk, (new, given) in sorted(mine.items())
        if new > given
    ]
    if further:
        known = Case(*further, default=F("java_given"), output_field=BigIntegerField())
        QueueOffset.objects.filter(pk__in=sorted(mine)).update(java_given=known)


def find_silent_queues() -> list[SilentQueue]:
    """Return queues that were pulled once, and not for SILENT_S, of owners that poll."""
    with reachable():
        now = database_now()
        rows = QueueOffset.objects.filter(
            java_pulled_at__lt=before(now, seconds=SILENT_S),
            owner__java_id__isnull=False,
            owner__java_polled_at__gt=before(now, seconds=POLLED_S),
            target=F("owner"),
        )
        found = rows.values_list("owner__consumer_id", "queue_id", "java_given")[
            :MOST_SILENT
        ]
        return [SilentQueue(check(text), queue, given) for text, queue, given in found]


@transactional
def order_restart(*, consumer: ConsumerId, queues: Iterable[int]) -> bool:
    """Tell a client to stop and start its queues with its next poll; False if it was told
    something now.
    """
    rows = ConsumerGroupConsumer.objects.filter(
        pk=consumer.member_id, consumer_id=consumer.text
    )
    found = rows.values_list("java_id", "java_version", "java_told").first()
    if found is None:
        return False
    java_id, version, told = found[0], found[1], dict(found[2] or {})
    java_members.forget_client(java_id or 0)
    told |= {"rb_version": told.get("rb_version", 0) + 1}
    if not rows.filter(java_version=version).update(
        java_version=version + 1, java_told=told
    ):
        return False
    QueueOffset.objects.filter(owner=consumer.member_id, queue__in=list(queues)).update(
        java_pulled_at=None
    )
    return True
