"""The base class of consumers: iteration, poll(), run(), stop() and close()."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar, cast

from catmq_client.callables import check_callable
from catmq_client.errors import Closed, OptionError
from catmq_client.http.transport import HttpTransport, Transport
from catmq_client.message import Message
from catmq_client.options import ConsumerOptions, ShareConsumerOptions
from catmq_client.reading.dispatcher import Dispatcher
from catmq_client.reading.failure_reports import Reporter
from catmq_client.reading.membership import Membership
from catmq_client.reading.owned import OwnedQueue
from catmq_client.reading.state import GroupState
from catmq_client.reading.workers import Workers
from catmq_client.telemetry.traces import Traces
from catmq_client.version import SDK

log = logging.getLogger("catmq.consumer")

M = TypeVar("M", bound=Message)
# How long close() waits until the last traces are sent.
TRACES_TIMEOUT_S = 2.0


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
        self.topics = list(topics)
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"
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
        threads: int,
        order: str,
        batch: int | None,
    ) -> None:
        """Hand messages to threads until stop(), or until all queues have halted."""
        check_callable("handler", handler)
        state = self._state
        self._start_or_resume()
        state.has_worker_threads = True
        dispatcher = self._dispatcher = Dispatcher(state=state, order=order)
        workers = Workers(
            state=state,
            dispatcher=dispatcher,
            reporter=self._reporter,
            traces=self._traces,
            handler=handler,
            threads=threads,
            batch=batch,
        )
        try:
            while not state.stopping and not state.all_halted():
                dispatcher.dispatch(self._wait_for_messages(state.share_per_queue(), 1.0))
        finally:
            state.stopping = True
            workers.drain(self._close_timeout_s())
            self.close()
        if workers.handler_exit is not None:
            raise workers.handler_exit
        if state.failure is not None:
            raise state.failure

    def _take(self, limit: int, timeout_s: float | None) -> list[M]:
        """Finish the messages taken before, and wait for new messages."""
        # The application was at work on the messages taken before until now.
        traced_messages, self._traced_messages = self._traced_messages, []
        for owned, message in traced_messages:
            percent = self._state.settings_of(owned).trace_percent
            began = self._state.away_since
            if percent and began is not None:
                self._traces.add(
                    message, percent=percent, began=began, failed=message.failed
                )
        self._start_or_resume()
        taken: list[tuple[OwnedQueue, Message]] = []
        is_finished = False
        try:
            with self._state.changed:
                self._finish_taken()
            is_finished = True
            taken = self._wait_for_messages(limit, timeout_s)
            with self._state.changed:
                self._taken_queues = [*dict.fromkeys([owned for owned, _ in taken])]
                if any(
                    settings.trace_percent for settings in self._state.settings.values()
                ):
                    self._traced_messages = taken
            messages = [cast(M, message) for _, message in taken]
            # The application must come back within max_poll_interval_ms, also if it got no
            # message.
            self._state.away_since = time.monotonic()
            return messages
        except BaseException:
            # Raised into this thread (Ctrl-C, a soft time limit). Messages that the
            # application did not get must not count as finished when it asks for more.
            if is_finished:
                self._taken_queues, self._traced_messages = [], []
                self._state.undo_hand_out(taken)
            self._state.away_since = time.monotonic()
            raise

    def _wait_for_messages(
        self, limit: int, timeout_s: float | None
    ) -> list[tuple[OwnedQueue, Message]]:
        """Return messages to hand out, or [] after `timeout_s`, at stop(), or if all queues
        have halted.
        """
        state = self._state
        give_up_at = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            self._run_due_callbacks()
            with state.changed:
                self._raise_if_ended()
                if state.next_callback() is not None:
                    # A queue may have been granted in between. on_assigned is called before
                    # its first message.
                    continue
                taken = [] if state.stopping else state.hand_out(limit)
                left_s = 3600.0 if give_up_at is None else give_up_at - time.monotonic()
                if taken or state.stopping or left_s <= 0 or state.all_halted():
                    return taken
                state.changed.messages.wait(left_s)

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
