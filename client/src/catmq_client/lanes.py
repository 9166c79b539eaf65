"""The workers of run(): handlers in parallel, in order within a lane.

A lane is a key of a queue (order="key"), a queue (order="queue") or a single message (order="none",
and messages without a key). One handler at a time is at work on a lane. A handler that raises is
called again in place, handler_attempts times in all; then its queue stands still, because going on
would break the order and committing past the message would lose it. The lanes of a queue that an operator
stopped rest, and hold no thread, until it is started.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from catmq_client.backoff import Backoff
from catmq_client.errors import HandlerFailed, OptionError
from catmq_client.message import Message
from catmq_client.owned import OwnedQueue
from catmq_client.state import GroupState

log = logging.getLogger("catmq.consumer")

Handler = Callable[[Message], object]
ORDERS = ("key", "queue", "none")


class Task(NamedTuple):
    """A message to handle; `version` tells whether a seek has made it void."""

    owned: OwnedQueue
    version: int
    message: Message


class Lanes:
    """Hands tasks to worker threads."""

    def __init__(self, *, state: GroupState, handler: Handler, threads: int, order: str) -> None:
        if order not in ORDERS:
            raise OptionError(f"order={order!r}: write one of {', '.join(ORDERS)}")
        if threads < 1:
            raise OptionError(f"threads={threads}: write at least 1")
        self._state = state
        self._handler = handler
        self._order = order
        self._lanes: dict[Any, deque[Task]] = {}
        self._ready: deque[Any] = deque()
        self._resting: list[Any] = []
        self._work = threading.Condition()
        self._ending = False
        self.failure: HandlerFailed | None = None
        # A handler that ended by SystemExit or the like: run() ends with it.
        self.broken: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._run, name=f"catmq-handler-{n}", daemon=True) for n in range(threads)
        ]
        state.on_start = self.rouse
        for thread in self._threads:
            thread.start()

    def dispatch(self, taken: list[tuple[OwnedQueue, Message]]) -> None:
        """Puts messages on their lanes, in the order given."""
        with self._work:
            for owned, message in taken:
                task = Task(owned, owned.version, message)
                key = self._lane_of(message)
                lane = self._lanes.get(key)
                if lane is not None:
                    lane.append(task)
                    continue
                self._lanes[key] = deque([task])
                self._ready.append(key)
            self._work.notify(len(taken))
        self.rouse()

    def rouse(self) -> None:
        """Goes on with the lanes that rest for no reason any more."""
        with self._work:
            roused = [key for key in self._resting if not self._rests(key)]
            if roused:
                self._resting = [key for key in self._resting if key not in roused]
                self._ready.extend(roused)
                self._work.notify(len(roused))

    def drain(self, timeout_s: float) -> None:
        """Lets handlers at work finish, for at most `timeout_s`, and starts no more."""
        with self._work:
            self._ending = True
            self._work.notify_all()
        with self._state.changed:
            self._state.changed.notify_all()
        give_up_at = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, give_up_at - time.monotonic()))

    def _lane_of(self, message: Message) -> Any:
        if self._order == "queue":
            return message.queue
        if self._order == "key" and message.key is not None:
            return message.queue, message.key
        return message.queue, message.epoch, message.offset, None

    def _run(self) -> None:
        while (key := self._next()) is not None:
            try:
                over = self._handle(self._lanes[key][0])
            except BaseException as error:  # noqa: BLE001 - SystemExit in a handler must end run(), not just a thread
                self._break(error)
                return
            self._end(key, over)

    def _next(self) -> Any:
        with self._work:
            self._work.wait_for(lambda: self._ending or self._ready)
            return None if self._ending else self._ready.popleft()

    def _end(self, key: Any, over: bool) -> None:
        with self._work:
            lane = self._lanes[key]
            if over:
                lane.popleft()
            elif self._rests(key):
                self._resting.append(key)
                return
            if lane:
                self._ready.append(key)
                self._work.notify()
            else:
                del self._lanes[key]

    def _rests(self, key: Any) -> bool:
        # Without the state's lock: whoever starts a queue says so first, and rouses its lanes then.
        task = self._lanes[key][0]
        return task.owned.stopped and not self._is_void(task)

    def _handle(self, task: Task) -> bool:
        """Whether the task is over; if not, its queue is stopped, and it has to wait."""
        state, owned = self._state, task.owned
        if not self._begin(task):
            return self._is_void(task)
        done = False
        try:
            done = self._attempts(task)
        finally:
            # In one step: a queue that is idle is released, and must know of its last message by then.
            with state.changed:
                state.handlers_since.pop(threading.get_ident(), None)
                if done:
                    state.finish(owned, task.message.offset, task.version)
                owned.running -= 1
                if owned.revoked_until is not None:
                    state.changed.notify_all()
        return done or self._is_void(task)

    def _begin(self, task: Task) -> bool:
        """Waits for the lease; False when the queue is not ours to work on, or stopped."""
        state = self._state
        with state.changed:
            state.changed.wait_for(lambda: self._is_barred(task) or state.has_lease())
            if self._is_barred(task):
                return False
            task.owned.running += 1
            state.handlers_since[threading.get_ident()] = time.monotonic()
            return True

    def _is_void(self, task: Task) -> bool:
        owned = task.owned
        gone = owned.lost or owned.halted or owned.revoked_until is not None or owned.version != task.version
        return gone or self._ending

    def _is_barred(self, task: Task) -> bool:
        return task.owned.stopped or self._is_void(task)

    def _attempts(self, task: Task) -> bool:
        """Calls the handler until it returns; False when it did not: the queue is halted or stopped."""
        options = self._state.options
        backoff = Backoff(base_ms=options.retry_backoff_ms, max_ms=options.retry_backoff_max_ms)
        for attempt in range(1, options.handler_attempts + 1):
            try:
                self._handler(task.message)
            except Exception as error:
                log.warning("%r: the handler failed, try %d", task.message, attempt, exc_info=True)
                if attempt == options.handler_attempts:
                    self._halt(task, error)
                elif not self._pause(task, backoff.next_s()):
                    return False
            else:
                return True
        return False

    def _pause(self, task: Task, seconds: float) -> bool:
        """Waits before the next try; False when it must not start any more."""
        state = self._state
        with state.changed:
            state.changed.wait_for(lambda: self._is_barred(task), seconds)
            state.changed.wait_for(lambda: self._is_barred(task) or state.has_lease())
            return not self._is_barred(task)

    def _halt(self, task: Task, error: Exception) -> None:
        tries = self._state.options.handler_attempts
        detail = f"{task.message!r}: the handler failed {tries} times, its queue stands still: {error!r}"
        failure = HandlerFailed(detail)
        failure.__cause__ = error
        log.error("%s", detail)
        with self._state.changed:
            task.owned.halted = True
            self._state.drop(task.owned)
            self.failure = self.failure or failure
            self._state.changed.notify_all()

    def _break(self, error: BaseException) -> None:
        with self._state.changed:
            self.broken = self.broken or error
            self._state.stopping = True
            self._state.changed.notify_all()
