"""The base class of consumers: iteration, poll(), run(), stop() and close()."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar, cast

from catmq_client.callables import check_callable, is_coroutine_function
from catmq_client.errors import Closed, OptionError
from catmq_client.http.transport import HttpTransport, Transport
from catmq_client.instrumentation import wrap_handler
from catmq_client.message import Message
from catmq_client.options import ConsumerOptions, ShareConsumerOptions
from catmq_client.reading.coroutines import CoroutineHandler, CoroutineRun
from catmq_client.reading.dispatcher import Dispatcher, check_sizes_and_order
from catmq_client.reading.failure_reports import Reporter
from catmq_client.reading.membership import Membership
from catmq_client.reading.outcomes import Outcomes
from catmq_client.reading.owned import OwnedQueue
from catmq_client.reading.state import GroupState
from catmq_client.reading.workers import Workers
from catmq_client.telemetry.traces import Traces
from catmq_client.version import SDK

log: logging.Logger = logging.getLogger("catmq.consumer")

M = TypeVar("M", bound=Message)
# How long close() waits until the last traces are sent.
TRACES_TIMEOUT_S = 2.0
# Longest sleep of the application's thread; every event wakes it earlier.
MAX_WAIT_S = 3600.0


class Reader(Generic[M]):
    """Base class of Consumer and ShareConsumer: takes messages from the shared state."""

    options: ConsumerOptions | ShareConsumerOptions
    _state: GroupState
    _reporter_class: type[Reporter] = Reporter

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
        **options: Any,
    ) -> None:
        self._configure(options)
        if group is None:
            raise OptionError("group is missing: name the consumer group")
        if isinstance(topics, str):
            raise OptionError(f"topics={topics!r}: give a list, [{topics!r}]")
        self.group = group
        self.topics: list[str] = list(topics)
        self.name: str = (
            name or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"
        )
        self._own_transport: HttpTransport | None = None
        if transport is None:
            transport = self._own_transport = HttpTransport(
                urls,
                api_key=api_key,
                verify=verify,
                proxies=proxies,
                compression=compression,
            )
        self._transport = transport
        self._pid = os.getpid()
        self._started = False
        self._membership = Membership(
            transport=transport,
            state=self._state,
            group=group,
            topics=self.topics,
            name=self.name,
            sdk=SDK,
            group_settings=self.options.group_settings(),
        )
        self._traces = Traces(
            transport=transport,
            consumer_id=lambda: self._state.consumer_id,
        )
        self._reporter = self._reporter_class(
            transport=transport,
            state=self._state,
            handle_error=self._membership.handle_error,
        )
        self._dispatcher: Dispatcher | None = None
        # Queues with messages that the application has taken and not come back from.
        self._taken_queues: list[OwnedQueue] = []
        self._traced_messages: list[tuple[OwnedQueue, Message]] = []
        self._thread_bodies = self._assemble()

    def _configure(self, options: Mapping[str, Any]) -> None:
        """Check the options, and create the state."""
        raise NotImplementedError

    def _assemble(self) -> Iterable[Callable[[], object]]:
        """Create the components that send requests. Return the bodies of their threads."""
        raise NotImplementedError

    def _finish_work(self, within_s: float) -> None:
        """Hand out no more messages, and send the last reports and commits."""
        raise NotImplementedError

    def _close_timeout_s(self) -> float:

        raise NotImplementedError

    def _finish_taken(self) -> None:
        """Finish the messages that the application took before: it has asked for more."""
        raise NotImplementedError

    def _run_due_callbacks(self) -> None:
        """Call the callbacks of the application that are due, in its own thread."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> M:
        """Return the next message; the message before counts as finished.

        Iteration ends at stop(), or after consumer_timeout_ms without a message.
        """
        limit_ms = self.options.consumer_timeout_ms
        if not self._state.closed:
            for message in self._take(1, None if limit_ms is None else limit_ms / 1000):
                return message
        raise StopIteration

    def poll(self, max_messages: int | None = None, timeout_s: float = 1.0) -> list[M]:
        """Return up to `max_messages` (default max_poll_records), or [] if none came in
        `timeout_s` seconds.
        """
        if self._state.closed:
            raise Closed("the consumer is closed")
        return self._take(max_messages or self._state.limits.max_poll_records, timeout_s)

    def stop(self) -> None:
        """End iteration and run(). Safe in signal handlers and from other threads."""
        with self._state.changed:
            self._state.stopping = True
            self._state.changed.notify_all()

    def close(self, timeout_s: float | None = None) -> None:
        """End the work within `timeout_s` seconds, and leave the group."""
        state = self._state
        # A forked child has no threads and must not leave the group in the parent's name.
        if state.closed or self._pid != os.getpid():
            return
        self.stop()
        within_s = self._close_timeout_s() if timeout_s is None else timeout_s
        try:
            if self._started:
                self._finish_work(within_s)
                self._traces.close(TRACES_TIMEOUT_S)
        finally:
            with state.changed:
                state.closed = True
                state.changed.notify_all()
            # After `closed` is set: a registration that ends later sees it and leaves by
            # itself.
            self._membership.end_membership()
            if self._own_transport is not None:
                self._own_transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _run_handler(
        self,
        handler: Callable[[Any], object],
        *,
        workers: int,
        order: str,
        batch: int | None,
    ) -> None:
        """Hand messages to the handler until stop(), or until all queues have halted.

        `workers` is the number of threads, or of coroutines at work in a loop of this thread.
        """
        check_sizes_and_order(order=order, batch=batch, threads=workers)
        if is_coroutine_function(handler):
            self._run_in_own_loop(
                cast(CoroutineHandler, handler), workers=workers, order=order, batch=batch
            )
            return
        check_callable("handler", handler)
        state, (dispatcher, outcomes) = self._state, self._begin_run(order)
        thread_pool = Workers(
            state=state,
            dispatcher=dispatcher,
            outcomes=outcomes,
            handler=wrap_handler(handler, group=self.group),
            threads=workers,
            batch=batch,
        )
        try:
            while not state.stopping and not state.all_halted():
                dispatcher.dispatch(self._wait_for_messages(state.share_per_queue(), 1.0))
        finally:
            state.stopping = True
            thread_pool.drain(self._close_timeout_s())
            self.close()
        self._raise_after_run(thread_pool.handler_exit)

    def _run_in_own_loop(
        self,
        handler: CoroutineHandler,
        *,
        workers: int,
        order: str,
        batch: int | None,
    ) -> None:
        """Run a coroutine handler in an event loop of this thread."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise OptionError(
                f"run() of a {type(self).__name__} was called in an event loop, which it "
                f"would block: use catmq_client.aio.Async{type(self).__name__}"
            )

        async def run_due_callbacks() -> None:
            self._run_due_callbacks()

        async def run() -> BaseException | None:
            return await self._run_coroutines(
                handler,
                concurrency=workers,
                order=order,
                batch=batch,
                run_callbacks=run_due_callbacks,
            )

        handler_exit = None
        try:
            with asyncio.Runner() as runner:
                handler_exit = runner.run(run())
        finally:
            self._state.stopping = True
            self.close()
        self._raise_after_run(handler_exit)

    async def _run_coroutines(
        self,
        handler: CoroutineHandler,
        *,
        concurrency: int,
        order: str,
        batch: int | None,
        run_callbacks: Callable[[], Awaitable[object]],
    ) -> BaseException | None:
        """Hand messages to a coroutine handler in the running loop; does not close.

        Return the SystemExit, or the like, that a handler raised.
        """
        state, (dispatcher, outcomes) = self._state, self._begin_run(order)
        coroutine_run = CoroutineRun(
            state=state,
            dispatcher=dispatcher,
            outcomes=outcomes,
            handler=wrap_handler(handler, group=self.group),
            concurrency=concurrency,
            batch=batch,
        )
        await coroutine_run.run(
            hand_out=self._hand_out_to_run,
            run_callbacks=run_callbacks,
            end_timeout_s=self._close_timeout_s(),
        )
        return coroutine_run.handler_exit

    def _begin_run(self, order: str) -> tuple[Dispatcher, Outcomes]:
        dispatcher = Dispatcher(state=self._state, order=order)
        self._start_or_resume()
        self._state.has_worker_threads = True
        self._dispatcher = dispatcher
        return dispatcher, Outcomes(
            state=self._state,
            dispatcher=dispatcher,
            reporter=self._reporter,
            traces=self._traces,
        )

    def _hand_out_to_run(self) -> list[tuple[OwnedQueue, Message]]:
        """Return messages for coroutines of run(), [] if there are none now."""
        state = self._state
        with state.changed:
            self._raise_if_ended()
            if state.next_callback() is not None:
                return []
            return self._try_hand_out(state.share_per_queue(), math.inf) or []

    def _raise_after_run(self, handler_exit: BaseException | None) -> None:
        if handler_exit is not None:
            raise handler_exit
        if self._state.failure is not None:
            raise self._state.failure

    def _take(self, limit: int, timeout_s: float | None) -> list[M]:
        """Finish the messages taken before, and wait for new messages."""
        self._begin_take(limit)
        taken: list[tuple[OwnedQueue, Message]] = []
        is_finished = False
        try:
            with self._state.changed:
                self._finish_taken()
            is_finished = True
            taken = self._wait_for_messages(limit, timeout_s)
            return self._note_taken(taken)
        except BaseException:
            # Raised into this thread (Ctrl-C, a soft time limit). Messages that the
            # application did not get must not count as finished when it asks for more.
            if is_finished:
                self._taken_queues, self._traced_messages = [], []
                self._state.undo_hand_out(taken)
            self._state.away_since = time.monotonic()
            raise

    def _begin_take(self, limit: int) -> None:
        """Note that the application wants up to `limit` messages from now on.

        It was at work on the messages taken before until now.
        """
        traced_messages, self._traced_messages = self._traced_messages, []
        for owned, message in traced_messages:
            percent = self._state.settings_of(owned).trace_percent
            began = self._state.away_since
            if percent and began is not None:
                self._traces.add(
                    message, percent=percent, began=began, failed=message.failed
                )
        self._start_or_resume()

    def _note_taken(self, taken: list[tuple[OwnedQueue, Message]]) -> list[M]:
        """Note that the application gets these messages. Return them."""
        with self._state.changed:
            self._taken_queues = [*dict.fromkeys([owned for owned, _ in taken])]
            if any(settings.trace_percent for settings in self._state.settings.values()):
                self._traced_messages = taken
        messages = [cast(M, message) for _, message in taken]
        # The application must come back within max_poll_interval_ms, also if it got no
        # message.
        self._state.away_since = time.monotonic()
        return messages

    def _wait_for_messages(
        self, limit: int, timeout_s: float | None
    ) -> list[tuple[OwnedQueue, Message]]:
        """Return messages to hand out, or [] after `timeout_s`, at stop(), or if all queues
        have halted.
        """
        state = self._state
        give_up_at = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while True:
            self._run_due_callbacks()
            with state.changed:
                self._raise_if_ended()
                if state.next_callback() is not None:
                    # A queue may have been granted in between. on_assigned is called before
                    # its first message.
                    continue
                left_s = give_up_at - time.monotonic()
                taken = self._try_hand_out(limit, left_s)
                if taken is not None:
                    return taken
                state.changed.messages.wait(min(left_s, MAX_WAIT_S))

    def _try_hand_out(
        self, limit: int, left_s: float
    ) -> list[tuple[OwnedQueue, Message]] | None:
        """Return messages to hand out, or None if the caller is to wait for some.

        Called under the lock. With less than 0 of `left_s` seconds there is no waiting.
        """
        state = self._state
        taken = [] if state.stopping else state.hand_out(limit)
        if taken or state.stopping or left_s <= 0 or state.all_halted():
            return taken
        return None

    def _start_or_resume(self) -> None:
        """Note that the application waits for messages.

        Start the threads at the first call.
        """
        self._check_process()
        self._state.away_since = None
        if not self._started:
            self._started = True
            for thread_body in (self._membership.run, *self._thread_bodies):
                threading.Thread(
                    target=thread_body, name="catmq-consumer", daemon=True
                ).start()

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise Closed(
                f"this {type(self).__name__} belongs to the parent process: create one "
                "after the fork"
            )

    def _raise_if_ended(self) -> None:
        """Raise the error that has ended the consumer, halted all queues, or ended its
        membership.
        """
        state = self._state
        if state.fatal is not None:
            raise state.fatal
        if (
            state.failure is not None
            and not state.has_worker_threads
            and state.all_halted()
        ):
            raise state.failure
        poll_timeout, state.poll_timeout = state.poll_timeout, None
        if poll_timeout is not None:
            # The error covers all queues, so the next commit() need not report them again.
            state.unannounced_losses.clear()
            state.want_heartbeat()
            raise poll_timeout
