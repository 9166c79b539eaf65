"""Choose the queue that a share group member leases runs from, or the offsets and the time
it waits for.

Topics are tried in the order in which the member names them. Within a topic, its queues and
those of its retry topic take turns. The member gets its fair share of the first queue that
has messages.

Queues that cannot be leased from have a `state`:

    stopped         an operator stopped the group, the subscription or the queue in it
    runs_exhausted  too many runs are leased and not finished, so no new message is leased
    corrupt         an offset is missing without a declared gap: an operator must act
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
from messagestore.shares import known_queues, run_leases
from messagestore.shares.delivering import Delivery, Leased
from messagestore.shares.known_queues import QueueEntry
from messagestore.shares.run_leases import RunRequest
from messagestore.tables.shares.run_sql import Run
from metadata.cache import snapshot
from metadata.cache.snapshot_types import GroupInfo, QueueInfo, TopicInfo
from metadata.db.consumer_ids import ConsumerId
from metadata.db.rows import no_group
from metadata.errors import CatmqError, Code, NodeUnavailable, NotFound, Unavailable
from metadata.grouping import grouped
from metadata.rules.groups import sharing
from metadata.rules.groups.states import SubscriptionState
from metadata.rules.topics.states import READABLE_STATES

EMPTY_RUNS = 20  # tries in a row without a deliverable message before the call returns

_turn = itertools.count()


class MessageRequest(NamedTuple):
    """A member's request for messages.

    `held`: the texts of the grants that the member has. If given, the call first returns
    other runs that the member holds: those of a call whose answer was lost. `member_reports_begin`:
    the member reports when it begins a run; see run_leases.py for what that means for counts.
    """

    topics: Sequence[str]
    max_messages: int
    max_bytes: int
    held: frozenset[str] | None = None
    member_reports_begin: bool = False


class LeaseResult(NamedTuple):
    """Runs for a member, and the states of queues that cannot be leased from, by queue id.

    Without runs, `wake_offsets` has the next offset to lease in each readable queue. The
    member may wait until a head rises above its offset, for at most `retry_after_s` seconds.
    """

    runs: list[Leased]
    queue_states: dict[int, str]
    wake_offsets: dict[int, int]
    retry_after_s: float = known_queues.BELIEVED_S


def find_group(consumer: ConsumerId) -> GroupInfo:
    """Return the group of a consumer. Raises NotFound (group_not_found)."""
    group = snapshot.current().groups.get(consumer.group_id)
    if group is None:
        snapshot.refresh()  # the group may have been created a moment ago
        group = snapshot.current().groups.get(consumer.group_id)
    if group is None:
        raise no_group(str(consumer.group_id))
    return group


def lease(*, consumer: ConsumerId, request: MessageRequest) -> LeaseResult:
    """Lease runs to a member of a share group. Without runs, the result has the offsets to
    wait for.

    Raises NotFound (group_not_found, subscription_not_found), NodeUnavailable if no node
    answers, and OutcomeUnknown: then runs may be leased, and the member asks again with the
    grants that it has (`held`).
    """
    group = find_group(consumer)
    call = _LeaseCall(group, consumer, request)
    topics = _choose_topics(group, request.topics)
    if request.held is not None and (runs := call.recover_runs(topics, request.held)):
        return LeaseResult(runs, {}, {})
    for topic in topics:
        if runs := call.lease_from_topic(_readable_queues(group, topic)):
            return LeaseResult(runs, call.queue_states, {})
    call.raise_failure()
    return LeaseResult([], call.queue_states, call.wake_offsets, call.retry_after_s())


def _choose_topics(group: GroupInfo, names: Sequence[str]) -> list[TopicInfo]:
    """Return the named topics in order, or all topics that the group reads.

    Raises NotFound (subscription_not_found).
    """
    topics_by_name = _subscribed_topics(group)
    if not topics_by_name or not set(names) <= topics_by_name.keys():
        snapshot.refresh()  # another member may have just subscribed
        topics_by_name = _subscribed_topics(group)
    missing = [name for name in names if name not in topics_by_name]
    if missing:
        cause = f"Group {group.name} does not read {missing[0]}."
        raise NotFound(
            f"{cause} Subscribe: catmq subscribe {group.name} {missing[0]}",
            code=Code.SUBSCRIPTION_NOT_FOUND,
        )
    return [topics_by_name[name] for name in dict.fromkeys(names)] or [
        topics_by_name[name] for name in sorted(topics_by_name)
    ]


def _subscribed_topics(group: GroupInfo) -> dict[str, TopicInfo]:
    """Return the topics of the group's ready subscriptions by name, without retry topics."""
    current = snapshot.current()
    ready_ids = (
        s.topic_id
        for s in current.subscriptions_of(group.id)
        if s.state == SubscriptionState.READY
    )
    topics = (current.topics.get(topic_id) for topic_id in ready_ids)
    return {
        topic.name: topic
        for topic in topics
        if topic is not None and topic.failure_of is None
    }


def _readable_queues(group: GroupInfo, topic: TopicInfo) -> list[QueueInfo]:
    """Return the readable queues of a topic and of its retry topic."""
    current = snapshot.current()
    retry_topic = current.failure_topics.get((group.id, topic.id))
    ids = (*topic.queues, *(retry_topic.queues if retry_topic is not None else ()))
    infos = (current.queues[queue] for queue in ids if queue in current.queues)
    return [info for info in infos if info.state in READABLE_STATES]


class _LeaseCall:
    """A call of a member, with the failures and states that it met so far."""

    def __init__(
        self, group: GroupInfo, consumer: ConsumerId, request: MessageRequest
    ) -> None:
        self.queue_states: dict[int, str] = {}
        self.wake_offsets: dict[int, int] = {}
        self._group, self._owner = group, consumer.text
        self._member_reports_begin = request.member_reports_begin
        self._budget = Budget(request.max_messages, request.max_bytes)
        self._tried: set[int] = set()
        self._failure: Unavailable | None = None
        self._retry_at = time.monotonic() + known_queues.BELIEVED_S

    def recover_runs(
        self, topics: Sequence[TopicInfo], held: Collection[str]
    ) -> list[Leased]:
        """Return runs that the member holds but does not list in `held`, each with a new
        lease.
        """
        queues = [
            queue for topic in topics for queue in _readable_queues(self._group, topic)
        ]
        leased_runs: list[Leased] = []
        for node_id, queue_ids in grouped(
            (info.node_id, info.id) for info in queues
        ).items():
            with self._noting_failures(queue_ids):
                node = node_pools.node(node_id)
                runs = run_leases.renew_held(
                    node=node,
                    group=self._group,
                    queues=queue_ids,
                    owner=self._owner,
                    member_reports_begin=self._member_reports_begin,
                )
                unlisted = [run for run in runs if run.grant.text not in held]
                delivery = Delivery(
                    node=node, group=self._group, budget=self._budget, recovered=True
                )
                leased_runs += delivery.read_runs(unlisted)
        return leased_runs

    def lease_from_topic(self, queues: Sequence[QueueInfo]) -> list[Leased]:
        """Lease runs from the first queue that has any, in rotating order."""
        # The owner's hash lets members begin at different queues, and the counter lets each
        # call begin at the next queue. So none starves while another always has messages.
        start = (crc32(self._owner.encode()) + next(_turn)) % max(1, len(queues))
        self._tried.update(info.id for info in queues)
        current, group_id = snapshot.current(), self._group.id
        for info in queues:
            if current.is_stopped(group_id, info):
                self.queue_states[info.id] = "stopped"
        running = [
            info
            for info in (*queues[start:], *queues[:start])
            if info.id not in self.queue_states
        ]
        entries: dict[int, QueueEntry] = {}
        ids_by_node = grouped((info.node_id, info.id) for info in running)
        for node_id, queue_ids in ids_by_node.items():
            with self._noting_failures(queue_ids):
                entries |= known_queues.read_entries(
                    group_id=group_id, node=node_pools.node(node_id), queues=queue_ids
                )
        for info in running:
            if info.id not in entries:
                # Without a reader row of the group the queue cannot be leased from.
                self.queue_states.setdefault(info.id, "unavailable")
        for queue_info in running:
            entry = entries.get(queue_info.id)
            if entry is not None and queue_info.id not in self.queue_states:
                with self._noting_failures([queue_info.id]):
                    if runs := self._lease_from(queue_info, entry):
                        return runs
        return []

    def raise_failure(self) -> None:
        """Raise the last failure if every tried queue is unavailable. Otherwise do nothing."""
        unavailable = [state == "unavailable" for state in self.queue_states.values()]
        if (
            self._failure is not None
            and len(unavailable) == len(self._tried)
            and all(unavailable)
        ):
            raise self._failure

    def retry_after_s(self) -> float:
        """Return the seconds until the next try makes sense without a new message."""
        return max(0.0, self._retry_at - time.monotonic())

    @contextmanager
    def _noting_failures(self, queues: Sequence[int]) -> Iterator[None]:
        """Turn the failure of a node into states of its queues, so that other nodes are
        tried.
        """
        try:
            yield
        except db_errors.Final as fault:  # a table is missing or was altered
            for queue in queues:
                corruption.report(queue, offset=None, why=fault.detail)
                self.queue_states[queue] = "corrupt"
        except NodeUnavailable as failure:
            self._failure = failure
            self.queue_states |= dict.fromkeys(queues, "unavailable")

    def _lease_from(self, info: QueueInfo, entry: QueueEntry) -> list[Leased]:
        """Lease runs of a queue. Without a message to deliver, note its state, or the offset and
        time to wait for.
        """
        node = node_pools.node(info.node_id)
        delivery = Delivery(node=node, group=self._group, budget=self._budget)
        # Bounded, so that a group whose filter leaves out nearly all messages does not keep
        # the thread.
        for _ in range(EMPTY_RUNS):
            runs = [] if entry.corrupt else self._lease_runs(node, info.id, entry)
            if not runs:
                break
            if leased := self._deliver(node, delivery, runs):
                return leased
            entry.corrupt = bool(delivery.corrupt)
        else:
            # Runs were leased, but all their messages were filtered out, deleted or in a
            # gap. More may follow, so the next call continues at once.
            self._retry_at = 0.0
        if entry.corrupt or entry.is_exhausted:
            self.queue_states[info.id] = "corrupt" if entry.corrupt else "runs_exhausted"
            return []
        # Messages that are too young, or lie above a gap, raise no head when they can be
        # leased. They are found when the entry of the queue is read again.
        end = entry.end if entry.ripe is None else board.durable_head(info.id)
        self.wake_offsets[info.id] = max(entry.start, end)
        if entry.due_at is not None:
            self._retry_at = min(self._retry_at, entry.due_at)
        return []

    def _deliver(self, node: Node, delivery: Delivery, runs: Sequence[Run]) -> list[Leased]:
        """Read the messages of leased runs. If that fails, put the runs back and re-raise."""
        try:
            return delivery.read_runs(runs)
        except CatmqError:
            # The member never receives these runs. If they cannot be put back either, other
            # members get them when the lease ends.
            with suppress(CatmqError):
                for run in runs:
                    offsets = range(run.first, run.end)
                    run_leases.put_back(
                        node=node, group_id=self._group.id, run=run, offsets=offsets
                    )
            raise

    def _lease_runs(self, node: Node, queue: int, entry: QueueEntry) -> list[Run]:
        """Lease runs whose lease is over, or new messages if there are none."""
        max_rows = self._budget.rows(queue, self._budget.messages)
        count = min(max_rows, self._group.run_messages)
        request = RunRequest(self._group, self._owner, count, self._member_reports_begin)
        if entry.is_due() and (
            runs := run_leases.lease_due(
                node=node, queue=queue, entry=entry, request=request
            )
        ):
            return runs
        # A first member would take all there is, and the others would wait for it to
        # finish.
        count = sharing.fair_share(
            backlog=entry.backlog, members=self._group.member_count, asked=max_rows
        )
        return run_leases.lease_new(
            node=node, queue=queue, entry=entry, request=request._replace(messages=count)
        )
