"""Lag of groups by queue, in messages and in time, as read from the nodes."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, structs

from messagestore import sweeping
from messagestore.engine.mysql_session import Session
from messagestore.heads import durability
from messagestore.heads.gap_check import count_messages
from messagestore.pool import node_pools
from messagestore.tables import message_sql, node_sql, promotion_sql, reader_sql
from messagestore.tables.shares import run_sql
from metadata import actors
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.errors import CatmqError, NodeUnavailable
from metadata.grouping import grouped
from metadata.groups import commits, ownership, subscribers
from metadata.groups.ownership import QueueOwner
from metadata.groups.subscribers import SubscriptionId
from metadata.monitoring import lag_trends, metrics_history
from metadata.monitoring.lag_trends import GroupProgress, Lag
from metadata.rules.groups.commits import PositionSample

log = logging.getLogger(__name__)
PASS_S = 50.0  # longest pass of record(); its job runs every minute


class QueueLag(Struct, frozen=True):
    """Offsets and lag of a group in a queue.

    Fields that are read from the node are None if the node is unavailable.
    `lag` is head - committed, without declared gaps and without messages that retention
    deleted.
    `lag_ms` is the age of the first unread message by the node's clock, 0 if there is none.
    `owner` is the member's name. `instance` is None unless the group is broadcasting.
    The node was read between `asked_ms` and `told_ms`, both by its own clock.

    Only for a share group: the number of `runs`, the messages in them (`in_flight`), how
    many of these were delivered before (`redelivered`), and the age of the oldest lease.
    The lag of a share group is not counted from `committed`, because messages above that
    offset may be finished.
    """

    topic: str
    queue: int
    number: int
    instance: str | None
    owner: str | None
    epoch: int
    committed: int | None = None
    head: int | None = None
    low: int | None = None
    lag: int | None = None
    lag_ms: int | None = None
    runs: int | None = None
    in_flight: int | None = None
    redelivered: int | None = None
    oldest_lease_ms: int | None = None
    asked_ms: int | None = None
    told_ms: int | None = None


def group_offsets(*, group: str, actor: Actor) -> list[QueueLag]:
    """Return offsets and lag of each queue of the group, by topic, number and instance.

    Needs any right on the group. Raises NotFound.
    """
    owned = ownership.list_queues(group=group, actor=actor)
    lags: dict[QueueOwner, QueueLag] = {}
    for node_id, rows in sweeping.group_by_node(owned).items():
        try:
            lags |= _read_node(node_id, rows)
        except NodeUnavailable as error:
            # Its queues are listed all the same, without the figures of the node.
            log.warning("Lag could not be read from node %d: %s", node_id, error.detail)
    return [lags.get(row) or _unknown(row) for row in owned]


def standing(*, group: str, actor: Actor) -> tuple[list[QueueLag], GroupProgress | None]:
    """Return the group_offsets() of a group and its progress, None if it was deleted
    meanwhile.
    """
    offsets = group_offsets(group=group, actor=actor)
    return offsets, lag_trends.read_group_progress(group=group, lags=by_topic(offsets))


def by_topic(offsets: Iterable[QueueLag]) -> dict[str, Lag]:
    """Return the lag of a group in each topic. It is unknown if that of any queue is.

    In a broadcasting group it is the lag of the slowest instance.
    """
    lags = {}
    for topic, rows in grouped((row.topic, row) for row in offsets).items():
        messages: dict[str | None, int] = {}  # by instance, which is None in other groups
        for row in rows:
            messages[row.instance] = messages.get(row.instance, 0) + (row.lag or 0)
        if any(row.lag is None for row in rows):
            lags[topic] = Lag(None, None)
        else:
            lags[topic] = Lag(max(messages.values()), max(row.lag_ms or 0 for row in rows))
    return lags


def record(*, pass_s: float = PASS_S) -> int:
    """Record lag and positions of all subscriptions, the least recently recorded first.

    A pass takes at most `pass_s` seconds. Return the number of recorded backlogs. Values of
    an unavailable node stay as recorded before.
    """
    ends_at = time.monotonic() + pass_s
    count = 0
    for group, subscriptions in subscribers.subscriptions_by_lag_age():
        if time.monotonic() > ends_at:
            break
        try:
            offsets = group_offsets(group=group, actor=actors.job("record_lag"))
        except CatmqError as error:
            log.warning(
                "Lag of group %s could not be recorded, will retry: %s", group, error.detail
            )
            continue
        # Of topics whose queues were all read.
        lags = by_topic(offsets)
        backlogs = [
            metrics_history.Backlog(
                s.id, s.group_id, s.topic_id, lag.messages, lag.oldest_ms or 0
            )
            for s in subscriptions
            if (lag := lags.get(s.topic)) is not None and lag.messages is not None
        ]
        count += metrics_history.record_lag(backlogs)
        commits.record_positions(_sample_positions(offsets, subscriptions))
    return count


def _sample_positions(
    offsets: Sequence[QueueLag], subscriptions: Sequence[SubscriptionId]
) -> list[commits.GroupPositions]:
    """Return the committed offsets of a group by topic, of the queues that were read."""
    topic_positions = []
    for subscription in subscriptions:
        samples: dict[int, PositionSample] = {}
        rows = [row for row in offsets if row.topic == subscription.topic]
        for row in rows:
            if (
                row.committed is not None
                and row.asked_ms is not None
                and row.told_ms is not None
            ):
                sample = PositionSample(row.committed, row.asked_ms, row.told_ms)
                # In a broadcasting group a queue has a row for each instance: the slowest
                # counts.
                samples[row.queue] = min(samples.get(row.queue, sample), sample)
        if samples:
            topic_positions.append(
                commits.GroupPositions(
                    subscription.topic_id,
                    subscription.group_id,
                    samples,
                    all(row.lag == 0 for row in rows),
                )
            )
    return topic_positions


def _read_node(node_id: int, rows: Sequence[QueueOwner]) -> dict[QueueOwner, QueueLag]:
    """Read the lag of queues of a node. Raises NodeUnavailable."""
    lags: dict[QueueOwner, QueueLag] = {}
    with node_pools.node(node_id).reading() as session:
        # The first clock reading precedes every offset, and `told_ms` follows them: so both
        # bound the moment at which a committed offset was read.
        clock = _Clock(session)
        gaps = promotion_sql.read_all_gaps(
            session, queues=sorted({row.queue for row in rows})
        )
        for reader, reader_rows in grouped((row.reader, row) for row in rows).items():
            queues = [row.queue for row in reader_rows]
            positions = reader_sql.read_positions(
                session, group_id=reader_rows[0].group_id, queues=queues, instance=reader
            )
            for row in reader_rows:
                lags[row] = _unknown(row)
                position = positions.get(row.queue)
                if position is None or position.committed is None:
                    continue
                # Messages below `low` were deleted by retention. They cannot be read, so
                # they are no lag.
                first_unread = max(position.committed, position.low)
                has_unread = first_unread < position.head
                lags[row] = structs.replace(
                    lags[row],
                    committed=position.committed,
                    head=position.head,
                    low=position.low,
                    lag=count_messages(
                        first_unread, position.head, gaps=gaps.get(row.queue, ())
                    )
                    if has_unread
                    else position.head - first_unread,
                    lag_ms=clock.age_ms(row.queue, first_unread) if has_unread else 0,
                    asked_ms=clock.now,
                )
        told_ms = node_sql.now_ms(session)
        _add_leases(session, lags, gaps)
    heads = {row.queue: lag.head for row, lag in lags.items() if lag.head is not None}
    # The heads must be durable before they are shown, as for a pull. The session was
    # returned before, because the barrier borrows a session of its own.
    durability.confirm(node_id=node_id, heads=heads)
    return {
        row: structs.replace(queue_lag, told_ms=told_ms) for row, queue_lag in lags.items()
    }


def _add_leases(
    session: Session,
    lags: dict[QueueOwner, QueueLag],
    gaps: Mapping[int, Sequence[tuple[int, int]]],
) -> None:
    """Replace the lags of queues of share groups by those that count leases."""
    groups = snapshot.current().groups
    for group_id, group_rows in grouped((row.group_id, row) for row in lags).items():
        group = groups.get(group_id)
        if group is None or not group.is_share:
            continue
        leases_by_queue = run_sql.count_leases(
            session, group_id=group_id, queues=[row.queue for row in group_rows]
        )
        for row in group_rows:
            lag, leases = lags[row], leases_by_queue.get(row.queue)
            if leases is None or lag.head is None:
                continue
            first_unleased = max(leases.next_offset, lag.low or 0)
            unleased = count_messages(
                first_unleased, lag.head, gaps=gaps.get(row.queue, ())
            )
            # A node stores when a lease ends. It began `lease_ms` before.
            oldest_ms = (
                None
                if leases.oldest_left_ms is None
                else max(0, group.lease_ms - leases.oldest_left_ms)
            )
            lags[row] = structs.replace(
                lag,
                lag=unleased + leases.in_flight,
                runs=leases.runs,
                in_flight=leases.in_flight,
                redelivered=leases.redelivered,
                oldest_lease_ms=oldest_ms,
            )


class _Clock:
    """Ages of a node's messages by the node's clock.

    Each age is looked up once, because many instances of a group may wait at the same
    message.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.now = node_sql.now_ms(session)
        self._stored: dict[tuple[int, int], int | None] = {}

    def age_ms(self, queue: int, offset: int) -> int:
        """Return the age of the first message at or above the offset in ms, 0 if there is
        none.
        """
        if (queue, offset) not in self._stored:
            stored_at = message_sql.read_stored_at_ms(
                self._session, queue=queue, offset=offset
            )
            self._stored[queue, offset] = stored_at
        stored_at = self._stored[queue, offset]
        return 0 if stored_at is None else max(0, self.now - stored_at)


def _unknown(row: QueueOwner) -> QueueLag:
    """Return the lag of a queue whose node was not read: only what metadata knows."""
    return QueueLag(row.topic, row.queue, row.number, row.instance, row.owner, row.epoch)
