"""Brings messages: pulls ahead into a bounded buffer.

One pull at a time, waiting at the broker until something comes. A seek, a resume, or a
queue that was just acquired must not wait for such a pull to end: it makes the pull's
ticket invalid and starts another thread; what the old one brings is thrown away. Pulls
carry the newest generation that any answer told of: one that waits ends when the next one
comes, and none is answered empty for news that a heartbeat already fetches.

What was fetched is kept: dropping it to make room means fetching it again, and a group that
falls behind would pull the same messages for ever. So when the bound is reached, queues of
which nothing is held are still asked, beyond it, for a part of a queue's share at a time:
together less than half as much again.
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
from catmq_client.reading.owned import OwnedQueue
from catmq_client.reading.part import MAX_ABANDONED, ErrorHandler, LongPoll
from catmq_client.reading.state import GroupState

log = logging.getLogger("catmq.consumer")

# What brokers take in one request. Who owns more asks for a part at a time, …
MOST_QUEUES = 1_000
# … and lets none of them wait longer than this at the broker.
PART_WAIT_MS = 100
# Longest time that a queue is left alone that its node, or the broker, cannot serve now.
PAUSE_S = 1.0
# The longest that a broker's wish to be asked later is followed.
MOST_PAUSE_S = 10.0
# An application that takes messages all the time makes room within it, and nobody else need
# be told.
MOMENT_S = 0.1
# A hole that nobody declared waits for a person; asking every second would only fill logs.
CORRUPT_PAUSE_S = 5.0
# While the application is behind on some queues, the others are asked at least this often.
BEHIND_S = 0.1
# run() holds more than its bound only if it is done with it within this time; else it asks
# for more when
# this part of the bound is free.
AHEAD_S = 1.0
ROOM_PART = 4
# Messages to ask for at least, of queues of which nothing is held.
LEAST_ASKED = 16
# How long pulls wait while queues may come within moments, and for how long after the news.
UNSETTLED_WAIT_MS = 100
UNSETTLED_S = 1.0
# A pull that ends by itself so soon is not given up for a queue that came.
SOON_S = 0.15
# While MAX_ABANDONED pulls still wait at the broker that were given up, none waits long.
ABANDONED_WAIT_MS = 500
# Over how long the pace is measured, s.
PACE_WINDOW_S = 1.0
# The shortest time that says anything, s: two threads may end in the same millisecond.
LEAST_PACE_S = 0.02


@dataclass(frozen=True, slots=True)
class Plan:
    consumer_id: str
    generation: int
    pull: list[tuple[OwnedQueue, int, int]]  # with offset and version when asked
    wait_ms: int
    limit: int
    most_bytes: int
    some_are_full: bool


def _pause_s(plan: Plan, answer: dict[str, Any]) -> float:
    """Return the seconds to pause after a pull that brought nothing, 0 if it waited at the
    broker.
    """
    # A broker where as many wait as may says when to ask again.
    turned_away_s: float = min(MOST_PAUSE_S, answer.get("retry_after_ms", 0) / 1000)
    return max(turned_away_s, BEHIND_S if plan.some_are_full else 0.0)


class Pace:
    """Messages a second that run() is done with, from a count that only rises."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._count = 0
        self._former = 0.0

    def per_s(self, count: int) -> float:
        """The pace, given the count now."""
        now = time.monotonic()
        passed_s = now - self._since
        pace = (count - self._count) / max(passed_s, LEAST_PACE_S)
        if passed_s > PACE_WINDOW_S:
            self._since, self._count, self._former = now, count, pace
        elif passed_s < PACE_WINDOW_S / 4:
            pace = max(pace, self._former)  # too soon to say that it fell
        return pace


class Fetcher(LongPoll):
    def __init__(
        self, *, transport: Transport, state: GroupState, handle_error: ErrorHandler
    ) -> None:
        super().__init__(transport=transport, state=state, handle_error=handle_error)
        # When the pull under way ends by itself, monotonic.
        self._ends_at = 0.0
        self._turn = 0
        self._brought = False
        self._pace = Pace()

    def nudge(self) -> None:
        """The same, but a pull that ends within moments is let be."""
        with self._state.changed:
            self._pokes += 1
            if self._ends_at - time.monotonic() > SOON_S:
                self.interrupt()

    def _step(self, ticket: int, backoff: Backoff) -> None:
        state = self._state
        with state.changed:
            plan = self._plan()
            if plan is None:
                self._wait_for_room()
                return
            state.full_since = None
            self._in_pull = True
            self._ends_at = time.monotonic() + plan.wait_ms / 1000
        try:
            answer = self._pull(plan)
        except CatmqError as error:
            self._after_failure(error, plan.consumer_id, ticket=ticket, backoff=backoff)
            return
        backoff.reset()
        with state.changed:
            state.hear(answer["generation"])
            if ticket != self._ticket:
                return
            self._in_pull = False
            if state.consumer_id != plan.consumer_id:
                # It left, or is another member by now.
                return
            self._brought = self._take_over(plan, answer)
            if not self._brought and (pause_s := _pause_s(plan, answer)):
                state.changed.wait(pause_s)

    def _wait_for_room(self) -> None:
        """Wait until a pull may be possible; if that takes long, the acquirer listens
        meanwhile.
        """
        state = self._state
        if state.full_since is not None:
            state.changed.room.wait(PAUSE_S)
        elif not state.changed.room.wait(MOMENT_S) and state.consumer_id is not None:
            state.full_since = time.monotonic()
            state.changed.notify_all()
        if state.consumer_id is None:
            state.full_since = None

    def _plan(self) -> Plan | None:
        """Return the plan of the next pull; None when there is nothing to do or no room."""
        state = self._state
        consumer_id = state.consumer_id
        if consumer_id is None:
            return None
        now = time.monotonic()
        wanted = [
            o for o in state.queues.values() if o.acquired and o.revoked_until is None
        ]
        open_ones = [o for o in wanted if not o.is_shut()]
        readable = [o for o in open_ones if o.not_before <= now]
        room = self._room()
        pull = [(o, o.position, o.version) for o in readable if self._may_ask(o, room)]
        some_are_full = len(pull) < len(readable)
        if not pull and (some_are_full or not room or state.is_unsettled(UNSETTLED_S)):
            # The first queue to read may come any moment: that ends a wait in here at once.
            return None
        rests = [o.not_before - now for o in open_ones if o.not_before > now]
        most_bytes = self._options.fetch_max_bytes
        return Plan(
            consumer_id=consumer_id,
            generation=state.heard,
            pull=self._part(pull),
            wait_ms=0
            if some_are_full
            else self._wait_ms(rests, in_parts=len(pull) > MOST_QUEUES),
            limit=self._limit(len(pull), room, some_are_full=some_are_full),
            most_bytes=most_bytes
            if room
            else max(1, most_bytes // max(1, len(state.queues))),
            some_are_full=some_are_full,
        )

    def _may_ask(self, owned: OwnedQueue, room: int) -> bool:
        """Return True if more of a queue may be held."""
        state = self._state
        if room:
            return len(owned.buffer) < state.share() and not state.is_stuck(owned)
        # Only run() holds messages that it cannot give out; poll() gives all to the next
        # call.
        return state.in_run and not owned.buffer and not owned.in_hand

    def _limit(self, queues: int, room: int, *, some_are_full: bool) -> int:
        """Return how many messages to ask for: while some queues are full, at most the
        others' shares.
        """
        share = self._state.share()
        if not room:
            return max(LEAST_ASKED, share // ROOM_PART)
        return min(room, max(1, queues) * share) if some_are_full else room

    def _part(
        self, pull: list[tuple[OwnedQueue, int, int]]
    ) -> list[tuple[OwnedQueue, int, int]]:
        """As many as one request takes, beginning with another queue each time."""
        count = max(1, len(pull))
        self._turn = (self._turn + (1 if count <= MOST_QUEUES else MOST_QUEUES)) % count
        return (pull[self._turn :] + pull[: self._turn])[:MOST_QUEUES]

    def _wait_ms(self, rests: list[float], *, in_parts: bool) -> int:
        """As long as allowed, but no longer than until there may be another queue to ask
        for.
        """
        waits = [
            self._state.limits.fetch_max_wait_ms,
            *(max(50, int(rest_s * 1000)) for rest_s in rests),
        ]
        if in_parts:
            waits.append(0 if self._brought else PART_WAIT_MS)
        if self._state.is_unsettled(UNSETTLED_S):
            waits.append(UNSETTLED_WAIT_MS)
        if self._abandoned >= MAX_ABANDONED:
            waits.append(ABANDONED_WAIT_MS)
        return min(waits)

    def _room(self) -> int:
        """Return how many more messages may be held.

        In run() those at its handlers are held, too. While they are many they count, unless
        it will be through with all of them within moments; and room is a part of the bound,
        so that pulls stay large.
        """
        state, most = self._state, self._state.limits.max_poll_records
        if state.buffered_bytes >= self._options.fetch_max_bytes or state.buffered >= most:
            return 0
        held = state.held() if state.in_run else 0
        if held <= self._pace.per_s(state.finished) * AHEAD_S:
            return most
        room = most - held
        return room if room >= max(1, most // ROOM_PART) else 0

    def _pull(self, plan: Plan) -> dict[str, Any]:
        queues = [
            {"queue": o.queue, "epoch": o.epoch, "offset": offset}
            for o, offset, _ in plan.pull
        ]
        body = {"generation": plan.generation, "queues": queues, "wait_ms": plan.wait_ms}
        body |= {"max_messages": plan.limit, "max_bytes": plan.most_bytes}
        timeout_s = (plan.wait_ms + self._options.request_timeout_ms) / 1000
        return self._post(
            "consumers", plan.consumer_id, "pull", body=body, timeout_s=timeout_s
        )

    def _take_over(self, plan: Plan, answer: dict[str, Any]) -> bool:
        """Add the messages of an answer; return True if there were any."""
        pulled = {item["queue"]: item for item in answer["queues"]}
        brought = False
        for owned, offset, version in plan.pull:
            item = pulled.get(owned.queue)
            stale = (
                owned.lost or owned.revoked_until is not None or owned.version != version
            )
            if item is None or stale or owned.is_shut() or owned.position != offset:
                continue
            if item["state"] == "ok":
                owned.failures = 0
                brought = self._add(owned, item) or brought
            else:
                self._handle_state(owned, item)
        return brought

    def _add(self, owned: OwnedQueue, item: dict[str, Any]) -> bool:
        source = Source(owned.subscription, owned.queue, owned.epoch)
        messages = parse_messages(item, source, Message)
        self._state.fill(owned, messages, item["next_offset"])
        return bool(messages)

    def _handle_state(self, owned: OwnedQueue, item: dict[str, Any]) -> None:
        """A queue that could not be served; see `state` in the pull's answer."""
        state = item["state"]
        if state == "fenced":
            # The queue was taken from us. If metadata still says it is ours, it is acquired
            # anew.
            log.warning(
                "%s: another member owns it (epoch %d is fenced)", owned, owned.epoch
            )
            self._state.lose(owned)
            self._state.want_heartbeat()
        elif state in ("cleaned", "out_of_range"):
            self._reset(owned, item)
        elif state == "lost_tail":
            target = int(item["next_offset"])
            what = (
                "%s: its node was replaced; messages at offsets %d to %d are lost, "
                "continuing at %d"
            )
            log.error(what, owned, owned.position, target - 1, target)
            owned.position = target
        elif state == "stopped":
            # Told before the heartbeat tells it, or by a broker that does not know of a
            # start yet.
            log.info("%s: paused by an operator", owned)
            owned.rest(most_s=PAUSE_S)
            self._state.set_stopped(owned, True)
            self._state.want_heartbeat()
        elif state == "corrupt":
            log.error("%s: corrupt: messages are missing; run manage.py verify", owned)
            owned.rest(least_s=CORRUPT_PAUSE_S, most_s=CORRUPT_PAUSE_S)
        else:
            log.error("%s: cannot be pulled now: %s", owned, state)
            owned.rest(most_s=PAUSE_S)

    def _reset(self, owned: OwnedQueue, item: dict[str, Any]) -> None:
        """The position is below what retention kept, or above the head."""
        choice = self._options.auto_offset_reset
        what = (
            f"{owned}: offset {owned.position} is outside {item['low']} to {item['head']}"
        )
        if choice == "none":
            self._state.fail_with(OffsetReset(what))
            return
        target = item["low"] if choice == "earliest" else item["head"]
        log.warning("%s; continuing at %d", what, target)
        owned.position = target
