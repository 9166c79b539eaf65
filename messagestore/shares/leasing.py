"""A member of a share group asks for messages: of which queue it gets runs, and what it waits for otherwise.

Topics come in the order in which the member names them; the queues of one topic, and of its failed messages,
take turns. Of the first queue that has something the member gets its share.

Queues that give nothing now have a `state`:

    stopped         an operator stopped the group, the subscription or the queue in it
    runs_exhausted  so many runs are leased that no new message is: members do not finish them
    corrupt         a hole that nobody declared: a person must look
    unavailable     the node of the queue does not answer
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple
from zlib import crc32

from messagestore.consume.budget import Budget
from messagestore.engine import db_errors
from messagestore.heads import corruption
from messagestore.heads.heads import board
from messagestore.pool import node_pools
from messagestore.pool.node import Node
from messagestore.shares import known_queues, taking
from messagestore.shares.delivering import Delivery, Leased
from messagestore.shares.known_queues import Known
from messagestore.shares.taking import Asked
from messagestore.tables.shares.run_sql import Run
from metadata.cache import snapshot
from metadata.cache.snapshot_types import GroupInfo, QueueInfo, TopicInfo
from metadata.db.consumer_ids import ConsumerId
from metadata.db.rows import no_group
from metadata.errors import CatmqError, Code, NodeUnavailable, NotFound, Unavailable
from metadata.grouping import grouped
from metadata.rules.groups import sharing

EMPTY_RUNS = 20  # of which nothing is to be delivered, in a row: then the next call goes on

_turn = itertools.count()


class Wanted(NamedTuple):
    """A member's call. `held`: texts of grants that it has, if those it does not know of are to be found.

    `counts_begun`: the member says when it begins with a run; see taking.Asked.
    """

    topics: Sequence[str]
    max_messages: int
    max_bytes: int
    held: frozenset[str] | None = None
    counts_begun: bool = False


class Shared(NamedTuple):
    """Runs for a member, and queues that give nothing, {queue: state}.

    `behind`: where new messages would come, {queue: offset}; `again_s`: when to look again all the same.
    """

    runs: list[Leased]
    states: dict[int, str]
    behind: dict[int, int]
    again_s: float = known_queues.BELIEVED_S


def group_of(consumer: ConsumerId) -> GroupInfo:
    """The group of a consumer. Raises NotFound (group_not_found)."""
    found = snapshot.current().groups.get(consumer.group_id)
    if found is None:
        snapshot.refresh()  # it may have been made a moment ago
        found = snapshot.current().groups.get(consumer.group_id)
    if found is None:
        raise no_group(str(consumer.group_id))
    return found


def lease(*, consumer: ConsumerId, wanted: Wanted) -> Shared:
    """Lease runs to a member of a share group; none, and what to wait for, if there is nothing.

    Raises NotFound (group_not_found, subscription_not_found), NodeUnavailable when none of the nodes answers,
    and OutcomeUnknown: then ask again with the grants that it holds.
    """
    group = group_of(consumer)
    work = _Work(group, consumer, wanted)
    topics = _topics(group, wanted.topics)
    if wanted.held is not None and (runs := work.recovered(topics, wanted.held)):
        return Shared(runs, {}, {})
    for topic in topics:
        if runs := work.of_topic(_queues(group, topic)):
            return Shared(runs, work.states, {})
    work.raise_failure()
    return Shared([], work.states, work.behind, work.again_s())


def _topics(group: GroupInfo, names: Sequence[str]) -> list[TopicInfo]:
    """The topics called so, or all that the group reads."""
    found = _read(group)
    if not found or not set(names) <= found.keys():
        snapshot.refresh()  # another member may have just subscribed
        found = _read(group)
    missing = [name for name in names if name not in found]
    if missing:
        what = f"Group {group.name} does not read {missing[0]}."
        raise NotFound(
            f"{what} Subscribe: catmq subscribe {group.name} {missing[0]}", code=Code.SUBSCRIPTION_NOT_FOUND
        )
    return [found[name] for name in dict.fromkeys(names)] or [found[name] for name in sorted(found)]


def _read(group: GroupInfo) -> dict[str, TopicInfo]:
    known = snapshot.current()
    ready = (one.topic_id for one in known.subscriptions_of(group.id) if one.state == "ready")
    topics = (known.topics.get(topic_id) for topic_id in ready)
    return {topic.name: topic for topic in topics if topic is not None and topic.failure_of is None}


def _queues(group: GroupInfo, topic: TopicInfo) -> list[QueueInfo]:
    """The queues of a topic and of its failed messages."""
    known = snapshot.current()
    failures = known.failure_topics.get((group.id, topic.id))
    ids = (*topic.queues, *(failures.queues if failures is not None else ()))
    there = (known.queues[queue] for queue in ids if queue in known.queues)
    return [one for one in there if one.state in known_queues.READABLE]


class _Work:
    """One call on its way."""

    def __init__(self, group: GroupInfo, consumer: ConsumerId, wanted: Wanted) -> None:
        self.states: dict[int, str] = {}
        self.behind: dict[int, int] = {}
        self._group, self._owner = group, consumer.text
        self._counts_begun = wanted.counts_begun
        self._budget = Budget(wanted.max_messages, wanted.max_bytes)
        self._asked: set[int] = set()
        self._failure: Unavailable | None = None
        self._again_at = time.monotonic() + known_queues.BELIEVED_S

    def recovered(self, topics: Sequence[TopicInfo], held: Collection[str]) -> list[Leased]:
        """Runs of the member that it does not know of."""
        queues = [queue for topic in topics for queue in _queues(self._group, topic)]
        found: list[Leased] = []
        for node_id, mine in grouped((one.node_id, one.id) for one in queues).items():
            with self._asking(mine):
                node = node_pools.node(node_id)
                runs = taking.held(
                    node=node,
                    group=self._group,
                    queues=mine,
                    owner=self._owner,
                    counts_begun=self._counts_begun,
                )
                unknown = [run for run in runs if run.grant.text not in held]
                delivery = Delivery(node=node, group=self._group, budget=self._budget, recovered=True)
                found += delivery.of(unknown)
        return found

    def of_topic(self, queues: Sequence[QueueInfo]) -> list[Leased]:
        """Runs of the first queue that has something."""
        start = (crc32(self._owner.encode()) + next(_turn)) % max(1, len(queues))
        served = [one for one in (*queues[start:], *queues[:start]) if not self._is_stopped(one)]
        known = self._known(served)
        for info in served:
            one = known.get(info.id)
            if one is not None and info.id not in self.states:
                with self._asking([info.id]):
                    if runs := self._of_queue(info, one):
                        return runs
        return []

    def raise_failure(self) -> None:
        """Raise what kept every queue from being read, if one thing did."""
        away = [state == "unavailable" for state in self.states.values()]
        if self._failure is not None and len(away) == len(self._asked) and all(away):
            raise self._failure

    def again_s(self) -> float:
        """Return in how many seconds to look again."""
        return max(0.0, self._again_at - time.monotonic())

    def _is_stopped(self, info: QueueInfo) -> bool:
        self._asked.add(info.id)
        if snapshot.current().stopped(self._group.id, info):
            self.states[info.id] = "stopped"
        return info.id in self.states

    def _known(self, queues: Sequence[QueueInfo]) -> dict[int, Known]:
        found: dict[int, Known] = {}
        for node_id, mine in grouped((one.node_id, one.id) for one in queues).items():
            with self._asking(mine):
                found |= known_queues.known(
                    group_id=self._group.id, node=node_pools.node(node_id), queues=mine
                )
        missing = [one.id for one in queues if one.id not in found and one.id not in self.states]
        self.states |= dict.fromkeys(missing, "unavailable")
        return found

    @contextmanager
    def _asking(self, queues: Sequence[int]) -> Iterator[None]:
        """Note for some queues why their node gave nothing."""
        try:
            yield
        except db_errors.Final as fault:  # a table is missing or was altered; others go on
            for queue in queues:
                corruption.report(queue, offset=None, why=fault.detail)
                self.states[queue] = "corrupt"
        except NodeUnavailable as failure:
            self._failure = failure
            self.states |= dict.fromkeys(queues, "unavailable")

    def _of_queue(self, info: QueueInfo, one: Known) -> list[Leased]:
        node = node_pools.node(info.node_id)
        delivery = Delivery(node=node, group=self._group, budget=self._budget)
        for _ in range(EMPTY_RUNS):
            runs = [] if one.corrupt else self._runs(node, info.id, one)
            if not runs:
                break
            if found := self._delivered(node, delivery, runs):
                return found
            one.corrupt = bool(delivery.corrupt)
        else:
            self._again_at = 0.0  # there was something, of which nothing is for this group
        self._wait_for(info.id, one)
        return []

    def _delivered(self, node: Node, delivery: Delivery, runs: Sequence[Run]) -> list[Leased]:
        """The runs with their messages; where these cannot be read, the runs are given back."""
        try:
            return delivery.of(runs)
        except CatmqError:
            with suppress(CatmqError):  # else they wait for the end of their lease
                for run in runs:
                    offsets = range(run.first, run.end)
                    taking.put_back(node=node, group_id=self._group.id, run=run, offsets=offsets)
            raise

    def _runs(self, node: Node, queue: int, one: Known) -> list[Run]:
        """Runs whose lease is over, else new ones."""
        most = self._budget.rows(queue, self._budget.messages)
        count = min(most, self._group.run_messages)
        asked = Asked(self._group, self._owner, count, self._counts_begun)
        if one.is_due() and (runs := taking.due(node=node, queue=queue, one=one, asked=asked)):
            return runs
        count = sharing.fair_cut(backlog=one.backlog, members=self._group.member_count, asked=most)
        return taking.new(node=node, queue=queue, one=one, asked=asked._replace(messages=count))

    def _wait_for(self, queue: int, one: Known) -> None:
        if one.corrupt or one.is_exhausted:
            self.states[queue] = "corrupt" if one.corrupt else "runs_exhausted"
            return
        # What is too young, or behind a gap, is looked at again when the queue is read anew.
        self.behind[queue] = max(one.start, one.end if one.ripe is None else board.known(queue))
        if one.due_at is not None:
            self._again_at = min(self._again_at, one.due_at)
