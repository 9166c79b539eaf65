"""Brings messages: acquires newly owned queues, then pulls ahead into a bounded buffer.

One pull at a time, for all queues, waiting at the broker until something comes. A seek or resume
must not wait for such a pull to end: it makes the pull's ticket invalid and starts another thread;
what the old one brings is thrown away.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from catmq_client.backoff import Backoff
from catmq_client.errors import CatmqError, Forbidden, Gone, InvalidRequest, OffsetReset, Unauthenticated
from catmq_client.message import Message
from catmq_client.owned import OwnedQueue
from catmq_client.state import GroupState
from catmq_client.transport import Transport, api_path

log = logging.getLogger("catmq.consumer")

# How long a queue is left alone that its node, or the broker, cannot serve now.
PAUSE_S = 1.0
# A hole that nobody declared waits for a person; asking every second would only fill logs.
SUSPECT_PAUSE_S = 5.0
# While the application is behind on some queues, the others are asked at least this often.
BEHIND_S = 0.1
# Pulls that were given up but still wait at the broker.
MAX_ABANDONED = 4


@dataclass(frozen=True, slots=True)
class Plan:
    """The next request: queues to acquire, else queues to pull."""

    consumer_id: str
    generation: int
    acquire: list[OwnedQueue]
    pull: list[tuple[OwnedQueue, int, int]]  # with offset and version when asked
    wait_ms: int
    limit: int
    some_are_full: bool


class Fetcher:
    """Fetches for one consumer."""

    def __init__(
        self, *, transport: Transport, state: GroupState, on_gone: Callable[[CatmqError, str | None], object]
    ) -> None:
        self._transport = transport
        self._state = state
        self._on_gone = on_gone
        self._options = state.options
        self._ticket = 0
        self._abandoned = 0
        self._in_pull = False
        self._asked_as: str | None = None
        self._turn = 0

    def start(self) -> None:
        """Starts the fetching thread."""
        ticket = self._ticket
        threading.Thread(target=self._run, args=(ticket,), name="catmq-fetcher", daemon=True).start()

    def interrupt(self) -> None:
        """Makes a waiting pull count for nothing, so that what just changed is fetched at once."""
        with self._state.changed:
            self._state.changed.notify_all()
            if not self._in_pull or self._abandoned >= MAX_ABANDONED:
                return
            self._ticket += 1
            self._abandoned += 1
            self._in_pull = False
            self.start()

    def _run(self, ticket: int) -> None:
        state = self._state
        options = self._options
        backoff = Backoff(base_ms=options.retry_backoff_ms, max_ms=min(2_000, options.retry_backoff_max_ms))
        while ticket == self._ticket and not state.closed and not state.stopping and state.fatal is None:
            try:
                self._step(ticket)
                backoff.reset()
            except CatmqError as error:
                self._after_failure(error, ticket, backoff)
            except Exception:
                log.exception("fetching met a bug; it goes on")
                state.wait(backoff.next_s(), lambda: state.stopping)
        with state.changed:
            self._abandoned -= ticket != self._ticket

    def _step(self, ticket: int) -> None:
        state = self._state
        with state.changed:
            plan = self._plan()
            if plan is None:
                state.changed.wait(PAUSE_S)
                return
            self._in_pull = not plan.acquire
            self._asked_as = plan.consumer_id
        if plan.acquire:
            self._acquire(plan)
            return
        answer = self._pull(plan)
        with state.changed:
            if ticket != self._ticket:
                return
            self._in_pull = False
            brought = self._take_over(plan, answer)
            self._after_pull(plan, answer, brought)

    def _plan(self) -> Plan | None:
        """What to ask for now; None when there is nothing to do or no room."""
        state = self._state
        consumer_id = state.consumer_id
        if consumer_id is None or not self._has_room():
            return None
        now = time.monotonic()
        wanted = [o for o in state.queues.values() if o.revoked_until is None and not o.halted]
        rested = [o for o in wanted if o.not_before <= now]
        share = state.share()
        readable = [o for o in rested if o.acquired and not o.paused and not o.stopped]
        hungry = [o for o in readable if len(o.buffer) < share and not state.is_stuck(o)]
        pull = [(o, o.position, o.version) for o in hungry]
        some_are_full = len(pull) < len(readable)
        acquire = [o for o in rested if not o.acquired]
        if some_are_full and not pull and not acquire:
            return None
        self._turn = (self._turn + 1) % max(1, len(pull))
        return Plan(
            consumer_id=consumer_id,
            generation=state.generation,
            acquire=acquire,
            pull=pull[self._turn :] + pull[: self._turn],
            wait_ms=0 if some_are_full else self._wait_ms(wanted, now),
            limit=self._options.max_poll_records,
            some_are_full=some_are_full,
        )

    def _has_room(self) -> bool:
        """Whether more may be held. What cannot be given out now is dropped before others starve for it."""
        state = self._state
        if self._is_full():
            for owned in state.queues.values():
                if owned.buffer and state.is_stuck(owned):
                    state.drop(owned)
        return not self._is_full()

    def _is_full(self) -> bool:
        state, options = self._state, self._options
        return state.buffered >= options.max_poll_records or state.buffered_bytes >= options.fetch_max_bytes

    def _wait_ms(self, wanted: list[OwnedQueue], now: float) -> int:
        """As long as allowed, but no longer than until a resting queue may be asked again."""
        rests = [o.not_before - now for o in wanted if o.not_before > now]
        rests += [PAUSE_S for o in wanted if o.stopped]
        return min([self._options.fetch_max_wait_ms, *(max(50, int(rest * 1000)) for rest in rests)])

    def _acquire(self, plan: Plan) -> None:
        body = {"queues": [{"queue": o.queue, "epoch": o.epoch} for o in plan.acquire]}
        answer = self._transport.request(
            "POST",
            api_path("consumers", plan.consumer_id, "acquire"),
            body=body,
            timeout_s=self._options.request_timeout_ms / 1000,
        )
        states = {item["queue"]: item for item in answer["queues"]}
        with self._state.changed:
            for owned in plan.acquire:
                self._acquired(owned, states.get(owned.queue, {"state": "missing"}))
            self._state.changed.notify_all()

    def _acquired(self, owned: OwnedQueue, item: dict[str, Any]) -> None:
        if owned.lost:
            return
        if item["state"] in ("ok", "stopped") and item.get("offset") is not None:
            owned.start_at(item["offset"])
            if self._options.on_assigned:
                self._state.events.append((True, owned))
            return
        # Fenced: the broker's metadata is behind its node and will come with a higher epoch.
        owned.not_before = time.monotonic() + PAUSE_S
        self._state.heartbeat_wanted = True
        log.warning("%s queue %d: acquire answered %s", owned.topic, owned.queue, item["state"])

    def _pull(self, plan: Plan) -> dict[str, Any]:
        queues = [{"queue": o.queue, "epoch": o.epoch, "offset": offset} for o, offset, _ in plan.pull]
        return self._transport.request(
            "POST",
            api_path("consumers", plan.consumer_id, "pull"),
            body={
                "generation": plan.generation,
                "queues": queues,
                "max_messages": plan.limit,
                "max_bytes": self._options.fetch_max_bytes,
                "wait_ms": plan.wait_ms,
            },
            timeout_s=(plan.wait_ms + self._options.request_timeout_ms) / 1000,
        )

    def _take_over(self, plan: Plan, answer: dict[str, Any]) -> bool:
        """Adds the messages of an answer; whether there were any."""
        pulled = {item["queue"]: item for item in answer["queues"]}
        brought = False
        for owned, offset, version in plan.pull:
            item = pulled.get(owned.queue)
            stale = owned.lost or owned.revoked_until is not None or owned.version != version
            shut = owned.paused or owned.halted
            if item is None or stale or shut or owned.position != offset:
                continue
            if item["state"] == "ok":
                brought = self._add(owned, item) or brought
            else:
                self._handle_state(owned, item)
        return brought

    def _add(self, owned: OwnedQueue, item: dict[str, Any]) -> bool:
        messages = [
            Message(topic=owned.topic, queue=owned.queue, epoch=owned.epoch, view=view)
            for view in item["messages"]
        ]
        self._state.fill(owned, messages, item["next_offset"])
        return bool(messages)

    def _handle_state(self, owned: OwnedQueue, item: dict[str, Any]) -> None:
        """A queue that could not be served; see `state` in the pull's answer."""
        state, where = item["state"], f"{owned.topic} queue {owned.queue}"
        if state == "fenced":
            log.warning("%s: fenced in epoch %d", where, owned.epoch)
            self._fenced(owned)
        elif state in ("cleaned", "out_of_range"):
            self._reset(owned, item, where)
        elif state == "lost_tail":
            target = int(item["next_offset"])
            log.error("%s: messages %d to %d were lost with a node", where, owned.position, target - 1)
            owned.position = target
        else:
            log.log(logging.INFO if state == "stopped" else logging.ERROR, "%s: %s", where, state)
            owned.not_before = time.monotonic() + (SUSPECT_PAUSE_S if state == "suspect" else PAUSE_S)

    def _fenced(self, owned: OwnedQueue) -> None:
        """The queue was taken from us. If metadata still says it is ours, it is acquired anew."""
        state = self._state
        state.lose(owned)
        state.want_heartbeat()

    def _reset(self, owned: OwnedQueue, item: dict[str, Any], where: str) -> None:
        """The position is below what retention kept, or above the head."""
        choice = self._options.auto_offset_reset
        what = f"{where}: offset {owned.position} is not among {item['low']} to {item['head']}"
        if choice == "none":
            self._state.die(OffsetReset(what))
            return
        target = item["low"] if choice == "earliest" else item["head"]
        log.warning("%s; going on at %d", what, target)
        owned.position = target

    def _after_pull(self, plan: Plan, answer: dict[str, Any], brought: bool) -> None:
        state = self._state
        if answer.get("assignment_changed") or answer["generation"] > state.generation:
            state.want_heartbeat()
            if not brought:
                # Asking again before the heartbeat has told us the news would be answered at once, for ever.
                known = plan.generation
                state.changed.wait_for(
                    lambda: state.generation != known or state.closed or state.stopping, PAUSE_S
                )
        elif plan.some_are_full and not brought:
            state.changed.wait(BEHIND_S)

    def _after_failure(self, error: CatmqError, ticket: int, backoff: Backoff) -> None:
        state = self._state
        with state.changed:
            if ticket == self._ticket:
                self._in_pull = False
        if isinstance(error, Gone) or error.code == "consumer_not_found":
            self._on_gone(error, self._asked_as)
            return
        if isinstance(error, Unauthenticated | Forbidden | InvalidRequest):
            state.die(error)
            return
        log.warning("fetching failed: %s", error)
        state.wait(backoff.next_s(error), lambda: state.stopping)
