"""A Java client reads its queues and commits.

Both name a queue by an id that holds the member (handles.py). Its reader row on the node
says whether that member owns it; a commit must also name the epoch, as `offsetVersion`. The
id of a message is its offset + 1, and so the last id consumed is the committed offset.
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

HOLD_MS = 8_000  # these clients wait 10 s for an answer
# within which a client's poll has told it what a new generation of its group brings
TELL_S = 3.0
TELL_HOLD_MS = 500  # a pull that may not know it yet waits so long only
COMMIT_HOLD_S = 7.0  # they wait 10 s here, too, and commit nothing else meanwhile
# at least: the pause of these clients between two commits where nothing is configured
IDLE_HOLD_S = 2.0
MOST_MESSAGES = 300  # more would fill their buffer
GONE_ON = ("cleaned", "lost_tail")  # states that say where to go on
BASE64 = "catmq-body"  # header of a message whose body is no text
MOST_KNOWN = 100_000
MOST_COMMITTED = 5_000  # queues of one commit
MOST_MEMBERS = 200  # of one commit: a client has one membership for each of its groups

# id of a queue → (epoch, offset) of the last pull, if it was empty
_empty: dict[int, tuple[int, int]] = {}
# group → generation, time.monotonic() when it was new here
_generations: dict[int, tuple[int, float]] = {}
_committed: dict[
    int, tuple[int, int]
] = {}  # id of a queue → (epoch, offset) of the last commit that was stored


class PullRequest(JavaRequest):
    queueId: Long | None = None
    offsetStart: Long | None = None
    offsetEnd: Long | None = None


class PullData(JavaEndpoint):
    """POST consumer/pullData: the next messages behind `offsetStart`, waited for."""

    body = Body(PullRequest)

    def answer_to(self, call: Call, asked: PullRequest) -> dict[str, Any]:
        member_id, queue = handles.decode(asked.queueId or 0)
        start, end = asked.offsetStart or 0, asked.offsetEnd or 0
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
        seen = holds.read_generations([consumer.group_id])
        count = min(end - start, MOST_MESSAGES)
        pulled = _pulled(
            consumer, queue, start, count, hold_ms=hold_ms, address=call.actor.address
        )
        if pulled is None:
            return {"msgs": []}
        check_right(call, consumer.group_id)  # again: the pull may have waited
        call.repeat = _again(consumer, pulled, start, seen)
        metrics.count_pulled(consumer.group_id, [pulled])
        if pulled.messages:
            java_pulls.note(consumer, queue, pulled.messages[-1].offset + 1)
        _trace(consumer, pulled)
        return {"msgs": [_message(one) for one in pulled.messages]}

    def refused(self, call: Call, error: Exception) -> HttpResponse:
        """A node that is away has nothing to read now: the client pauses and asks again."""
        known = isinstance(error, CatmqError) and not isinstance(error, Invalid | Draining)
        return super().refused(call, Invalid(str(error)) if known else error)


class _PullAgain(Unchanged):
    """A pull from where there was nothing."""

    lasts_s = 60.0  # finds a message of which no watcher of heads has told

    def __init__(
        self, consumer: ConsumerId, queue: int, start: int, generations: Mapping[int, int]
    ) -> None:
        super().__init__(HOLD_MS / 1000, generations, {queue: start})
        self._consumer, self._queue = consumer, queue
        self._name = handles.encode(consumer.member_id, queue)
        self._empty = _empty.get(self._name)

    def note(self) -> bool:
        """Note the pull; False if the queue was read since."""
        java_pulls.note(self._consumer, self._queue)
        return _empty.get(self._name) == self._empty

    def answered(self) -> None:
        super().answered()
        metrics.count_pulled(self._consumer.group_id, ())


def _again(
    consumer: ConsumerId, pulled: PulledQueue, start: int, seen: Mapping[int, int]
) -> _PullAgain | None:
    """Return when the client gets the same answer again; None if the answer tells more than
    that nothing is there, or if time alone may change it.

    The generation is that of before the pull: one that has ended it may have set the queue
    back.
    """
    is_empty = pulled.state == "ok" and not pulled.rows and pulled.next_offset == start
    is_certain = pulled.head is not None and not pulled.stale and pulled.due_in_ms is None
    _, empty_at = _empty.get(handles.encode(consumer.member_id, pulled.queue), (0, -1))
    if is_empty and is_certain and empty_at == start:
        return _PullAgain(consumer, pulled.queue, start, seen)
    return None


def _pulled(
    consumer: ConsumerId, queue: int, start: int, count: int, *, hold_ms: int, address: str
) -> PulledQueue | None:
    """Pull of a queue, from the committed offset on if that is higher; None if another
    member owns it.

    A client that asks again from where there was nothing has committed nothing beyond it.
    So the reader row is not read for that again, and the pull tells whether the client is
    still the owner.

    One that was set back asks from beyond the committed offset until its poll tells it so:
    it waits shortly.
    """
    java_pulls.note(consumer, queue)
    name, wait_ms = handles.encode(consumer.member_id, queue), hold_ms
    epoch, empty_at = _empty.get(name, (0, -1))
    if empty_at == start:
        found, _ = _pull(
            consumer, PullQueue(queue, epoch, start), count, hold_ms, address=address
        )
        if found.rows or (
            found.state in longpoll.WAITING_STATES and found.next_offset == start
        ):
            return found
        wait_ms = 0  # it may have waited as long as it may
    _empty.pop(name, None)
    held = node_owners.held(consumer=consumer, queues=[queue]).get(queue)
    if held is None:
        handles.forget(consumer.member_id)  # it may have registered anew
        return None
    epoch, committed = held
    may_be_set_back = _has_new_generation(consumer.group_id) and start > committed
    if may_be_set_back:
        wait_ms = min(wait_ms, TELL_HOLD_MS)
    place = PullQueue(queue, epoch, max(start, committed))
    found, first = _pull(consumer, place, count, wait_ms, address=address)
    if found.state == "ok" and not found.rows:
        if found.next_offset == first == start and not may_be_set_back:
            _note_empty(name, epoch, start)
        elif found.next_offset > first == max(start, committed) == committed:
            # A filter left all of it out: the client has nothing to commit, so the broker
            # does.
            positions.commit(
                consumer=consumer, offsets=[CommitOffset(queue, epoch, found.next_offset)]
            )
    return found


def _pull(
    consumer: ConsumerId, asked: PullQueue, count: int, wait_ms: int, *, address: str
) -> tuple[PulledQueue, int]:
    """Pull once; once more, from where there is something, if what was asked for is gone.
    And from where.

    Raises NodeUnavailable for a queue that contradicts itself.
    """
    generation, count = (
        positions.generation(consumer=consumer),
        min(count, config.max_pull_messages),
    )
    for wait in (wait_ms, 0):
        poll = PullParameters(generation, [asked], count, config.max_pull_bytes, wait)
        (found,) = longpoll.pull_or_wait(
            consumer=consumer, asked=poll, address=address
        ).queues
        if found.state not in GONE_ON:
            break
        asked = asked._replace(offset=max(found.low or 0, found.next_offset))
    if found.state == "corrupt":
        raise NodeUnavailable(
            f"Queue {asked.queue} contradicts itself: the log of the broker and verify say how."
        )
    return found, asked.offset


def _has_new_generation(group: int) -> bool:
    """Return True if the generation rose a moment ago, as this process saw it."""
    (generation,) = holds.read_generations([group]).values()
    known, since = _generations.get(group, (generation, float("-inf")))
    if generation != known:
        since = time.monotonic()
    if len(_generations) >= MOST_KNOWN:
        _generations.clear()
    _generations[group] = (generation, since)
    return time.monotonic() - since < TELL_S


def _note_empty(name: int, epoch: int, offset: int) -> None:
    if len(_empty) >= MOST_KNOWN:
        _empty.clear()
    _empty[name] = (epoch, offset)


def _trace(consumer: ConsumerId, pulled: PulledQueue) -> None:
    """Note to whom messages were delivered, if the group traces them: more these clients do
    not tell.
    """
    group, queue = consumer.group_id, pulled.queue
    if handling_traces.sample_percent(group_id=group, queue=queue):
        attempts = [
            Attempt(queue, one.offset, one.attempt, "delivered", ago_ms=0, took_ms=None)
            for one in pulled.messages
        ]
        handling_traces.note(group_id=group, member=consumer.member_id, attempts=attempts)


def _message(one: StoredMessage) -> dict[str, Any]:
    """A message as these clients read it. A body that is no text comes in base64, and its
    header says so.
    """
    head = dict(one.headers or {})
    try:
        body = one.body.decode()
    except UnicodeDecodeError:
        body, head[BASE64] = base64.b64encode(one.body).decode(), "base64"
    return {
        "id": one.offset + 1,
        # PMQ delivers no null for these three, and handlers rely on it; it makes up a trace
        # id where none is.
        "bizId": one.key or "",
        "head": head,
        "body": body,
        "retryCount": one.attempt,
        "tag": one.tag or "",
        "traceId": one.trace_id or one.message_id,
        "sendIp": "",  # not stored; CatMQ's client spells it otherwise
        "sendIP": "",
        "sendTime": one.stored_at_ms,
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
    """POST consumer/commitOffset: positions, again and again; with `flag` 1 of queues that
    it has stopped.

    A client that stops queues restarts those it keeps at the offset that it was told before
    it stopped. So these get another epoch, which its next poll tells it with the offset.
    """

    body = Body(CommitRequest)

    def answer_to(self, call: Call, asked: CommitRequest) -> dict[str, Any]:
        given = [one for one in asked.queueOffsets or () if one is not None]
        members = _members(call, given)
        released = asked.flag == 1
        new = [
            one
            for one in given
            if (one.offset or 0) > 0 and (released or not _is_known(one))
        ]
        if given and not new and not released:  # it would say the same twice a second
            call.repeat = _hold(call, given, members)
        by_member = grouped((handles.decode(one.queueOffsetId or 0)[0], one) for one in new)
        for member_id, mine in by_member.items():
            if member_id in members:
                _commit(members[member_id], mine, released=released)
        return {}


def _members(call: Call, given: Sequence[QueueOffset]) -> dict[int, ConsumerId]:
    """Return the memberships whose queues a commit names. Raises Invalid, Forbidden."""
    ids = {handles.decode(ack.queueOffsetId or 0)[0] for ack in given}
    if len(ids) > MOST_MEMBERS:
        raise Invalid.field(
            "queueOffsets", f"names {len(ids)} members; at most {MOST_MEMBERS} are allowed"
        )
    members = handles.find_consumers(ids)
    for group_id in {consumer.group_id for consumer in members.values()}:
        check_right(call, group_id)
    return members


class _CommitAgain(Unchanged):
    """A commit of positions that are stored."""

    def __init__(
        self,
        given: Sequence[QueueOffset],
        generations: Mapping[int, int],
        offsets: Mapping[int, int],
    ) -> None:
        super().__init__(COMMIT_HOLD_S, generations, offsets)
        self._given = given

    def note(self) -> bool:
        """Return False if something was committed since."""
        return all(map(_is_known, self._given))


def _hold(
    call: Call, given: Sequence[QueueOffset], members: Mapping[int, ConsumerId]
) -> _CommitAgain:
    """Wait until the client may have something else to commit: a message came to one of its
    queues, or its group changed, as by the commit with `flag` 1 that a client that stops
    makes beside this one. Return when it gets the same answer again."""
    offsets = {handles.decode(one.queueOffsetId or 0)[1]: one.offset or 0 for one in given}
    groups = {consumer.group_id for consumer in members.values()}
    seen, now = holds.read_generations(groups), time.monotonic()
    if not call.was_held():  # until one of these happened
        with holds.waiting_place(f"commit {given[0].queueOffsetId}", call.actor) as most_s:
            holds.wait(seen, now + min(IDLE_HOLD_S, most_s))
            if not holds.has_changed(seen):
                holds.wait(seen, now + min(COMMIT_HOLD_S, most_s), offsets)
    return _CommitAgain(given, seen, offsets)


def _is_known(one: QueueOffset) -> bool:
    epoch, offset = _committed.get(one.queueOffsetId or 0, (0, 0))
    return epoch == one.offsetVersion and (one.offset or 0) <= offset


def _commit(consumer: ConsumerId, given: list[QueueOffset], *, released: bool) -> None:
    """Commit what a client consumed. Raises NodeUnavailable if a node could not store its
    part.
    """
    wanted: dict[int, CommitOffset] = {}
    for one in given:
        _, queue = handles.decode(one.queueOffsetId or 0)
        before = wanted.get(queue)
        if before is None or before.offset < (one.offset or 0):
            wanted[queue] = CommitOffset(queue, one.offsetVersion or 0, one.offset or 0)
    committed = positions.commit(consumer=consumer, offsets=list(wanted.values()))
    metrics.count_committed(consumer.group_id, committed)
    stored = [wanted[one.queue] for one in committed if one.state == "ok"]
    _note(consumer, stored)
    if released:
        moved = {one.queue for one in committed if one.state == "ok" and one.handled}
        queues = {one.queue: one.epoch for one in stored if one.queue in moved}
        ownership.raise_epochs(
            group_id=consumer.group_id, queues=queues, instance_id=consumer.instance_id
        )
    if any(one.state == "unavailable" for one in committed):
        raise NodeUnavailable(
            "Some positions could not be stored: their node does not answer."
        )


def _note(consumer: ConsumerId, stored: list[CommitOffset]) -> None:
    if len(_committed) >= MOST_KNOWN:
        _committed.clear()
    for one in stored:
        _committed[handles.encode(consumer.member_id, one.queue)] = (one.epoch, one.offset)
