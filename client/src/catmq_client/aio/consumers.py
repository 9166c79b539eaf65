"""The consumers for asyncio: AsyncConsumer and AsyncShareConsumer."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar, Unpack, cast, overload

from catmq_client.callables import (
    check_callable,
    check_coroutine_function,
    is_coroutine_function,
)
from catmq_client.consumer import Consumer
from catmq_client.errors import Closed, OptionError
from catmq_client.http.transport import Transport
from catmq_client.keywords import ConsumerKeywords, ShareConsumerKeywords
from catmq_client.loops import (
    LoopBell,
    run_coroutine_from_thread,
    run_in_thread,
    start_in_thread,
)
from catmq_client.message import AssignedQueue, Message
from catmq_client.options import ConsumerOptions, ShareConsumerOptions
from catmq_client.reading.coroutines import CoroutineHandler
from catmq_client.reading.dispatcher import check_sizes_and_order
from catmq_client.reading.owned import OwnedQueue
from catmq_client.reading.reader import MAX_WAIT_S, Reader
from catmq_client.share_consumer import ShareConsumer
from catmq_client.sharing.messages import ShareMessage

log: logging.Logger = logging.getLogger("catmq.consumer")

M = TypeVar("M", bound=Message)

# Handlers at work at once in run().
CONCURRENCY = 100
# Iteration that never waits lets other tasks run after this many messages.
YIELD_EVERY = 100
# Limit of a callback that close() waits for, s.
CALLBACK_TIMEOUT_S = 30.0


class _AsyncReader(Generic[M]):
    """Base class of the consumers for asyncio, over the Reader of a plain consumer.

    The threads of the Reader fetch messages and send all requests. This class does in
    coroutines what Reader does in the application's thread: it asks for messages, and calls
    the callbacks. It calls the same steps of Reader, which are private to both, with its own
    way to wait: on a bell that the threads ring, never on a lock for more than microseconds.
    """

    options: ConsumerOptions | ShareConsumerOptions
    _reader: Reader[M]

    def __init__(self, reader: Reader[M]) -> None:
        self._reader = reader
        self.group: str = reader.group
        self.topics: list[str] = reader.topics
        self.name: str = reader.name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._bell: LoopBell | None = None
        # A task waits for messages, or is in run().
        self._in_use = False
        # Calls of _take() since it last let other tasks run.
        self._takes_since_yield = 0
        self._closing: Future[None] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> M:
        """Return the next message; the message before counts as finished.

        Iteration ends at stop(), or after consumer_timeout_ms without a message.
        """
        limit_ms = self._reader.options.consumer_timeout_ms
        if not self._reader._state.closed:
            messages = await self._take(1, None if limit_ms is None else limit_ms / 1000)
            if messages:
                return messages[0]
        raise StopAsyncIteration

    async def poll(
        self, max_messages: int | None = None, timeout_s: float = 1.0
    ) -> list[M]:
        """Return up to `max_messages` (default max_poll_records), or [] if none came in
        `timeout_s` seconds.
        """
        state = self._reader._state
        if state.closed:
            raise Closed("the consumer is closed")
        return await self._take(max_messages or state.limits.max_poll_records, timeout_s)

    def stop(self) -> None:
        """End iteration and run(). Safe in signal handlers and from other threads."""
        self._reader.stop()

    async def close(self, timeout_s: float | None = None) -> None:
        """Commit or report finished messages, within `timeout_s` seconds, and leave the
        group.

        If the caller is cancelled, closing continues in its thread, and the program ends
        after it.
        """
        # The engine of a forked child has nothing to close.
        if self._reader._pid != os.getpid():
            return
        if self._closing is None:
            self._reader.stop()
            self._closing = start_in_thread(
                self._reader.close, timeout_s, name="catmq-close", daemon=False
            )
        await asyncio.wrap_future(self._closing)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _run(
        self, handler: CoroutineHandler, *, concurrency: int, order: str, batch: int | None
    ) -> None:
        check_coroutine_function("handler", handler)
        check_sizes_and_order(order=order, batch=batch, concurrency=concurrency)
        self._begin_use()
        try:
            handler_exit = await self._reader._run_coroutines(
                handler,
                concurrency=concurrency,
                order=order,
                batch=batch,
                run_callbacks=self._run_due_callbacks,
            )
        finally:
            self._in_use = False
            await self.close()
        self._reader._raise_after_run(handler_exit)

    async def _take(self, limit: int, timeout_s: float | None) -> list[M]:
        """Finish the messages taken before, and wait for new messages.

        Between the moment that messages are handed out and the return there is no await.
        So a task that is cancelled here has lost none.
        """
        reader = self._reader
        self._begin_use()
        try:
            reader._begin_take(limit)
            with reader._state.changed:
                reader._finish_taken()
            self._takes_since_yield += 1
            if self._takes_since_yield >= YIELD_EVERY:
                self._takes_since_yield = 0
                await asyncio.sleep(0)
            return reader._note_taken(await self._wait_for_messages(limit, timeout_s))
        finally:
            self._in_use = False
            # Also if the task was cancelled: the application must come back in time.
            reader._state.away_since = time.monotonic()

    async def _wait_for_messages(
        self, limit: int, timeout_s: float | None
    ) -> list[tuple[OwnedQueue, Message]]:
        """Return messages to hand out, or [] after `timeout_s`, at stop(), or if all queues
        have halted.
        """
        reader, state = self._reader, self._reader._state
        give_up_at = math.inf if timeout_s is None else time.monotonic() + timeout_s
        bell: LoopBell | None = None
        while True:
            await self._run_due_callbacks()
            with state.changed:
                reader._raise_if_ended()
                if state.next_callback() is not None:
                    continue
                left_s = give_up_at - time.monotonic()
                messages = reader._try_hand_out(limit, left_s)
                if messages is not None:
                    return messages
                if bell is None:
                    # Armed under the lock, so whatever comes from now on rings.
                    bell = self._bell_of_loop()
                bell.arm()
            await bell.wait(min(left_s, MAX_WAIT_S))

    async def _run_due_callbacks(self) -> None:
        """Call the callbacks of the application that are due, in its loop."""

    def _begin_use(self) -> None:
        """Note that a task waits for messages. Raises OptionError if another one does."""
        self._reader._check_process()
        loop = asyncio.get_running_loop()
        if self._in_use and self._loop is not None and not self._loop.is_closed():
            place = "task" if self._loop is loop else "event loop"
            raise OptionError(
                f"this {type(self).__name__} is in use by another {place}: use each by a "
                "single task, or create another with the same group"
            )
        self._in_use = True
        self._loop = loop

    def _bell_of_loop(self) -> LoopBell:
        """Return the bell of the loop in use, which may be another than at the last call."""
        if self._bell is None or self._bell.loop is not self._loop:
            condition = self._reader._state.changed.messages
            if self._bell is not None:
                condition.remove_bell(self._bell)
            self._bell = LoopBell()
            condition.add_bell(self._bell)
        return self._bell


class AsyncConsumer(_AsyncReader[Message]):
    """Reads the queues that its group assigns to it: iterate with `async for`, `poll`, or
    `run` a coroutine handler.

    A message is finished when the application asks for the next one: in iteration the next
    message, in poll() the next batch; in run() when its handler returns. Arguments, options
    and guarantees are those of Consumer; on_assigned and on_revoked may be coroutine
    functions, and are called in the loop.

    Use it from a single task at a time; stop() may be called from anywhere. It connects when
    the first message is requested. It may be used by one event loop after another, but not
    in a forked process.
    """

    options: ConsumerOptions
    _reader: Consumer

    def __init__(
        self,
        urls: str | Sequence[str] | None = None,
        *,
        group: str | None = None,
        topics: Sequence[str] = (),
        name: str | None = None,
        api_key: str | None = None,
        transport: Transport | None = None,
        verify: bool | str = True,
        proxies: Mapping[str, str] | None = None,
        compression: Literal["gzip"] | None = None,
        **options: Unpack[ConsumerKeywords],
    ) -> None:
        """Create the consumer without a connection or an event loop. The arguments are those
        of Consumer.
        """
        # The Reader closes in a thread, where it calls callbacks like plain functions. So it
        # gets objects that run them in the loop.
        if (on_assigned := options.get("on_assigned")) is not None:
            options["on_assigned"] = self._loop_callback("on_assigned", on_assigned)
        if (on_revoked := options.get("on_revoked")) is not None:
            options["on_revoked"] = self._loop_callback("on_revoked", on_revoked)
        reader = Consumer(
            urls, group=group, topics=topics, name=name, api_key=api_key,
            transport=transport, verify=verify, proxies=proxies, compression=compression,
            **options,
        )  # fmt: skip
        super().__init__(reader)
        self.options = self._reader.options

    @overload
    async def run(
        self,
        handler: Callable[[Message], Awaitable[object]],
        *,
        concurrency: int = CONCURRENCY,
        order: Literal["key", "queue", "none"] = "key",
        batch: None = None,
    ) -> None: ...

    @overload
    async def run(
        self,
        handler: Callable[[list[Message]], Awaitable[object]],
        *,
        concurrency: int = CONCURRENCY,
        order: Literal["key", "queue", "none"] = "key",
        batch: int,
    ) -> None: ...

    async def run(
        self,
        handler: Callable[[Any], Awaitable[object]],
        *,
        concurrency: int = CONCURRENCY,
        order: Literal["key", "queue", "none"] = "key",
        batch: int | None = None,
    ) -> None:
        """Call the coroutine function `handler(message)` until stop(); then finish, commit
        and leave.

        `concurrency` calls are at work at once. order: "key" (the messages of a key in order,
        never two at a time), "queue" or "none". batch: the handler gets a list of at most
        this many messages of the same topic. Failures are handled as by Consumer.run().

        A call is cancelled if its queue is lost, or after the subscription's
        handler_timeout_ms. If run() is cancelled, all calls are cancelled, and their
        messages are delivered again. Of these only the timeout counts as a failure.
        """
        await self._run(handler, concurrency=concurrency, order=order, batch=batch)

    def fail(self, message: Message, error: BaseException | str = "") -> None:
        """Report a failed message; see Consumer.fail(). The report is sent by a thread."""
        self._reader.fail(message, error)

    async def commit(self, offsets: Mapping[int, int] | None = None) -> None:
        """Commit all yielded messages (in run(): those whose handlers returned), or
        `offsets` by queue. Errors are those of Consumer.commit().
        """
        await run_in_thread(self._reader.commit, offsets)

    def assignment(self) -> list[AssignedQueue]:
        """Return the owned queues."""
        return self._reader.assignment()

    def position(self, queue: int) -> int:
        """Return the offset of the next message."""
        return self._reader.position(queue)

    def committed(self, queue: int) -> int:
        """Return the committed offset of an owned queue."""
        return self._reader.committed(queue)

    def seek(self, queue: int, offset: int) -> None:
        """Continue at `offset`; see Consumer.seek()."""
        self._reader.seek(queue, offset)

    async def seek_to_beginning(self, *queues: int) -> None:
        """Continue at the log start offset of these queues (default: all owned)."""
        await run_in_thread(self._reader.seek_to_beginning, *queues)

    async def seek_to_end(self, *queues: int) -> None:
        """Continue at the log end offset of these queues (default: all owned)."""
        await run_in_thread(self._reader.seek_to_end, *queues)

    def pause(self, *queues: int) -> None:
        """Deliver nothing from these queues (default: all owned) until resume()."""
        self._reader.pause(*queues)

    def resume(self, *queues: int) -> None:
        """Deliver from these queues again (default: all owned)."""
        self._reader.resume(*queues)

    def paused(self) -> list[AssignedQueue]:
        """Return the owned queues that are paused."""
        return self._reader.paused()

    def paused_by_breaker(self) -> list[AssignedQueue]:
        """Return the owned queues that run() has paused because their handler kept failing."""
        return self._reader.paused_by_breaker()

    def _loop_callback(
        self, name: str, callback: Callable[[list[AssignedQueue]], object]
    ) -> _LoopCallback:
        return _LoopCallback(name, callback, lambda: self._loop)

    async def _run_due_callbacks(self) -> None:
        while (event := self._reader._next_due_callback()) is not None:
            _, callback, owned = event
            try:
                # The callback is a _LoopCallback: __init__ made it. It is called for each queue
                # alone, since each has an event of its own.
                if callback is not None:
                    await cast(_LoopCallback, callback).call_in_loop([owned.name])
            finally:
                self._reader._end_callback(owned)


class AsyncShareConsumer(_AsyncReader[ShareMessage]):
    """Reads messages that any member of its group may get: iterate with `async for`, `poll`,
    or `run` a coroutine handler.

    A message is accepted when the application asks for the next one: in iteration the next
    message, in poll() the next batch; in run() when its handler returns. accept(), release(),
    reject() and renew() of a message do not wait for a broker. Arguments, options and
    guarantees are those of ShareConsumer.

    Take messages in a single task at a time; any task may accept them. It may be used by one
    event loop after another, but not in a forked process.
    """

    options: ShareConsumerOptions
    _reader: ShareConsumer

    def __init__(
        self,
        urls: str | Sequence[str] | None = None,
        *,
        group: str | None = None,
        topics: Sequence[str] = (),
        name: str | None = None,
        api_key: str | None = None,
        transport: Transport | None = None,
        verify: bool | str = True,
        proxies: Mapping[str, str] | None = None,
        compression: Literal["gzip"] | None = None,
        **options: Unpack[ShareConsumerKeywords],
    ) -> None:
        """Create the consumer without a connection or an event loop. The arguments are those
        of ShareConsumer.
        """
        reader = ShareConsumer(
            urls, group=group, topics=topics, name=name, api_key=api_key,
            transport=transport, verify=verify, proxies=proxies, compression=compression,
            **options,
        )  # fmt: skip
        super().__init__(reader)
        self.options = self._reader.options

    @overload
    async def run(
        self,
        handler: Callable[[ShareMessage], Awaitable[object]],
        *,
        concurrency: int = CONCURRENCY,
        batch: None = None,
    ) -> None: ...

    @overload
    async def run(
        self,
        handler: Callable[[list[ShareMessage]], Awaitable[object]],
        *,
        concurrency: int = CONCURRENCY,
        batch: int,
    ) -> None: ...

    async def run(
        self,
        handler: Callable[[Any], Awaitable[object]],
        *,
        concurrency: int = CONCURRENCY,
        batch: int | None = None,
    ) -> None:
        """Call the coroutine function `handler(message)` until stop(); then finish, report
        and leave.

        `concurrency` calls are at work at once. batch: the handler gets a list of at most
        this many messages of the same topic. A call is cancelled if its lease is lost, and
        after max_processing_ms or the subscription's handler_timeout_ms. If run() is
        cancelled, all calls are, and their messages are given back to the group. Only the
        handler timeout counts as a failure.
        """
        # _run() repeats these checks. Here they come before _note_capacity(), which computes with
        # the sizes.
        check_coroutine_function("handler", handler)
        check_sizes_and_order(order="none", batch=batch, concurrency=concurrency)
        self._reader._note_capacity(concurrency, batch)
        await self._run(handler, concurrency=concurrency, order="none", batch=batch)

    def fail(self, message: ShareMessage, error: BaseException | str = "") -> None:
        """Report a failed message; see ShareConsumer.fail(). The report is sent by a thread."""
        self._reader.fail(message, error)

    async def commit(self) -> None:
        """Report all messages that are accepted, released or rejected. Errors are those of
        ShareConsumer.commit().
        """
        await run_in_thread(self._reader.commit)


class _LoopCallback:
    """A callback of the application that runs in its event loop.

    While the application takes messages, the consumer awaits call_in_loop(). close() works in
    a thread of its own. There the Reader calls this object like a function: the call has the
    callback run in the loop, and waits for it in the thread.
    """

    def __init__(
        self,
        name: str,
        callback: Callable[[list[AssignedQueue]], object],
        loop: Callable[[], asyncio.AbstractEventLoop | None],
    ) -> None:
        if not is_coroutine_function(callback):
            check_callable(name, callback)
        self._name = name
        self._callback = callback
        self._loop = loop

    async def call_in_loop(self, queues: list[AssignedQueue]) -> None:
        result = self._callback(queues)
        if inspect.isawaitable(result):
            await cast(Awaitable[object], result)

    def __call__(self, queues: list[AssignedQueue]) -> None:
        loop = self._loop()
        if loop is None or loop.is_closed() or not loop.is_running():
            log.warning("%s is not called: its event loop has ended", self._name)
            return
        run_coroutine_from_thread(
            loop, self.call_in_loop(queues), timeout_s=CALLBACK_TIMEOUT_S
        )
