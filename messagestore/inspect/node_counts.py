"""Figures of all groups and topics for /metrics, with a few round trips per node.

Positions and heads are on the nodes, so these figures need no metadata but the snapshot.
Figures of a node that does not answer are left out instead of zero. The lag is that of
`lag.group_offsets`. Heads may be above the durable ones, because they decide about no
delivery.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from messagestore import sweeping
from messagestore.engine.mysql_session import Session
from messagestore.heads.gap_check import count_messages
from messagestore.tables import delayed_sql, node_sql
from messagestore.tables.node_sql import NodeFigures
from messagestore.tables.shares import run_sql
from metadata.cache import snapshot
from metadata.cache.snapshot_types import NodeInfo, Snapshot, TopicInfo
from metadata.rules.groups.states import SubscriptionState
from metadata.rules.nodes import NodeKind
from metadata.rules.topics.states import STATES_WITHOUT_TABLE, TopicKind, TopicState


class TopicLag(msgspec.Struct):
    """The lag of a group in a topic.

    `seconds` is the age of the oldest unread message, None if it is unknown.
    """

    topic: str
    messages: int
    seconds: float | None


class GroupFigures(msgspec.Struct):
    """A group: its lag by topic, and the number of its retries that are not handled yet.

    If a queue of a topic did not answer, the topic is left out and `retries` is None.
    """

    id: int
    name: str
    lags: list[TopicLag]
    retries: int | None


class Figures(msgspec.Struct):
    """The groups with the largest lag, and the topics with the most messages.

    Each topic has its (queue, log end offset)s. `groups_left_out` and `topics_left_out`
    count the rest. `delayed_late_s` is the time since the oldest delayed message was due, by
    the name of its node, 0 if none is late.
    """

    groups: list[GroupFigures]
    groups_left_out: int
    topics: list[tuple[str, list[tuple[int, int]]]]
    topics_left_out: int
    delayed_late_s: dict[str, float] = {}


@dataclass(slots=True)
class _NodeAnswers:
    """Figures that the nodes returned, by queue, group or node."""

    bounds: dict[int, tuple[int, int]] = field(default_factory=dict)
    gaps: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    readers: dict[int, dict[str, dict[int, int]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(dict))
    )
    now_ms: dict[int, int] = field(default_factory=dict)
    waiting: dict[int, dict[int, int]] = field(default_factory=dict)
    # see run_sql.read_leased
    leased: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    delayed_late_s: dict[str, float] = field(default_factory=dict)

    def take(self, node_id: int, figures: NodeFigures) -> None:
        """Add the figures of a node."""
        self.bounds |= figures.bounds
        self.gaps |= figures.gaps
        self.now_ms[node_id] = figures.now_ms
        for group_id, instance, queue, committed in figures.readers:
            self.readers[group_id][instance][queue] = committed

    def first_unread(self, queue: int, committed: int) -> int:
        """Return the offset that a group reads next: at least the log start offset."""
        return max(committed, self.bounds[queue][1])

    def unread(self, group_id: int, queue: int, committed: int) -> int:
        """Return the number of messages up to the head that a group has not committed or
        finished.
        """
        next_offset, in_leases = self.leased.get((group_id, queue), (committed, 0))
        first, head = self.first_unread(queue, next_offset), self.bounds[queue][0]
        return in_leases + (
            count_messages(first, head, gaps=self.gaps.get(queue, ()))
            if first < head
            else 0
        )


class Reader:
    """Reads figures repeatedly.

    It caches the storage time of each group's first unread message, so groups that do not
    move cost no look-up.
    """

    def __init__(self) -> None:
        self._stored: dict[tuple[int, int], int | None] = {}

    def read(self, *, most: int) -> Figures:
        """Return figures of at most `most` groups, and as many topics. Raises
        MetadataUnavailable.
        """
        current = snapshot.current()
        nodes = _NodeAnswers()

        def read(session: Session, info: NodeInfo) -> None:
            nodes.take(info.id, node_sql.read_figures(session))
            nodes.leased |= run_sql.read_leased(session)
            due_in_ms = delayed_sql.read_delayed_queues(session).values()
            nodes.delayed_late_s[info.name] = max(0, -min(due_in_ms, default=0)) / 1000
            if info.kind == NodeKind.FAILURE:
                nodes.waiting[info.id] = node_sql.count_delayed_of_queues(session)

        sweeping.query_nodes(
            sweeping.online_nodes(), read, subject="Lag", level=logging.INFO
        )
        # The largest lag first, so that the limit leaves out the groups that matter least.
        groups_by_lag: list[tuple[int, int, dict[int, int]]] = []
        for group_id in current.groups:
            lags = _count_unread(current, nodes, group_id)
            groups_by_lag.append((-sum(lags.values()), group_id, lags))
        groups_by_lag.sort(key=lambda entry: entry[:2])
        listed = groups_by_lag[:most]
        self._read_stored_times(
            current, nodes, [group_id for _lag, group_id, _lags in listed]
        )
        topics = []
        for topic in current.topics.values():
            ends = [
                (queue, nodes.bounds[queue][0])
                for queue in _readable_queues(current, topic)
                if queue in nodes.bounds
            ]
            if topic.kind == TopicKind.NORMAL and topic.state == TopicState.READY and ends:
                topics.append((topic.name, ends))
        # Topics with the most messages first.
        topics.sort(key=lambda entry: (-sum(end for _queue, end in entry[1]), entry[0]))
        return Figures(
            groups=[
                GroupFigures(
                    id=group_id,
                    name=current.groups[group_id].name,
                    lags=[
                        TopicLag(
                            topic.name,
                            lags[topic.id],
                            self._oldest_age_s(current, nodes, group_id, topic),
                        )
                        for topic in (current.topics[topic_id] for topic_id in lags)
                        if topic.failure_of is None
                    ],
                    retries=_count_retries(current, nodes, group_id, lags),
                )
                for _lag, group_id, lags in listed
            ],
            groups_left_out=len(groups_by_lag) - len(listed),
            topics=topics[:most],
            topics_left_out=max(0, len(topics) - most),
            delayed_late_s=nodes.delayed_late_s,
        )

    def _read_stored_times(
        self, current: Snapshot, nodes: _NodeAnswers, group_ids: Iterable[int]
    ) -> None:
        """Read from the nodes when the first unread messages of some groups were stored."""
        positions_by_node: dict[int, set[tuple[int, int]]] = defaultdict(set)
        for group_id in group_ids:
            for position in _first_unread_positions(current, nodes, group_id):
                positions_by_node[current.queues[position[0]].node_id].add(position)
        # A position keeps its time while the group does not move. Others are dropped, so
        # that the cache stays as small as the list of groups.
        wanted_positions = set().union(*positions_by_node.values())
        self._stored = {
            position: stored_ms
            for position, stored_ms in self._stored.items()
            if stored_ms is not None and position in wanted_positions
        }

        def read(session: Session, positions: set[tuple[int, int]]) -> None:
            self._stored |= dict(
                node_sql.read_stored_times(
                    session, places=sorted(positions - self._stored.keys())
                )
            )

        sweeping.query_nodes(
            positions_by_node, read, subject="Age of unread messages", level=logging.INFO
        )

    def _oldest_age_s(
        self, current: Snapshot, nodes: _NodeAnswers, group_id: int, topic: TopicInfo
    ) -> float | None:
        """Return the age of the oldest unread message, None if a queue did not answer."""
        oldest_ms = 0
        for queue, offset in _first_unread_positions(current, nodes, group_id, topic):
            if (queue, offset) not in self._stored:
                return None
            stored_ms = self._stored[queue, offset]
            if stored_ms is not None:
                # The node's own clock set the storage time.
                oldest_ms = max(
                    oldest_ms, nodes.now_ms[current.queues[queue].node_id] - stored_ms
                )
        return oldest_ms / 1000


def _readable_queues(current: Snapshot, topic: TopicInfo) -> list[int]:
    """Return the queues of a topic that can be read."""
    # A queue in creation has no messages, and a retired queue is not read any more.
    return [
        queue
        for queue in topic.queues
        if queue in current.queues
        and current.queues[queue].state not in STATES_WITHOUT_TABLE
    ]


def _count_unread(current: Snapshot, nodes: _NodeAnswers, group_id: int) -> dict[int, int]:
    """Return {topic id: unread messages} of a group.

    With several instances it is the largest number. Topics of which a queue did not answer
    are left out.
    """
    unread_by_topic = {}
    for subscription in current.subscriptions_of(group_id):
        topic = current.topics.get(subscription.topic_id)
        if topic is None or subscription.state != SubscriptionState.READY:
            continue
        queues = _readable_queues(current, topic)
        # A node did not answer, so the sum would be too low.
        if not all(queue in nodes.bounds for queue in queues):
            continue
        # Each instance of a broadcasting group has positions of its own.
        unread_by_instance = [
            sum(nodes.unread(group_id, queue, committed[queue]) for queue in queues)
            for committed in nodes.readers[group_id].values()
            if all(queue in committed for queue in queues)
        ]
        if unread_by_instance:
            unread_by_topic[topic.id] = max(unread_by_instance)
    return unread_by_topic


def _first_unread_positions(
    current: Snapshot, nodes: _NodeAnswers, group_id: int, topic: TopicInfo | None = None
) -> set[tuple[int, int]]:
    """Return (queue, first unread offset)s of a group, in a topic or in all, where messages
    are unread.
    """
    topics = (
        [topic]
        if topic
        else [current.topics.get(s.topic_id) for s in current.subscriptions_of(group_id)]
    )
    readable = {
        queue
        for t in topics
        if t and t.failure_of is None
        for queue in _readable_queues(current, t)
    }
    return {
        (queue, nodes.first_unread(queue, offset))
        for committed in nodes.readers[group_id].values()
        for queue, offset in committed.items()
        if queue in readable
        and queue in nodes.bounds
        and nodes.unread(group_id, queue, offset)
    }


def _count_retries(
    current: Snapshot, nodes: _NodeAnswers, group_id: int, lags: Mapping[int, int]
) -> int | None:
    """Return the number of failed messages that wait or are unread, None if a node did not
    answer.
    """
    retries = 0
    for subscription in current.subscriptions_of(group_id):
        topic = current.topics.get(subscription.topic_id)
        if topic is None or topic.failure_of is None:
            continue
        if topic.id not in lags:
            return None
        retries += lags[topic.id]
        for queue in _readable_queues(current, topic):
            waiting = nodes.waiting.get(current.queues[queue].node_id)
            if waiting is None:
                return None
            retries += waiting.get(queue, 0)
    return retries
