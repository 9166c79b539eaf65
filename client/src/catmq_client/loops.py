"""Bridges from the threads of the client to asyncio event loops.

Threads never touch an asyncio future. They give the loop a call, `call_soon_threadsafe`, which
writes to a pipe and wakes the loop. That costs more than most work on a message, so each class
here makes a single call for all that has gathered. A closed loop is no error for a thread: the
call is dropped, and the thread continues with its other work.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

log: logging.Logger = logging.getLogger("catmq.aio")

T = TypeVar("T")


def call_in_loop(
    loop: asyncio.AbstractEventLoop, function: Callable[..., object], *arguments: Any
) -> bool:
    """Have the loop call a function soon. Return False if the loop is closed."""
    try:
        loop.call_soon_threadsafe(function, *arguments)
    except RuntimeError:
        return False
    return True


class LoopBell:
    """Wakes a coroutine that waits for the threads of the client.

    The coroutine arms the bell, looks for work, and waits if there is none. A thread that
    adds work after that look finds the bell armed, so no ring is lost. Only the first ring
    calls the loop, so threads pay nothing while the coroutine is busy.

    A signal handler may ring, too: there is no lock that it could wait for.
    """

    def __init__(self) -> None:
        """Create the bell of a coroutine of the running loop."""
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self._armed = False
        self._rung = False
        self._waiter: asyncio.Future[None] | None = None

    def arm(self) -> None:
        self._rung = False
        self._armed = True

    def ring(self) -> None:
        """Wake the coroutine. Any thread may call this."""
        # Two threads may both see the bell armed. The second wake-up does no harm.
        if self._armed:
            self._armed = False
            call_in_loop(self.loop, self.ring_in_loop)

    def ring_in_loop(self) -> None:
        """Wake the coroutine, from its own loop."""
        self._armed = False
        self._rung = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, timeout_s: float | None = None) -> None:
        """Wait for a ring since arm(), for at most `timeout_s` seconds."""
        if self._rung:
            return
        waiter = self._waiter = self.loop.create_future()
        timer = (
            None
            if timeout_s is None
            else self.loop.call_later(timeout_s, self.ring_in_loop)
        )
        try:
            await waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()


class BellCondition(threading.Condition):
    """A condition that coroutines can wait on, too: notifying it rings their bells."""

    def __init__(self, lock: Any = None) -> None:
        super().__init__(lock)
        # Changed and read under the lock of the condition.
        self._bells: set[LoopBell] = set()

    def add_bell(self, bell: LoopBell) -> None:
        with self:
            self._bells.add(bell)

    def remove_bell(self, bell: LoopBell) -> None:
        with self:
            self._bells.discard(bell)

    def notify(self, n: int = 1) -> None:
        """Wake `n` threads and all coroutines. notify_all() calls this, too."""
        super().notify(n)
        for bell in self._bells:
            bell.ring()


class LoopEvent(threading.Event):
    """An event that coroutines of any loop can wait for, too.

    However many coroutines wait, setting it calls each of their loops once.
    """

    def __init__(self) -> None:
        super().__init__()
        # Only appended to, so no lock is needed. A lock could stay held if an exception was
        # raised into a thread that sets the event, as Celery does for its soft time limit.
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def set(self) -> None:
        super().set()
        if self._waiters:
            self._call_loops()

    def waiter(self) -> asyncio.Future[None] | None:
        """Return a future of the running loop that ends with set(). None if that was called."""
        if self.is_set():
            return None
        loop = asyncio.get_running_loop()
        # A future for each waiter: a task that is cancelled cancels the future it waits for.
        waiter = loop.create_future()
        self._waiters.append((loop, waiter))
        if self.is_set():
            # set() may have looked at the waiters before this one was there.
            self._call_loops()
        return waiter

    def _call_loops(self) -> None:
        """Have each loop end its waiters. A second call for the same waiters does no harm."""
        waiters: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        for loop, waiter in [*self._waiters]:
            waiters.setdefault(loop, []).append(waiter)
        for loop, waiters_of_loop in waiters.items():
            call_in_loop(loop, _end_waiters, waiters_of_loop)


def _end_waiters(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        # It is done if its task was cancelled.
        if not waiter.done():
            waiter.set_result(None)


def start_in_thread(
    function: Callable[..., T], *arguments: Any, name: str, daemon: bool = True
) -> Future[T]:
    """Call a function that blocks in a new thread, with the caller's context variables.

    With daemon=False the program does not end before the function has returned. The default
    executor of the loop is not used: handlers that block may fill it, and close() would wait
    for them.
    """
    future: Future[T] = Future()
    # From here on cancelling the future has no effect, as nothing can stop the thread.
    future.set_running_or_notify_cancel()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            result = context.run(function, *arguments)
        except BaseException as error:  # noqa: BLE001
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=work, name=name, daemon=daemon).start()
    return future


async def run_in_thread(
    function: Callable[..., T], *arguments: Any, name: str = "catmq-aio"
) -> T:
    """Await a function that blocks. If the caller is cancelled, the function still ends."""
    return await asyncio.wrap_future(start_in_thread(function, *arguments, name=name))


def run_coroutine_from_thread(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T], *, timeout_s: float
) -> T:
    """Run a coroutine in a loop of another thread, and wait for it.

    Raises RuntimeError if the loop is closed, TimeoutError after `timeout_s` seconds.
    """
    try:
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    except RuntimeError:
        coroutine.close()
        raise
    try:
        return future.result(timeout_s)
    except TimeoutError:
        future.cancel()
        raise
