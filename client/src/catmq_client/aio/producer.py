"""The producer for asyncio: see AsyncProducer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from datetime import datetime
from itertools import islice
from types import TracebackType
from typing import Any, Literal, Self, Unpack

from catmq_client.errors import BufferFull, CatmqError
from catmq_client.http.transport import Transport
from catmq_client.instrumentation import observe_send
from catmq_client.keywords import ProducerKeywords
from catmq_client.loops import LoopBell, run_in_thread, start_in_thread
from catmq_client.options import ProducerOptions
from catmq_client.producer import ProcessState, Producer
from catmq_client.sending.accumulator import AppendedMessages, QueueBuffer
from catmq_client.sending.new_messages import (
    NOT_GIVEN,
    NewMessage,
    build_batch_messages,
    build_message,
)
from catmq_client.sending.receipts import Receipt, SendFuture
from catmq_client.sending.routing import Routes

# A coroutine that sends without ever waiting lets others run after this many messages.
YIELD_EVERY = 100


class _LoopState:
    """State of an AsyncProducer for an event loop that uses it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        # Held by the coroutine that is the next to get room in the full buffer, so that the
        # others wait in line.
        self.room_turn = asyncio.Lock()
        # Buffers with messages of send(). A call that makes them ready is scheduled for the
        # end of this turn of the loop.
        self.unready_buffers: set[QueueBuffer] = set()
        # Calls of send_soon() since it last let other tasks run.
        self.sends_since_yield = 0
        # The first look-ups of topics under way, and later ones in the background.
        self.look_ups: dict[str, asyncio.Task[Routes]] = {}
        self.refreshes: dict[str, Future[Routes]] = {}


class AsyncProducer:
    """Sends messages to topics, from coroutines. Safe to share between tasks and loops, and
    to use after a fork.

    The arguments and options are those of Producer. Each batch is stored only once, however
    often it is tried. If a task is cancelled while it waits for a receipt, the message may
    or may not be stored; while it waits for room in the buffer, it is not sent.
    """

    def __init__(
        self,
        urls: str | Sequence[str] | None = None,
        *,
        api_key: str | None = None,
        transport: Transport | None = None,
        verify: bool | str = True,
        proxies: Mapping[str, str] | None = None,
        compression: Literal["gzip"] | None = None,
        **options: Unpack[ProducerKeywords],
    ) -> None:
        """Create the producer without opening connections. It needs no running loop."""
        self._producer = Producer(
            urls,
            api_key=api_key,
            transport=transport,
            verify=verify,
            proxies=proxies,
            compression=compression,
            **options,
        )
        self.options: ProducerOptions = self._producer.options
        self._block_s = self.options.max_block_ms / 1000
        self._loop_states: dict[asyncio.AbstractEventLoop, _LoopState] = {}
        self._last_loop_state: _LoopState | None = None
        self._closing: Future[None] | None = None

    async def send(
        self,
        topic: str,
        body: bytes | str | None = None,
        *,
        json: Any = NOT_GIVEN,
        key: str | None = None,
        tag: str | None = None,
        headers: Mapping[str, str] | None = None,
        trace_id: str | None = None,
        queue: int | None = None,
        queue_strict: bool = True,
        delay_ms: int | None = None,
        deliver_at: datetime | None = None,
    ) -> Receipt:
        """Send a message and return its receipt once it is stored durably.

        Messages that tasks send in the same turn of the loop share a request. Arguments and
        errors are those of Producer.send(), and BufferFull after max_block_ms without room.
        """
        message = build_message(
            body, json=json, key=key, tag=tag, headers=headers, trace_id=trace_id, queue=queue,
            delay_ms=delay_ms, deliver_at=deliver_at, queue_strict=queue_strict,
        )  # fmt: skip
        loop_state = self._loop_state()
        with observe_send(topic, (message,)) as observer:
            state, appended = self._append_now(
                loop_state, topic, message, wakes_sender=False
            )
            if appended is None:
                appended = await self._append(
                    loop_state, topic, message, wakes_sender=False
                )
            future, buffer = appended
            if not loop_state.unready_buffers:
                # Not at once: the tasks that run in this turn of the loop fill the same
                # batches. A sender that took a batch earlier would divide them into small
                # requests.
                loop_state.loop.call_soon(_make_ready, loop_state, state)
            loop_state.unready_buffers.add(buffer)
            receipt = await future
            observer.succeed((receipt,))
        return receipt

    async def send_soon(
        self,
        topic: str,
        body: bytes | str | None = None,
        *,
        json: Any = NOT_GIVEN,
        key: str | None = None,
        tag: str | None = None,
        headers: Mapping[str, str] | None = None,
        trace_id: str | None = None,
        queue: int | None = None,
        queue_strict: bool = True,
        delay_ms: int | None = None,
        deliver_at: datetime | None = None,
    ) -> SendFuture:
        """Wait for room in the buffer. Return an awaitable of the receipt.

        The message is sent within linger_ms, in a batch, whether or not the receipt is awaited.
        Arguments and errors are those of send().
        """
        message = build_message(
            body, json=json, key=key, tag=tag, headers=headers, trace_id=trace_id, queue=queue,
            delay_ms=delay_ms, deliver_at=deliver_at, queue_strict=queue_strict,
        )  # fmt: skip
        loop_state = self._loop_state()
        with observe_send(topic, (message,)) as observer:
            state, appended = self._append_now(loop_state, topic, message)
            if appended is None:
                appended = await self._append(loop_state, topic, message)
            observer.follow(appended[0])
        state.start_sender_if_needed()
        loop_state.sends_since_yield += 1
        if loop_state.sends_since_yield >= YIELD_EVERY:
            loop_state.sends_since_yield = 0
            await asyncio.sleep(0)
        return appended[0]

    async def send_many(
        self, topic: str, messages: Iterable[NewMessage | bytes | str | Mapping[str, Any]]
    ) -> list[Receipt | CatmqError]:
        """Send messages and wait. Return the receipt or error of each message, in order.

        There may be more messages than the buffer holds: the iterable is read as room is
        released. An invalid message raises OptionError; those before it are sent.
        """
        loop_state = self._loop_state()
        appended: list[AppendedMessages] = []
        # Batches are read while earlier ones are sent, so each is followed on its own, until
        # all have ended.
        with ExitStack() as stack:
            observers = []
            for batch in _batches(messages, self.options.batch_messages):
                observers.append(stack.enter_context(observe_send(topic, batch)))
                await self._append_batch(loop_state, topic, batch, appended)
                await asyncio.sleep(0)
            results: list[Receipt | CatmqError] = []
            for part in appended:
                for run in part.runs:
                    await run.future
                results += part.await_outcomes()[: part.room_until]
            ends = iter(results)
            size = self.options.batch_messages
            for observer in observers:
                observer.succeed(list(islice(ends, size)))
        return results

    async def recall(self, message_id: str) -> None:
        """Delete a delayed message before its delivery; see Producer.recall()."""
        await run_in_thread(self._producer.recall, message_id)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all accepted messages have ended. Raises TimeoutError."""
        await run_in_thread(self._producer.flush, timeout_s)

    async def close(self, timeout_s: float | None = None) -> None:
        """Flush, within `timeout_s` seconds (default: delivery_timeout_ms), then close the
        connections.

        If the caller is cancelled, closing continues in its thread, and the program ends
        after it.
        """
        if self._closing is None:
            self._closing = start_in_thread(
                self._producer.close, timeout_s, name="catmq-close", daemon=False
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

    def _loop_state(self) -> _LoopState:
        loop = asyncio.get_running_loop()
        last = self._last_loop_state
        if last is not None and last.loop is loop:
            return last
        # No lock: loops of other threads may do the same, and a child may be forked meanwhile.
        # Each of these steps is atomic.
        for other in [*self._loop_states]:
            # A module-level producer may see many calls of asyncio.run().
            if other.is_closed():
                self._loop_states.pop(other, None)
        loop_state = self._loop_states.setdefault(loop, _LoopState(loop))
        self._last_loop_state = loop_state
        return loop_state

    def _append_now(
        self,
        loop_state: _LoopState,
        topic: str,
        message: dict[str, Any],
        *,
        wakes_sender: bool = True,
    ) -> tuple[ProcessState, tuple[SendFuture, QueueBuffer] | None]:
        """Append a message if that needs no waiting. Return the process's state, and the
        message's future and buffer.

        None instead of these: nothing was appended, and the caller must wait with _append().
        It waits for the topic's layout, for room, or for tasks that wait for room already.
        """
        state = self._producer._process_state()
        routes = self._routes(loop_state, state, topic)
        if routes is None or loop_state.room_turn.locked():
            return state, None
        try:
            return state, state.accumulator.append(
                routes, message, wakes_sender=wakes_sender
            )
        except BufferFull:
            return state, None

    async def _append(
        self,
        loop_state: _LoopState,
        topic: str,
        message: dict[str, Any],
        *,
        wakes_sender: bool = True,
    ) -> tuple[SendFuture, QueueBuffer]:
        """Append a message, after a wait for the topic's layout and for room."""
        state, routes = await self._await_routes(loop_state, topic)
        async with loop_state.room_turn:
            room = _Room(state, self._block_s)
            try:
                while True:
                    room.expect()
                    try:
                        return state.accumulator.append(
                            routes, message, wakes_sender=wakes_sender
                        )
                    except BufferFull:
                        await room.wait()
            finally:
                room.close()

    async def _append_batch(
        self,
        loop_state: _LoopState,
        topic: str,
        messages: list[dict[str, Any]],
        results: list[AppendedMessages],
    ) -> None:
        """Append messages that are ready at once. Add what was appended to `results`."""
        state, routes = await self._await_routes(loop_state, topic)
        async with loop_state.room_turn:
            room = _Room(state, self._block_s)
            try:
                while messages:
                    room.expect()
                    appended = state.accumulator.append_all(routes, messages, block_s=0.0)
                    state.accumulator.make_ready(appended.buffers())
                    state.start_sender_if_needed()
                    results.append(appended)
                    # Without room for a message, none after it is appended: they have to wait.
                    messages = messages[appended.room_until :]
                    if messages:
                        try:
                            await room.wait()
                        except BufferFull as error:
                            refused = AppendedMessages(len(messages))
                            refused.errors = dict.fromkeys(range(len(messages)), error)
                            results.append(refused)
                            return
            finally:
                room.close()

    def _routes(
        self, loop_state: _LoopState, state: ProcessState, topic: str
    ) -> Routes | None:
        """Return the routes of a topic, or None if a broker must be asked for them first."""
        routes, is_due = state.layouts.peek(topic)
        if is_due and routes is not None:
            # Fetched again in the background. Messages follow the layout in use meanwhile.
            refresh = loop_state.refreshes.get(topic)
            if refresh is None or refresh.done():
                loop_state.refreshes[topic] = start_in_thread(
                    lambda: state.routes(topic, within_s=0.0), name="catmq-layout"
                )
        return routes

    async def _await_routes(
        self, loop_state: _LoopState, topic: str
    ) -> tuple[ProcessState, Routes]:
        """Return the routes of a topic. Raises the error of their look-up."""
        state = self._producer._process_state()
        routes = self._routes(loop_state, state, topic)
        if routes is not None:
            return state, routes
        look_up = loop_state.look_ups.get(topic)
        if look_up is None:
            look_up = loop_state.look_ups[topic] = loop_state.loop.create_task(
                run_in_thread(lambda: state.routes(topic, within_s=self._block_s))
            )
            look_up.add_done_callback(lambda _: loop_state.look_ups.pop(topic, None))
        # Tasks that send to a new topic share its look-up, so the end of one of them must not
        # cancel it.
        return state, await asyncio.shield(look_up)


class _Room:
    """Waits for room in the buffer of a producer.

    The caller repeats: expect(), an attempt to append, and wait() if there was no room. Most
    appends find room at once, so the bell is made only by the first wait(). Room that was
    released before that has rung no bell, so the first wait() returns at once, for another
    attempt. Each later wait() waits.
    """

    def __init__(self, state: ProcessState, block_s: float) -> None:
        self._condition = state.accumulator.room_released
        self._block_s = block_s
        self._deadline = time.monotonic() + block_s
        self._bell: LoopBell | None = None

    def expect(self) -> None:
        """Arm the bell, if there is one, before an attempt: a release during the attempt ends
        the next wait().
        """
        if self._bell is not None:
            self._bell.arm()

    async def wait(self) -> None:
        """Wait until room was released since expect(); the first call does not wait.

        Raises BufferFull after max_block_ms.
        """
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise BufferFull(
                f"no room for {self._block_s:g} s: too many messages are unconfirmed"
            )
        if self._bell is None:
            self._bell = LoopBell()
            self._condition.add_bell(self._bell)
        else:
            await self._bell.wait(left_s)

    def close(self) -> None:
        if self._bell is not None:
            self._condition.remove_bell(self._bell)


def _make_ready(loop_state: _LoopState, state: ProcessState) -> None:
    buffers, loop_state.unready_buffers = loop_state.unready_buffers, set()
    state.accumulator.make_ready(buffers)
    state.start_sender_if_needed()


def _batches(
    messages: Iterable[NewMessage | bytes | str | Mapping[str, Any]], size: int
) -> Iterable[list[dict[str, Any]]]:
    """Yield the messages as they are sent, in lists of at most `size`."""
    items = iter(messages)
    while batch := build_batch_messages(islice(items, size)):
        yield batch
