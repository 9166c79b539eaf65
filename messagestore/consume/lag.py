"""Lag: how far behind a group is, per queue, in messages and in time, read from the nodes."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from messagestore import sweeping
from messagestore.engine.mysql_session import Session
from messagestore.heads import durability
from messagestore.heads.gap_check import left
from messagestore.pool import node_pools
from messagestore.tables import message_sql, node_sql, promotion_sql, reader_sql
from messagestore.tables.shapes import Position
from messagestore.tables.shares import run_sql
from messagestore.tables.shares.run_sql import Standing
from metadata import actors
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.errors import CatmqError, NodeUnavailable
from metadata.grouping import grouped
from metadata.groups import commits, ownership, subscribers
from metadata.groups.ownership import QueueOwner
from metadata.groups.subscribers import Seen
from metadata.monitoring import metrics_history, progress
from metadata.monitoring.progress import GroupProgress, Lag
from metadata.rules.groups.commits import Look

log = logging.getLogger(__name__)
PASS_S = 50.0  # of one pass that records; the job comes every minute


@dataclass(frozen=True, slots=True)
class QueueLag:
    """A queue as a group reads it; what a node that is away would tell is None.

    `lag` = head - committed, without declared gaps and what retention took; `lag_ms` = the node's time
    now - when the first unread message was stored, 0 when there is none. Of a share group: `runs`, the
    messages in them (`in_flight`), those that members have for the second time or later (`redelivered`), and
    how long ago the oldest lease began. Its lag is not counted from `committed`, as messages above that may
    be finished. `owner` is the member's name;
    `instance` the reader's, None unless the group broadcasts. The node was
    asked after `asked_ms` and had told by `told_ms`, of its own clock.
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
    """Every queue the group reads, by topic, number and instance. Needs any right on it; raises NotFound."""
    owned = ownership.queues(group=group, actor=actor)
    lags: dict[QueueOwner, QueueLag] = {}
    for node_id, rows in sweeping.by_node(owned).items():
        try:
            lags |= _of_node(node_id, rows)
        except NodeUnavailable as error:
            log.warning("Lag could not be read from node %d: %s", node_id, error.detail)
    return [lags.get(row) or _unknown(row) for row in owned]


def standing(*, group: str, actor: Actor) -> tuple[list[QueueLag], GroupProgress | None]:
    """The queues of a group as `group_offsets` tells, and how it gets on; None if it went meanwhile."""
    offsets = group_offsets(group=group, actor=actor)
    return offsets, progress.of_group(group=group, lags=by_topic(offsets))


def by_topic(offsets: Iterable[QueueLag]) -> dict[str, Lag]:
    """Return how far a group is behind in each topic; not known where one of its queues is not.

    In a broadcasting group the slowest instance counts.
    """
    rows = grouped((row.topic, row) for row in offsets)
    return {topic: _together(mine) for topic, mine in rows.items()}


def _together(rows: Sequence[QueueLag]) -> Lag:
    readers: dict[str | None, int] = {}
    for row in rows:
        if row.lag is None:
            return Lag(None, None)
        readers[row.instance] = readers.get(row.instance, 0) + row.lag
    return Lag(max(readers.values()), max(row.lag_ms or 0 for row in rows))


def record(*, pass_s: float = PASS_S) -> int:
    """Record the lag and the positions of every subscription, those not seen for longest first; how many.

    One bounded pass. What a node that is away would
    tell stays.
    """
    ends_at = time.monotonic() + pass_s
    count = 0
    for group, subscriptions in subscribers.least_seen():
        if time.monotonic() > ends_at:
            break
        try:
            offsets = group_offsets(group=group, actor=actors.job("record_lag"))
        except CatmqError as error:
            log.warning("Lag of group %s could not be recorded, will retry: %s", group, error.detail)
            continue
        count += metrics_history.record_lag(_backlogs(offsets, subscriptions))
        commits.note(_positions(offsets, subscriptions))
    return count


def _backlogs(offsets: Sequence[QueueLag], subscriptions: Sequence[Seen]) -> list[metrics_history.Backlog]:
    """Return a group's lag in each of its topics, where all of its queues answered."""
    known = by_topic(offsets)
    return [
        metrics_history.Backlog(one.id, one.group_id, one.topic_id, lag.messages, lag.oldest_ms or 0)
        for one in subscriptions
        if (lag := known.get(one.topic)) is not None and lag.messages is not None
    ]


def _positions(offsets: Sequence[QueueLag], subscriptions: Sequence[Seen]) -> list[commits.Seen]:
    """Return the offsets that a group had committed in each of its topics, in the queues that answered."""
    found = []
    for one in subscriptions:
        looks: dict[int, Look] = {}
        mine = [row for row in offsets if row.topic == one.topic]
        for row in mine:
            if row.committed is not None and row.asked_ms is not None and row.told_ms is not None:
                look = Look(row.committed, row.asked_ms, row.told_ms)
                looks[row.queue] = min(looks.get(row.queue, look), look)
        if looks:
            found.append(commits.Seen(one.topic_id, one.group_id, looks, all(row.lag == 0 for row in mine)))
    return found


def _of_node(node_id: int, rows: Sequence[QueueOwner]) -> dict[QueueOwner, QueueLag]:
    found: dict[QueueOwner, QueueLag] = {}
    with node_pools.node(node_id).reading() as session:
        clock = _Clock(session)
        gaps = promotion_sql.read_all_gaps(session, queues=sorted({row.queue for row in rows}))
        for reader, mine in grouped((row.reader, row) for row in rows).items():
            queues = [row.queue for row in mine]
            positions = reader_sql.read_positions(
                session, group_id=mine[0].group_id, queues=queues, instance=reader
            )
            found |= {
                row: _lag(clock, gaps.get(row.queue, ()), row, positions.get(row.queue)) for row in mine
            }
        told_ms = node_sql.now_ms(session)
        found = _leased(session, found, gaps)
    heads = {row.queue: lag.head for row, lag in found.items() if lag.head is not None}
    durability.confirm(node_id=node_id, heads=heads)
    return {row: replace(one, told_ms=told_ms) for row, one in found.items()}


def _leased(
    session: Session, found: Mapping[QueueOwner, QueueLag], gaps: Mapping[int, Sequence[tuple[int, int]]]
) -> dict[QueueOwner, QueueLag]:
    """The same; of share groups with what is leased."""
    known = snapshot.current().groups
    told = dict(found)
    for group_id, mine in grouped((row.group_id, row) for row in found).items():
        group = known.get(group_id)
        if group is not None and group.is_share:
            standing = run_sql.standing(session, group_id=group_id, queues=[row.queue for row in mine])
            for row in mine:
                if row.queue in standing and found[row].head is not None:
                    told[row] = _shared(
                        found[row], standing[row.queue], gaps.get(row.queue, ()), group.lease_ms
                    )
    return told


def _shared(one: QueueLag, leased: Standing, gaps: Sequence[tuple[int, int]], lease_ms: int) -> QueueLag:
    head, first = one.head or 0, max(leased.next_offset, one.low or 0)
    oldest_ms = None if leased.oldest_left_ms is None else max(0, lease_ms - leased.oldest_left_ms)
    return replace(
        one,
        lag=left(first, head, gaps=gaps) + leased.in_flight,
        runs=leased.runs,
        in_flight=leased.in_flight,
        redelivered=leased.redelivered,
        oldest_lease_ms=oldest_ms,
    )


class _Clock:
    """Ages of a node's messages; each is looked up once, as many instances wait at the same one."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.now = node_sql.now_ms(session)
        self._stored: dict[tuple[int, int], int | None] = {}

    def age_ms(self, queue: int, offset: int) -> int:
        """Of the first message at or above the offset; 0 if there is none."""
        if (queue, offset) not in self._stored:
            stored = message_sql.stored_at_ms(self._session, queue=queue, offset=offset)
            self._stored[queue, offset] = stored
        stored = self._stored[queue, offset]
        return 0 if stored is None else max(0, self.now - stored)


def _unknown(row: QueueOwner) -> QueueLag:
    return QueueLag(row.topic, row.queue, row.number, row.instance, row.owner, row.epoch)


def _lag(
    clock: _Clock, gaps: Sequence[tuple[int, int]], row: QueueOwner, position: Position | None
) -> QueueLag:
    if position is None or position.committed is None:
        return _unknown(row)
    unread = max(position.committed, position.low)
    return replace(
        _unknown(row),
        committed=position.committed,
        head=position.head,
        low=position.low,
        lag=left(unread, position.head, gaps=gaps) if unread < position.head else position.head - unread,
        lag_ms=clock.age_ms(row.queue, unread) if unread < position.head else 0,
        asked_ms=clock.now,
    )
