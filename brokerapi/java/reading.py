"""A Java client reads its queues and commits.

Both calls name a queue by an id that contains the member (handles.py). The member's reader
row on the node shows whether it owns the queue; a commit must also name the epoch, as
`offsetVersion`. The id of a message is its offset + 1, so the id of the last consumed
message is the committed offset.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from django.http import HttpResponse
from msgspec import Meta

from brokerapi.endpoint import Call
from brokerapi.http import longpoll, metrics
from brokerapi.http.longpoll import PullParameters
from brokerapi.java import handles, holds
from brokerapi.java.bounded import BoundedDict
from brokerapi.java.endpoint import (
    Body,
    JavaEndpoint,
    JavaRequest,
    Long,
    Unchanged,
    check_right,
)
from messagestore.consume import node_owners, positions
from messagestore.consume.positions import CommitOffset
from messagestore.consume.pull_types import PulledQueue, PullQueue
from messagestore.engine.messages import StoredMessage
from metadata.config import config
from metadata.db.consumer_ids import ConsumerId
from metadata.errors import CatmqError, Draining, Invalid, NodeUnavailable
from metadata.grouping import grouped
from metadata.groups import handling_traces, ownership
from metadata.groups.handling_traces import Attempt
from metadata.membership import java_pulls
from metadata.rules.groups.states import HandlingOutcome

# The clients wait 10 s for an answer.
HOLD_MS = 8_000
# A new generation of a group has reached its clients by their poll within this time.
TELL_S = 3.0
# Wait of a pull whose client may not have the new generation yet.
TELL_HOLD_MS = 500
# The clients wait 10 s here, too, and commit nothing else meanwhile.
COMMIT_HOLD_S = 7.0
# At least the pause between two commits of clients without a configured pause.
IDLE_HOLD_S = 2.0
# More messages would fill the buffer of these clients.
MOST_MESSAGES = 300
# States of a pull whose result has the offset to continue at.
GONE_ON = ("cleaned", "lost_tail")
# The header of a message whose body is not text.
BASE64 = "catmq-body"
MOST_KNOWN = 100_000
# Queues, and members, of a commit. A client has a membership in each of its groups.
MOST_COMMITTED = 5_000
MOST_MEMBERS = 200

# By queue id: (epoch, offset) of the last pull, if it was empty.
_empty = BoundedDict[int, tuple[int, int]](MOST_KNOWN)
# By group: generation, and time.monotonic() when it was new here.
_generations = BoundedDict[int, tuple[int, float]](MOST_KNOWN)
# By queue id: (epoch, offset) of the last commit that was stored.
_committed = BoundedDict[int, tuple[int, int]](MOST_KNOWN)


class PullRequest(JavaRequest):
    queueId: Long | None = None
    offsetStart: Long | None = None
    offsetEnd: Long | None = None


class PullData(JavaEndpoint):
    """POST consumer/pullData: the messages after `offsetStart`, waiting for the first."""

    body = Body(PullRequest)

    def answer_to(self, call: Call, request: PullRequest) -> dict[str, Any]:
        member_id, queue = handles.decode(request.queueId or 0)
        start, end = request.offsetStart or 0, request.offsetEnd or 0
        if member_id < 1 or queue < 1:
            raise Invalid.field("queueId", "is none that a poll told: join the group first")
        if start < 0 or end <= start:
            raise Invalid.field(
                "offsetEnd", "must be above offsetStart, and offsetStart not below 0"
            )
        consumer = handles.find_consumer(member_id)
        if consumer is None:
            return {"msgs": []}
        check_right(call, consumer.group_id)
        hold_ms = max(0, HOLD_MS - round(1000 * call.waited_s()))
        generations = holds.read_generations([consumer.group_id])
        count = min(end - start, MOST_MESSAGES)
        pulled = _pull_from_committed(
            consumer, queue, start, count, hold_ms=hold_ms, address=call.actor.address
        )
        if pulled is None:
            return {"msgs": []}
        check_right(call, consumer.group_id)  # again: the pull may have waited
        call.repeat = _repeat(consumer, pulled, start, generations)
        metrics.count_pulled(consumer.group_id, [pulled])
        if pulled.messages:
            java_pulls.note(consumer, queue, pulled.messages[-1].offset + 1)
        # Java clients report no traces, so the delivery of sampled messages is all there is.
        if handling_traces.sample_percent(group_id=consumer.group_id, queue=queue):
            handling_traces.note(
                group_id=consumer.group_id,
                member=consumer.member_id,
                attempts=[
                    Attempt(
                        queue,
                        message.offset,
                        message.attempt,
                        HandlingOutcome.DELIVERED,
                        0,
                        None,
                    )
                    for message in pulled.messages
                ],
            )
        return {"msgs": [_java_message(message) for message in pulled.messages]}

    def refused(self, call: Call, error: Exception) -> HttpResponse:
        """Return no messages instead of a temporary error: the client pauses and asks
        again.
        """
        is_temporary = isinstance(error, CatmqError) and not isinstance(
            error, Invalid | Draining
        )
        return super().refused(call, Invalid(str(error)) if is_temporary else error)


class _RepeatedPull(Unchanged):
    """A repeated pull at the end of a queue."""

    lasts_s = 60.0  # a full pull then finds messages that the watcher of heads missed

    def __init__(
        self, consumer: ConsumerId, queue: int, start: int, generations: Mapping[int, int]
    ) -> None:
        super().__init__(HOLD_MS / 1000, generations, {queue: start})
        self._consumer, self._queue = consumer, queue
        self._queue_id = handles.encode(consumer.member_id, queue)
        self._empty = _empty.get(self._queue_id)

    def note(self) -> bool:
        java_pulls.note(self._consumer, self._queue)
        # Another pull of the queue since then may have delivered messages.
        return _empty.get(self._queue_id) == self._empty

    def answered(self) -> None:
        super().answered()
        metrics.count_pulled(self._consumer.group_id, ())


def _repeat(
    consumer: ConsumerId, pulled: PulledQueue, start: int, generations: Mapping[int, int]
) -> _RepeatedPull | None:
    """Return the repeatable answer; None if the answer has news, or if time alone may
    change it.

    The generation is that before the pull: a newer generation may have ended the pull and
    set the queue back.
    """
    is_empty = pulled.state == "ok" and not pulled.rows and pulled.next_offset == start
    is_certain = pulled.head is not None and not pulled.stale and pulled.due_in_ms is None
    _, empty_at = _empty.get(handles.encode(consumer.member_id, pulled.queue), (0, -1))
    if is_empty and is_certain and empty_at == start:
        return _RepeatedPull(consumer, pulled.queue, start, generations)
    return None


def _pull_from_committed(
    consumer: ConsumerId, queue: int, start: int, count: int, *, hold_ms: int, address: str
) -> PulledQueue | None:
    """Pull a queue, from the committed offset on if that is higher. Return None if another
    member owns it.

    A client that asks again from where there was nothing has committed nothing after it. So
    its reader row is not read again; the pull itself detects a lost ownership.

    A client that was set back asks from after the committed offset until its poll returns
    the new offset: meanwhile pulls wait shortly.
    """
    java_pulls.note(consumer, queue)
    queue_id, wait_ms = handles.encode(consumer.member_id, queue), hold_ms
    epoch, empty_at = _empty.get(queue_id, (0, -1))
    if empty_at == start:
        pulled, _ = _pull(
            consumer, PullQueue(queue, epoch, start), count, hold_ms, address=address
        )
        if pulled.rows or (
            pulled.state in longpoll.WAITING_STATES and pulled.next_offset == start
        ):
            return pulled
        wait_ms = 0  # the wait may be used up
    _empty.pop(queue_id, None)
    owned_from = node_owners.held(consumer=consumer, queues=[queue]).get(queue)
    if owned_from is None:
        handles.forget(consumer.member_id)  # it may have registered again
        return None
    epoch, committed = owned_from
    may_be_set_back = _has_new_generation(consumer.group_id) and start > committed
    if may_be_set_back:
        wait_ms = min(wait_ms, TELL_HOLD_MS)
    position = PullQueue(queue, epoch, max(start, committed))
    pulled, first_offset = _pull(consumer, position, count, wait_ms, address=address)
    if pulled.state == "ok" and not pulled.rows:
        if pulled.next_offset == first_offset == start and not may_be_set_back:
            _empty[queue_id] = (epoch, start)
        elif pulled.next_offset > first_offset == max(start, committed) == committed:
            # A filter left out all messages. The client has nothing to commit, so the broker
            # commits.
            positions.commit(
                consumer=consumer, offsets=[CommitOffset(queue, epoch, pulled.next_offset)]
            )
    return pulled


def _pull(
    consumer: ConsumerId, position: PullQueue, count: int, wait_ms: int, *, address: str
) -> tuple[PulledQueue, int]:
    """Pull once, and again from where messages are if the position is gone. Return the
    result and its offset.

    Raises NodeUnavailable for a corrupt queue.
    """
    generation = positions.generation(consumer=consumer)
    count = min(count, config.max_pull_messages)
    for round_wait_ms in (wait_ms, 0):
        poll = PullParameters(
            generation, [position], count, config.max_pull_bytes, round_wait_ms
        )
        (pulled,) = longpoll.pull_or_wait(
            consumer=consumer, parameters=poll, address=address
        ).queues
        if pulled.state not in GONE_ON:
            break
        position = position._replace(offset=max(pulled.low or 0, pulled.next_offset))
    # Java clients have no state for this, so it becomes an error.
    if pulled.state == "corrupt":
        raise NodeUnavailable(
            f"Queue {position.queue} contradicts itself: the log of the broker and verify say how."
        )
    return pulled, position.offset


def _has_new_generation(group: int) -> bool:
    """Return True if the generation rose a moment ago, as seen by this process."""
    (generation,) = holds.read_generations([group]).values()
    earlier, since = _generations.get(group, (generation, float("-inf")))
    if generation != earlier:
        since = time.monotonic()
    _generations[group] = (generation, since)
    return time.monotonic() - since < TELL_S


def _java_message(message: StoredMessage) -> dict[str, Any]:
    """Return a message as Java clients read it. A binary body is in base64, and a header
    marks it.
    """
    head = dict(message.headers or {})
    try:
        body = message.body.decode()
    except UnicodeDecodeError:
        # JSON has no bytes.
        body, head[BASE64] = base64.b64encode(message.body).decode(), "base64"
    return {
        "id": message.offset + 1,
        # PMQ never delivers null for bizId, tag and traceId, and handlers rely on it. It
        # generates missing trace ids.
        "bizId": message.key or "",
        "head": head,
        "body": body,
        "retryCount": message.attempt,
        "tag": message.tag or "",
        "traceId": message.trace_id or message.message_id,
        "sendIp": "",  # not stored; CatMQ's client spells it otherwise
        "sendIP": "",
        "sendTime": message.stored_at_ms,
    }


class QueueOffset(JavaRequest):
    queueOffsetId: Long | None = None
    offsetVersion: Long | None = None
    offset: Long | None = None


class CommitRequest(JavaRequest):
    queueOffsets: (
        Annotated[list[QueueOffset | None], Meta(max_length=MOST_COMMITTED)] | None
    ) = None
    flag: Long | None = None


class CommitOffsets(JavaEndpoint):
    """POST consumer/commitOffset: positions, repeatedly; with `flag` 1 those of queues that
    it has stopped.

    A client that stops queues restarts those it keeps at the offset that it had before it
    stopped. So these get a new epoch, which its next poll brings with the offset.
    """

    body = Body(CommitRequest)

    def answer_to(self, call: Call, request: CommitRequest) -> dict[str, Any]:
        commits = [commit for commit in request.queueOffsets or () if commit is not None]
        members = _find_members(call, commits)
        is_released = request.flag == 1
        new = [
            commit
            for commit in commits
            if (commit.offset or 0) > 0 and (is_released or not _is_stored(commit))
        ]
        # Held back, because the client would repeat the same commit twice a second.
        if commits and not new and not is_released:
            call.repeat = _hold_commit(call, commits, members)
        by_member = grouped(
            (handles.decode(commit.queueOffsetId or 0)[0], commit) for commit in new
        )
        for member_id, member_commits in by_member.items():
            if member_id in members:
                _commit(members[member_id], member_commits, released=is_released)
        return {}


def _find_members(call: Call, commits: Sequence[QueueOffset]) -> dict[int, ConsumerId]:
    """Return the memberships whose queues a commit names. Raises Invalid, Forbidden."""
    ids = {handles.decode(commit.queueOffsetId or 0)[0] for commit in commits}
    if len(ids) > MOST_MEMBERS:
        raise Invalid.field(
            "queueOffsets", f"names {len(ids)} members; at most {MOST_MEMBERS} are allowed"
        )
    members = handles.find_consumers(ids)
    for group_id in {consumer.group_id for consumer in members.values()}:
        check_right(call, group_id)
    return members


class _RepeatedCommit(Unchanged):
    """A repeated commit of positions that are stored."""

    def __init__(
        self,
        commits: Sequence[QueueOffset],
        generations: Mapping[int, int],
        offsets: Mapping[int, int],
    ) -> None:
        super().__init__(COMMIT_HOLD_S, generations, offsets)
        self._commits = commits

    def note(self) -> bool:
        return all(map(_is_stored, self._commits))


def _hold_commit(
    call: Call, commits: Sequence[QueueOffset], members: Mapping[int, ConsumerId]
) -> _RepeatedCommit:
    """Wait until the client may have something else to commit. Return the repeatable
    answer.

    The wait ends when a queue of it gets a message, or its group changes, as by the
    parallel commit with `flag` 1 of a client that stops.
    """
    offsets = {
        handles.decode(commit.queueOffsetId or 0)[1]: commit.offset or 0
        for commit in commits
    }
    groups = {consumer.group_id for consumer in members.values()}
    generations, now = holds.read_generations(groups), time.monotonic()
    if not call.was_held():  # else the server has waited already
        with holds.waiting_place(
            f"commit {commits[0].queueOffsetId}", call.actor
        ) as max_wait_s:
            # The client's own pause between two commits: only a change of the group ends it early.
            holds.wait(generations, now + min(IDLE_HOLD_S, max_wait_s))
            if not holds.has_changed(generations):
                holds.wait(generations, now + min(COMMIT_HOLD_S, max_wait_s), offsets)
    return _RepeatedCommit(commits, generations, offsets)


def _is_stored(commit: QueueOffset) -> bool:
    epoch, offset = _committed.get(commit.queueOffsetId or 0, (0, 0))
    return epoch == commit.offsetVersion and (commit.offset or 0) <= offset


def _commit(consumer: ConsumerId, commits: list[QueueOffset], *, released: bool) -> None:
    """Commit the offsets that a client consumed up to. Raises NodeUnavailable if a node
    could not store its part.
    """
    positions_by_queue: dict[int, CommitOffset] = {}
    for commit in commits:
        _, queue = handles.decode(commit.queueOffsetId or 0)
        earlier = positions_by_queue.get(queue)
        # A request may name a queue twice: the highest offset counts.
        if earlier is None or earlier.offset < (commit.offset or 0):
            positions_by_queue[queue] = CommitOffset(
                queue, commit.offsetVersion or 0, commit.offset or 0
            )
    committed = positions.commit(
        consumer=consumer, offsets=list(positions_by_queue.values())
    )
    metrics.count_committed(consumer.group_id, committed)
    stored = [
        positions_by_queue[commit.queue] for commit in committed if commit.state == "ok"
    ]
    for position in stored:
        queue_id = handles.encode(consumer.member_id, position.queue)
        _committed[queue_id] = (position.epoch, position.offset)
    if released:
        moved = {
            commit.queue for commit in committed if commit.state == "ok" and commit.handled
        }
        queues = {commit.queue: commit.epoch for commit in stored if commit.queue in moved}
        # With a new epoch, the client gets its queues at the committed offsets.
        ownership.raise_epochs(
            group_id=consumer.group_id, queues=queues, instance_id=consumer.instance_id
        )
    if any(commit.state == "unavailable" for commit in committed):
        raise NodeUnavailable(
            "Some positions could not be stored: their node does not answer."
        )
