"""Figures of all groups and topics at once, for /metrics: read from the nodes, a round trip
or two for each.

Positions and heads are on the nodes, so these figures need no metadata but the snapshot.
What a node that is away would tell is left out, not zero. The lag is that of
`lag.group_offsets`; heads are as they were read, durable or not: nobody is served by them.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from messagestore import sweeping
from messagestore.engine.mysql_session import Session
from messagestore.heads.gap_check import left
from messagestore.tables import node_sql
from messagestore.tables.node_sql import NodeFigures
from messagestore.tables.shares import run_sql
from metadata.cache import snapshot
from metadata.cache.snapshot_types import NodeInfo, Snapshot, TopicInfo


class TopicLag(msgspec.Struct):
    """The lag of a group in a topic; `seconds`: age of the oldest unread message, if it is
    known.
    """

    topic: str
    messages: int
    seconds: float | None


class GroupFigures(msgspec.Struct):
    """A group: its lag by topic, and its failed messages that wait, or lie unread, to be
    tried again.

    A topic of which a queue did not answer is left out; `retries` is None then.
    """

    id: int
    name: str
    lags: list[TopicLag]
    retries: int | None


class Figures(msgspec.Struct):
    """The groups furthest behind, and the topics with the most messages, each with (queue,
    log end offset).

    `groups_left_out`, `topics_left_out`: how many more there are.
    """

    groups: list[GroupFigures]
    groups_left_out: int
    topics: list[tuple[str, list[tuple[int, int]]]]
    topics_left_out: int


@dataclass(slots=True)
class _Nodes:
    """The nodes' answers. `stored`: (queue, offset) → when the first unread message there
    was stored.
    """

    bounds: dict[int, tuple[int, int]] = field(default_factory=dict)
    gaps: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    readers: dict[int, dict[str, dict[int, int]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(dict))
    )
    now_ms: dict[int, int] = field(default_factory=dict)
    waiting: dict[int, dict[int, int]] = field(default_factory=dict)
    # see run_sql.read_leased
    leased: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)

    def take(self, node_id: int, said: NodeFigures) -> None:
        self.bounds |= said.bounds
        self.gaps |= said.gaps
        self.now_ms[node_id] = said.now_ms
        for group_id, instance, queue, committed in said.readers:
            self.readers[group_id][instance][queue] = committed

    def first_unread(self, queue: int, committed: int) -> int:
        """The offset that the group reads next: retention may have gone past it."""
        return max(committed, self.bounds[queue][1])

    def unread(self, group_id: int, queue: int, committed: int) -> int:
        """Return how many messages lie from there to the head; of a share group, those not
        finished.
        """
        next_offset, in_leases = self.leased.get((group_id, queue), (committed, 0))
        first, head = self.first_unread(queue, next_offset), self.bounds[queue][0]
        return in_leases + (
            left(first, head, gaps=self.gaps.get(queue, ())) if first < head else 0
        )


class Reader:
    """Reads figures again and again; caches when the messages were stored at which groups
    stand still.
    """

    def __init__(self) -> None:
        self._stored: dict[tuple[int, int], int | None] = {}

    def read(self, *, most: int) -> Figures:
        """The figures of at most so many groups, and as many topics. Raises
        MetadataUnavailable.
        """
        known = snapshot.current()
        nodes = _ask()
        behind: list[tuple[int, int, dict[int, int]]] = []
        for group_id in known.groups:
            lags = _lags(known, nodes, group_id)
            behind.append((-sum(lags.values()), group_id, lags))
        behind.sort(key=lambda one: one[:2])
        kept = behind[:most]
        self._look_up(known, nodes, [group_id for _lag, group_id, _lags in kept])
        topics = _topics(known, nodes)
        return Figures(
            groups=[
                GroupFigures(
                    id=group_id,
                    name=known.groups[group_id].name,
                    lags=[
                        TopicLag(
                            topic.name,
                            lags[topic.id],
                            self._seconds(known, nodes, group_id, topic),
                        )
                        for topic in (known.topics[topic_id] for topic_id in lags)
                        if topic.failure_of is None
                    ],
                    retries=_retries(known, nodes, group_id, lags),
                )
                for _lag, group_id, lags in kept
            ],
            groups_left_out=len(behind) - len(kept),
            topics=topics[:most],
            topics_left_out=max(0, len(topics) - most),
        )

    def _look_up(self, known: Snapshot, nodes: _Nodes, group_ids: Iterable[int]) -> None:
        """Have the nodes say when the first unread messages of some groups were stored."""
        wanted: dict[int, set[tuple[int, int]]] = defaultdict(set)
        for group_id in group_ids:
            for place in _places(known, nodes, group_id):
                wanted[known.queues[place[0]].node_id].add(place)
        before = self._stored
        self._stored = {
            place: before[place]
            for places in wanted.values()
            for place in places
            if before.get(place) is not None
        }

        def read(session: Session, places: set[tuple[int, int]]) -> None:
            self._stored |= dict(
                node_sql.read_stored_times(
                    session, places=sorted(places - self._stored.keys())
                )
            )

        sweeping.query_nodes(
            wanted, read, subject="Age of unread messages", level=logging.INFO
        )

    def _seconds(
        self, known: Snapshot, nodes: _Nodes, group_id: int, topic: TopicInfo
    ) -> float | None:
        """Age of the oldest unread message; None if that of one queue is not known."""
        oldest_ms = 0
        for queue, offset in _places(known, nodes, group_id, topic):
            if (queue, offset) not in self._stored:
                return None
            stored_ms = self._stored[queue, offset]
            if stored_ms is not None:
                oldest_ms = max(
                    oldest_ms, nodes.now_ms[known.queues[queue].node_id] - stored_ms
                )
        return oldest_ms / 1000


def _ask() -> _Nodes:
    nodes = _Nodes()

    def read(session: Session, info: NodeInfo) -> None:
        nodes.take(info.id, node_sql.read_figures(session))
        nodes.leased |= run_sql.read_leased(session)
        if info.kind == "failure":
            nodes.waiting[info.id] = node_sql.count_delayed_of_queues(session)

    sweeping.query_nodes(sweeping.online_nodes(), read, subject="Lag", level=logging.INFO)
    return nodes


def _queues(known: Snapshot, topic: TopicInfo) -> list[int]:
    """Those that are there to be read."""
    states = {
        queue: known.queues[queue].state for queue in topic.queues if queue in known.queues
    }
    return [
        queue for queue, state in states.items() if state not in ("creating", "retired")
    ]


def _lags(known: Snapshot, nodes: _Nodes, group_id: int) -> dict[int, int]:
    """Unread messages of a group by topic, of all instances the most; without topics that
    are not known.
    """
    found = {}
    for one in known.subscriptions_of(group_id):
        topic = known.topics.get(one.topic_id)
        if topic is None or one.state != "ready":
            continue
        queues = _queues(known, topic)
        if not all(queue in nodes.bounds for queue in queues):
            continue
        sums = [
            sum(nodes.unread(group_id, queue, committed[queue]) for queue in queues)
            for committed in nodes.readers[group_id].values()
            if all(queue in committed for queue in queues)
        ]
        if sums:
            found[topic.id] = max(sums)
    return found


def _places(
    known: Snapshot, nodes: _Nodes, group_id: int, topic: TopicInfo | None = None
) -> set[tuple[int, int]]:
    """(Queue, first unread offset) of a group in its topics, or in one, where something is
    unread.
    """
    topics = (
        [topic]
        if topic
        else [known.topics.get(one.topic_id) for one in known.subscriptions_of(group_id)]
    )
    mine = {
        queue
        for one in topics
        if one and one.failure_of is None
        for queue in _queues(known, one)
    }
    return {
        (queue, nodes.first_unread(queue, at))
        for committed in nodes.readers[group_id].values()
        for queue, at in committed.items()
        if queue in mine and queue in nodes.bounds and nodes.unread(group_id, queue, at)
    }


def _retries(
    known: Snapshot, nodes: _Nodes, group_id: int, lags: Mapping[int, int]
) -> int | None:
    """Failed messages of a group that wait for their time, or lie unread; None while a node
    is away.
    """
    count = 0
    for one in known.subscriptions_of(group_id):
        topic = known.topics.get(one.topic_id)
        if topic is None or topic.failure_of is None:
            continue
        queues = {queue: known.queues[queue].node_id for queue in _queues(known, topic)}
        if topic.id not in lags or not nodes.waiting.keys() >= set(queues.values()):
            return None
        waiting = sum(
            nodes.waiting[node_id].get(queue, 0) for queue, node_id in queues.items()
        )
        count += lags[topic.id] + waiting
    return count


def _topics(known: Snapshot, nodes: _Nodes) -> list[tuple[str, list[tuple[int, int]]]]:
    """Topics with the log end offsets of their queues that answered, those with the most
    messages first.
    """
    found = []
    for topic in known.topics.values():
        ends = [
            (queue, nodes.bounds[queue][0])
            for queue in _queues(known, topic)
            if queue in nodes.bounds
        ]
        if topic.kind == "normal" and topic.state == "ready" and ends:
            found.append((topic.name, ends))
    return sorted(found, key=lambda one: (-sum(head for _queue, head in one[1]), one[0]))
