"""Fetch messages ahead of the application, into a bounded buffer.

There is a single pull at a time. It waits at the broker until messages come. It carries the
commits that are due when it is sent (committer.py). A seek, a
resume or a newly acquired queue cannot wait for such a pull to end, so it interrupts it
(component.py): another thread pulls, and the answer of the old pull is dropped.

Each pull carries the newest generation that any answer had. The broker ends a waiting pull
when the group gets a newer generation, and does not answer empty for a generation that the
next heartbeat fetches anyway.

Fetched messages are never dropped to make room. They would have to be fetched again, and a
consumer that is slower than its producers would pull the same messages endlessly. So at the
bound, queues with nothing in the buffer are still pulled, each for a fraction of its share.
That exceeds the bound by less than half.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

from catmq_client.errors import CatmqError, OffsetReset
from catmq_client.http.backoff import Backoff
from catmq_client.http.transport import Transport
from catmq_client.message import Message, Source, parse_messages
from catmq_client.reading.committer import Committer, commit_entries
from catmq_client.reading.component import MAX_ABANDONED, ErrorHandler, LongPoll
from catmq_client.reading.owned import OwnedQueue
from catmq_client.reading.pull_commits import FIELD, Commit
from catmq_client.reading.state import GroupState

log: logging.Logger = logging.getLogger("catmq.consumer")

# Limit of brokers per request. A consumer with more queues pulls some of them at a time, …
MAX_QUEUES = 1_000
# … and such a pull waits no longer than this at the broker, ms.
PARTIAL_WAIT_MS = 100
# Longest pause before a queue is pulled again that its node or the broker cannot serve now.
MAX_PAUSE_S = 1.0
# Upper limit of a broker's retry_after_ms, s.
MAX_RETRY_AFTER_S = 10.0
# An application that takes messages all the time makes room within this time. Only after it
# the acquirer must ask for the generation instead.
ROOM_WAIT_S = 0.1
# A corrupt queue waits for an operator. Pulling it every second would only fill logs.
CORRUPT_PAUSE_S = 5.0
# While some queues are at their share and are not pulled, the others are pulled at least
# this often.
FULL_QUEUES_PAUSE_S = 0.1
# run() holds more than its bound only if it finishes that within this time. Otherwise it
# pulls when this fraction of the bound is free.
AHEAD_S = 1.0
ROOM_FRACTION = 4
# Messages to pull at least, of queues with nothing in the buffer.
MIN_MESSAGES = 16
# How long pulls wait while new queues are expected, and how long after a change they are.
UNSETTLED_WAIT_MS = 100
UNSETTLED_S = 1.0
# A pull that ends by itself within this time is not interrupted for a new queue.
ENDING_SOON_S = 0.15
# While MAX_ABANDONED abandoned pulls wait at the broker, a pull waits no longer than this.
ABANDONED_WAIT_MS = 500
# Time over which the pace is measured, s.
PACE_WINDOW_S = 1.0
# Shortest measured time, s: two threads may finish a message in the same millisecond.
MIN_PACE_S = 0.02


@dataclass(frozen=True, slots=True)
class Plan:
    """The next pull: its queues, with the offset and version of each, and its limits."""

    consumer_id: str
    generation: int
    queues: list[tuple[OwnedQueue, int, int]]
    wait_ms: int
    max_messages: int
    max_bytes: int
    has_full_queues: bool


class Pace:
    """Messages that run() finishes per second, measured from a count that only rises."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._count = 0
        self._previous_pace = 0.0

    def per_s(self, count: int) -> float:
        now = time.monotonic()
        passed_s = now - self._since
        pace = (count - self._count) / max(passed_s, MIN_PACE_S)
        if passed_s > PACE_WINDOW_S:
            self._since, self._count, self._previous_pace = now, count, pace
        elif passed_s < PACE_WINDOW_S / 4:
            # too short to conclude that the pace has fallen
            pace = max(pace, self._previous_pace)
        return pace


class Fetcher(LongPoll):
    """Pulls messages for a consumer; `run` is the body of its thread."""

    def __init__(
        self,
        *,
        transport: Transport,
        state: GroupState,
        handle_error: ErrorHandler,
        committer: Committer,
    ) -> None:
        super().__init__(transport=transport, state=state, handle_error=handle_error)
        self._committer = committer
        # When the pull under way ends by itself, monotonic.
        self._ends_at = 0.0
        self._first_queue = 0
        self._last_pull_had_messages = False
        self._pace = Pace()

    def nudge(self) -> None:
        """Interrupt the waiting pull for a new queue, unless it ends within moments."""
        with self._state.changed:
            self._wake_count += 1
            if self._ends_at - time.monotonic() > ENDING_SOON_S:
                self.interrupt()

    def _pull_once(self, ticket: int, backoff: Backoff) -> None:
        state = self._state
        with state.changed:
            plan = self._plan()
            if plan is None:
                self._wait_for_room()
                return
            state.full_since = None
            self._in_pull = True
            self._ends_at = time.monotonic() + plan.wait_ms / 1000
            commits = self._committer.take_for_pull()
        try:
            answer = self._send(plan, commits)
        except CatmqError as error:
            if not commits or not self._committer.fail_pull(commits, error):
                self._after_failure(error, plan.consumer_id, ticket=ticket, backoff=backoff)
                return
            # A broker of an earlier release: the next pull has no commits.
            with state.changed:
                self._in_pull = self._in_pull and ticket != self._ticket
            return
        backoff.reset()
        # Also of an abandoned pull: its commits are stored or not, whatever was fetched. Before
        # the messages, because a fenced queue is lost.
        if commits:
            self._committer.end_pull(commits, answer.get(FIELD, ()))
        with state.changed:
            state.note_generation(answer["generation"])
            # An abandoned pull: its positions may be outdated by a seek, so its messages
            # are dropped.
            if ticket != self._ticket:
                return
            self._in_pull = False
            if state.consumer_id != plan.consumer_id:
                # The consumer has left the group, or registered again, while the pull was
                # under way.
                return
            self._last_pull_had_messages = self._apply_answer(plan, answer)
            # A broker that already holds its maximum of waiting pulls sends a time to come
            # back. A pull that left out full queues did not wait there at all.
            pause_s = max(
                min(MAX_RETRY_AFTER_S, answer.get("retry_after_ms", 0) / 1000),
                FULL_QUEUES_PAUSE_S if plan.has_full_queues else 0.0,
            )
            if pause_s and not self._last_pull_had_messages:
                state.changed.wait(pause_s)

    def _send(self, plan: Plan, commits: list[Commit]) -> dict[str, Any]:
        """Send the pull, which carries these commits. Return the answer."""
        body: dict[str, Any] = {
            "generation": plan.generation,
            "queues": [
                {"queue": owned.queue, "epoch": owned.epoch, "offset": offset}
                for owned, offset, _ in plan.queues
            ],
            "wait_ms": plan.wait_ms,
            "max_messages": plan.max_messages,
            "max_bytes": plan.max_bytes,
        }
        if commits:
            body[FIELD] = commit_entries(commits)
        timeout_s = (plan.wait_ms + self._options.request_timeout_ms) / 1000
        return self._post(
            "consumers", plan.consumer_id, "pull", body=body, timeout_s=timeout_s
        )

    def _wait_for_room(self) -> None:
        """Wait until a pull may be possible: until there is room, or a membership."""
        state = self._state
        if state.full_since is not None:
            state.changed.room.wait(MAX_PAUSE_S)
        # If the wait takes long, the acquirer asks for the generation meanwhile.
        elif not state.changed.room.wait(ROOM_WAIT_S) and state.consumer_id is not None:
            state.full_since = time.monotonic()
            state.changed.notify_all()
        if state.consumer_id is None:
            state.full_since = None

    def _plan(self) -> Plan | None:
        """Return the next pull, or None if there is nothing to pull or no room."""
        state = self._state
        consumer_id = state.consumer_id
        if consumer_id is None:
            return None
        now = time.monotonic()
        active = [
            owned
            for owned in state.queues.values()
            if owned.acquired and owned.revoked_until is None and not owned.is_suspended()
        ]
        readable = [owned for owned in active if owned.not_before <= now]
        free = self._room()
        queues = [
            (owned, owned.position, owned.version)
            for owned in readable
            if self._may_pull(owned, free)
        ]
        has_full_queues = len(queues) < len(readable)
        if not queues and (has_full_queues or not free or state.is_unsettled(UNSETTLED_S)):
            # A new queue may come any moment. It wakes a wait in here at once, but not a
            # wait at the broker.
            return None
        # While some queues are full, a pull brings at most the shares of the others.
        share_per_queue = state.share_per_queue()
        if not free:
            max_messages = max(MIN_MESSAGES, share_per_queue // ROOM_FRACTION)
        elif has_full_queues:
            max_messages = min(free, max(1, len(queues)) * share_per_queue)
        else:
            max_messages = free
        pauses = [owned.not_before - now for owned in active if owned.not_before > now]
        max_bytes = self._options.fetch_max_bytes
        # Each request begins with another queue.
        step = 1 if len(queues) <= MAX_QUEUES else MAX_QUEUES
        self._first_queue = (self._first_queue + step) % max(1, len(queues))
        queues_in_turn = queues[self._first_queue :] + queues[: self._first_queue]
        return Plan(
            consumer_id=consumer_id,
            generation=state.newest_generation,
            queues=queues_in_turn[:MAX_QUEUES],
            wait_ms=0
            if has_full_queues
            else self._wait_ms(pauses, is_partial=len(queues) > MAX_QUEUES),
            max_messages=max_messages,
            max_bytes=max_bytes if free else max(1, max_bytes // max(1, len(state.queues))),
            has_full_queues=has_full_queues,
        )

    def _may_pull(self, owned: OwnedQueue, free: int) -> bool:
        """Return True if more messages of a queue may be buffered.

        `free` is what all may buffer.
        """
        state = self._state
        if free:
            return len(owned.buffer) < state.share_per_queue() and not state.is_stuck(owned)
        # poll() gives all buffered messages to the next call, so its full buffer empties by
        # itself. In run() a slow queue could keep the others from being pulled.
        return state.has_worker_threads and not owned.buffer and not owned.in_hand

    def _wait_ms(self, pauses: list[float], *, is_partial: bool) -> int:
        """Return how long the pull may wait at the broker: until another queue may be
        pulled.
        """
        waits = [
            self._state.limits.fetch_max_wait_ms,
            *(max(50, int(pause_s * 1000)) for pause_s in pauses),
        ]
        if is_partial:
            waits.append(0 if self._last_pull_had_messages else PARTIAL_WAIT_MS)
        if self._state.is_unsettled(UNSETTLED_S):
            waits.append(UNSETTLED_WAIT_MS)
        if self._abandoned >= MAX_ABANDONED:
            waits.append(ABANDONED_WAIT_MS)
        return min(waits)

    def _room(self) -> int:
        """Return how many more messages may be buffered.

        In run(), messages at the handlers count too, unless the handlers will finish all of
        them within AHEAD_S. Less than a fraction of the bound counts as 0, so that pulls
        stay large.
        """
        state, bound = self._state, self._state.limits.max_poll_records
        if state.buffered_bytes >= self._options.fetch_max_bytes or state.buffered >= bound:
            return 0
        unfinished = state.count_unfinished() if state.has_worker_threads else 0
        if unfinished <= self._pace.per_s(state.finished) * AHEAD_S:
            return bound
        free = bound - unfinished
        return free if free >= max(1, bound // ROOM_FRACTION) else 0

    def _apply_answer(self, plan: Plan, answer: dict[str, Any]) -> bool:
        """Apply the result of each queue. Return True if there were messages."""
        results = {result["queue"]: result for result in answer["queues"]}
        has_messages = False
        for owned, offset, version in plan.queues:
            result = results.get(owned.queue)
            # A seek, an eviction or a revocation may have changed the queue while the pull
            # was under way.
            is_stale = (
                owned.lost or owned.revoked_until is not None or owned.version != version
            )
            if (
                result is None
                or is_stale
                or owned.is_suspended()
                or owned.position != offset
            ):
                continue
            if result["state"] == "ok":
                owned.failures = 0
                messages = parse_messages(
                    result, Source(owned.subscription, owned.queue, owned.epoch), Message
                )
                self._state.fill(owned, messages, result["next_offset"])
                has_messages = has_messages or bool(messages)
            else:
                self._handle_state(owned, result)
        return has_messages

    def _handle_state(self, owned: OwnedQueue, result: dict[str, Any]) -> None:
        """Handle a queue that could not be served; see `state` in the answer of a pull."""
        state = result["state"]
        if state == "fenced":
            # Another member has acquired the queue. If metadata still assigns it to this
            # member, it is acquired again.
            log.warning(
                "%s: another member owns it (epoch %d is fenced)", owned, owned.epoch
            )
            self._state.lose(owned)
            self._state.want_heartbeat()
        elif state in ("cleaned", "out_of_range"):
            # The position is below the log start offset or above the log end.
            policy = self._options.auto_offset_reset
            text = (
                f"{owned}: offset {owned.position} is outside {result['low']} to "
                f"{result['head']}"
            )
            if policy == "none":
                self._state.fail_with(OffsetReset(text))
                return
            target = result["low"] if policy == "earliest" else result["head"]
            log.warning("%s; continuing at %d", text, target)
            owned.position = target
        elif state == "lost_tail":
            target = int(result["next_offset"])
            log.error(
                "%s: its node was replaced; messages at offsets %d to %d are lost, "
                "continuing at %d",
                owned,
                owned.position,
                target - 1,
                target,
            )
            owned.position = target
        elif state == "stopped":
            # The pull may know of a stop before the next heartbeat, or may not know of a
            # start yet.
            log.info("%s: paused by an operator", owned)
            owned.back_off(max_s=MAX_PAUSE_S)
            self._state.set_stopped(owned, True)
            self._state.want_heartbeat()
        elif state == "corrupt":
            log.error("%s: corrupt: messages are missing; run manage.py verify", owned)
            owned.back_off(min_s=CORRUPT_PAUSE_S, max_s=CORRUPT_PAUSE_S)
        else:
            log.error("%s: cannot be pulled now: %s", owned, state)
            owned.back_off(max_s=MAX_PAUSE_S)
