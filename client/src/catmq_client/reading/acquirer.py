"""Takes hold of newly owned queues, beside the pulls: a slow node must not hold up the
queues that stay.

What failed once, perhaps on such a node, is tried again apart from what comes new.

While the buffer is full no pull waits at the broker that would hear of changes, so this
thread listens then: every LISTEN_S a pull of no queues, which touches no database and is
answered at once.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from catmq_client.errors import CatmqError
from catmq_client.http.failure_log import FailureLog
from catmq_client.http.transport import Transport
from catmq_client.reading.owned import OwnedQueue
from catmq_client.reading.part import ErrorHandler, Part
from catmq_client.reading.state import GroupState

log = logging.getLogger("catmq.consumer")

# What brokers take in one request.
MOST_QUEUES = 1_000
# Longest time that a queue is left alone that cannot be acquired now.
PAUSE_S = 1.0
LISTEN_S = 0.3
# How long there may be nothing to do; what changes that wakes the thread.
IDLE_S = 60.0


class Acquirer(Part):
    """Acquires for one consumer; `run` is its thread."""

    def __init__(
        self, *, transport: Transport, state: GroupState, handle_error: ErrorHandler
    ) -> None:
        super().__init__(transport=transport, state=state, handle_error=handle_error)
        self._listen_at = 0.0
        self._retrying = False
        self._failures = FailureLog(log, "acquiring queues")

    def run(self) -> None:
        state = self._state
        while not (state.closed or state.stopping) and state.fatal is None:
            try:
                self._step()
            except Exception:
                log.exception("internal error while acquiring queues; continuing")
                state.wait(PAUSE_S, lambda: state.stopping)

    def _step(self) -> None:
        state = self._state
        with state.changed:
            consumer_id, batch = state.consumer_id, self._due()
            delay_s = self._delay_s()
            if consumer_id is None or (not batch and delay_s > 0):
                state.changed.wait(IDLE_S if consumer_id is None else delay_s)
                return
            generation = state.heard
            again = bool(batch) and batch[0].failures > 0
            self._retrying = self._retrying or again
        if again:
            arguments = (consumer_id, batch)
            threading.Thread(
                target=self._retry, args=arguments, name="catmq-acquirer", daemon=True
            ).start()
        elif batch:
            self._acquire(consumer_id, batch)
        else:
            self._listen(consumer_id, generation)

    def _waiting(self) -> list[OwnedQueue]:
        """Return the queues to acquire, except for those that are being tried again."""
        queues = (
            o
            for o in self._state.queues.values()
            if not o.acquired and o.revoked_until is None
        )
        return [owned for owned in queues if not (self._retrying and owned.failures)]

    def _due(self) -> list[OwnedQueue]:
        """Return the queues to acquire now: the new ones, or else those that failed before."""
        now = time.monotonic()
        due = [owned for owned in self._waiting() if owned.not_before <= now]
        new = [owned for owned in due if not owned.failures]
        return (new or due)[:MOST_QUEUES]

    def _delay_s(self) -> float:
        state = self._state
        times = [owned.not_before for owned in self._waiting()]
        if state.full_since is not None:
            times.append(max(state.full_since + LISTEN_S, self._listen_at))
        return max(0.0, min(times, default=IDLE_S + time.monotonic()) - time.monotonic())

    def _retry(self, consumer_id: str, batch: list[OwnedQueue]) -> None:
        try:
            self._acquire(consumer_id, batch)
        except Exception:
            log.exception("internal error while acquiring queues; continuing")
        finally:
            with self._state.changed:
                self._retrying = False
                self._state.changed.notify_all()

    def _acquire(self, consumer_id: str, batch: list[OwnedQueue]) -> None:
        body = {"queues": [{"queue": o.queue, "epoch": o.epoch} for o in batch]}
        try:
            answer = self._post("consumers", consumer_id, "acquire", body=body)
        except CatmqError as error:
            self._failed(consumer_id, batch, error)
            return
        self._failures.ended()
        states = {item["queue"]: item for item in answer["queues"]}
        with self._state.changed:
            self._state.hear(answer.get("generation", 0))
            for owned in batch:
                self._acquired(owned, states.get(owned.queue, {"state": "missing"}))
            if any(owned.acquired and not owned.lost for owned in batch):
                self._state.on_gain()
            self._state.changed.notify_all()

    def _failed(self, consumer_id: str, batch: list[OwnedQueue], error: CatmqError) -> None:
        with self._state.changed:
            for owned in batch:
                owned.rest(least_s=(error.retry_after_ms or 0) / 1000, most_s=PAUSE_S)
        if not self._handle_error(error, consumer_id):
            self._failures.failed(error)

    def _acquired(self, owned: OwnedQueue, item: dict[str, Any]) -> None:
        if owned.lost or owned.revoked_until is not None:
            return
        if item["state"] in ("ok", "stopped") and item.get("offset") is not None:
            owned.start_at(item["offset"])
            if self._options.on_assigned:
                self._state.events.append((True, owned))
            return
        again = owned.failures > 0
        owned.rest(most_s=PAUSE_S)
        if item["state"] != "unavailable":
            # Fenced: it went on to another member already, or comes with a higher epoch.
            self._state.heartbeat_wanted = True
        level = logging.INFO if item["state"] == "fenced" else logging.WARNING
        level = logging.DEBUG if again else level
        log.log(level, "%s: acquire answered %s", owned, item["state"])

    def _listen(self, consumer_id: str, generation: int) -> None:
        """A pull of nothing, for the generation in its answer."""
        self._listen_at = time.monotonic() + LISTEN_S
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
            self._listen_at = time.monotonic() + PAUSE_S
            self._handle_error(error, consumer_id)
            return
        self._state.hear(answer["generation"])
