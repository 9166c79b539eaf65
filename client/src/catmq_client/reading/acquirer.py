"""Acquire newly owned queues, in a thread apart from the pulls.

An acquire writes the new epoch to the queue's node, which fences the former owner. A slow
node must not hold up the queues that are already read. For the same reason a queue whose
acquire failed is tried again in a thread and requests of its own.

While the buffer is full, no pull waits at the broker that could learn of a new generation.
Then this thread asks: every CHECK_S it sends a pull without queues, which the broker
answers at once and without the database.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from catmq_client.errors import CatmqError
from catmq_client.http.failure_log import FailureLog
from catmq_client.http.transport import Transport
from catmq_client.reading.component import Component, ErrorHandler
from catmq_client.reading.owned import OwnedQueue
from catmq_client.reading.state import GroupState

log: logging.Logger = logging.getLogger("catmq.consumer")

# Limit of brokers per request.
MAX_QUEUES = 1_000
# Longest pause before a queue is tried again that could not be acquired.
MAX_PAUSE_S = 1.0
CHECK_S = 0.3
# Longest sleep without work. What gives the thread work also wakes it.
IDLE_S = 60.0


class Acquirer(Component):
    """Acquires the queues of a consumer; `run` is the body of its thread."""

    def __init__(
        self, *, transport: Transport, state: GroupState, handle_error: ErrorHandler
    ) -> None:
        super().__init__(transport=transport, state=state, handle_error=handle_error)
        self._check_at = 0.0
        self._is_retrying = False
        self._failures = FailureLog(log, "acquiring queues")

    def run(self) -> None:
        state = self._state
        while not (state.closed or state.stopping) and state.fatal is None:
            try:
                self._acquire_due_queues()
            except Exception:
                log.exception("internal error while acquiring queues; continuing")
                state.wait(MAX_PAUSE_S, lambda: state.stopping)

    def _acquire_due_queues(self) -> None:
        """Acquire the due queues, ask for the generation, or wait until either is due."""
        state = self._state
        with state.changed:
            consumer_id, batch = state.consumer_id, self._due()
            times = [owned.not_before for owned in self._queues_to_acquire()]
            if state.full_since is not None:
                times.append(max(state.full_since + CHECK_S, self._check_at))
            delay_s = min(times, default=IDLE_S + time.monotonic()) - time.monotonic()
            if consumer_id is None or (not batch and delay_s > 0):
                state.changed.wait(IDLE_S if consumer_id is None else delay_s)
                return
            generation = state.newest_generation
            is_retry = bool(batch) and batch[0].failures > 0
            self._is_retrying = self._is_retrying or is_retry
        if is_retry:
            threading.Thread(
                target=self._acquire_again,
                args=(consumer_id, batch),
                name="catmq-acquirer",
                daemon=True,
            ).start()
        elif batch:
            self._acquire(consumer_id, batch)
        else:
            # A pull without queues, for the generation in its answer.
            self._check_at = time.monotonic() + CHECK_S
            body = {
                "generation": generation,
                "queues": [],
                "max_messages": 1,
                "max_bytes": 1,
                "wait_ms": 0,
            }
            try:
                answer = self._post("consumers", consumer_id, "pull", body=body)
            except CatmqError as error:
                self._check_at = time.monotonic() + MAX_PAUSE_S
                self._handle_error(error, consumer_id)
                return
            state.note_generation(answer["generation"])

    def _queues_to_acquire(self) -> list[OwnedQueue]:
        """Return the queues that are not acquired, without those that another thread
        retries.
        """
        return [
            owned
            for owned in self._state.queues.values()
            if not owned.acquired
            and owned.revoked_until is None
            and not (self._is_retrying and owned.failures)
        ]

    def _due(self) -> list[OwnedQueue]:
        """Return the queues to acquire now: new queues first, failed queues only if there
        is no new queue.
        """
        now = time.monotonic()
        # A node that hangs delays the whole request, so queues that failed never share it
        # with new queues.
        due_queues = [
            owned for owned in self._queues_to_acquire() if owned.not_before <= now
        ]
        new_queues = [owned for owned in due_queues if not owned.failures]
        return (new_queues or due_queues)[:MAX_QUEUES]

    def _acquire_again(self, consumer_id: str, batch: list[OwnedQueue]) -> None:
        """Acquire queues that failed before. Runs in a thread of its own."""
        try:
            self._acquire(consumer_id, batch)
        except Exception:
            log.exception("internal error while acquiring queues; continuing")
        finally:
            with self._state.changed:
                self._is_retrying = False
                self._state.changed.notify_all()

    def _acquire(self, consumer_id: str, batch: list[OwnedQueue]) -> None:
        body = {"queues": [{"queue": owned.queue, "epoch": owned.epoch} for owned in batch]}
        try:
            answer = self._post("consumers", consumer_id, "acquire", body=body)
        except CatmqError as error:
            with self._state.changed:
                for owned in batch:
                    owned.back_off(
                        min_s=(error.retry_after_ms or 0) / 1000, max_s=MAX_PAUSE_S
                    )
            if not self._handle_error(error, consumer_id):
                self._failures.failed(error)
            return
        self._failures.ended()
        queue_states = {
            queue_state["queue"]: queue_state for queue_state in answer["queues"]
        }
        with self._state.changed:
            self._state.note_generation(answer.get("generation", 0))
            for owned in batch:
                self._apply_state(
                    owned, queue_states.get(owned.queue, {"state": "missing"})
                )
            if any(owned.acquired and not owned.lost for owned in batch):
                self._state.on_readable()
            self._state.changed.notify_all()

    def _apply_state(self, owned: OwnedQueue, queue_state: dict[str, Any]) -> None:
        """Start reading an acquired queue, or put it off if the node refused it."""
        # The queue may have been revoked or lost while the request was under way.
        if owned.lost or owned.revoked_until is not None:
            return
        if (
            queue_state["state"] in ("ok", "stopped")
            and queue_state.get("offset") is not None
        ):
            owned.start_at(queue_state["offset"])
            if self._options.on_assigned:
                self._state.events.append((True, owned))
            return
        was_refused_before = owned.failures > 0
        # A missing or unavailable queue may come back: its node may be down, or slow.
        owned.back_off(max_s=MAX_PAUSE_S)
        if queue_state["state"] != "unavailable":
            # Fenced: the queue belongs to another member, or to us under a higher epoch. A
            # heartbeat brings the current assignment.
            self._state.heartbeat_wanted = True
        level = logging.INFO if queue_state["state"] == "fenced" else logging.WARNING
        level = logging.DEBUG if was_refused_before else level
        log.log(level, "%s: acquire answered %s", owned, queue_state["state"])
