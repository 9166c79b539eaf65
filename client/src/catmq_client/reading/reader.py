"""The side of a consumer that its application sees; see Reader."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, Self, TypeVar, cast

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
from catmq_client.reading.workers import Handler, Workers
from catmq_client.telemetry.traces import Traces
from catmq_client.version import SDK

log = logging.getLogger("catmq.consumer")

M = TypeVar("M", bound=Message)
# How long close() waits for the last traces to be sent.
LAST_TRACES_S = 2.0


class Reader(AbstractContextManager["Reader[M]"], Generic[M]):
    """Base of Consumer and ShareConsumer: takes messages from the state, in iteration,
    poll() and run().
    """

    options: ConsumerOptions | ShareConsumerOptions
    _state: GroupState

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
        compression: str | None = None,
        **options: Any,
    ) -> None:
        """Subscribe to `topics`, and make the group, if the API key may; `name` tells
        members apart.
        """
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
            own = {
                "api_key": api_key,
                "verify": verify,
                "proxies": proxies,
                "compression": compression,
            }
            transport = self._own_transport = HttpTransport(urls, **own)  # type: ignore[arg-type]
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
        self._reporter = Reporter(
            transport=transport,
            state=self._state,
            handle_error=self._membership.handle_error,
        )
        self._dispatcher: Dispatcher | None = None
        # What the application has taken from and not come back from.
        self._hand: list[OwnedQueue] = []
        self._traced: list[tuple[OwnedQueue, Message]] = []
        self._assemble()

    def _configure(self, options: Mapping[str, Any]) -> None:
        """Check the options, and make the state."""
        raise NotImplementedError

    def _assemble(self) -> None:
        """Make the parts that speak to brokers."""
        raise NotImplementedError

    def _parts(self) -> Iterable[Callable[[], object]]:
        """Return what runs in threads of its own, beside the membership."""
        raise NotImplementedError

    def _give_up_all(self, within_s: float) -> None:
        """End in order: no more messages, the last reports."""
        raise NotImplementedError

    def _close_limit_s(self) -> float:
        raise NotImplementedError

    def _finish_hand(self) -> None:
        """The application came back: note what that means for what it has taken."""
        raise NotImplementedError

    def _call_back(self) -> None:
        """Call the functions of the application that are due, in its own thread."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> M:
        """The next message; what was yielded before is done. Ends at stop(), or after
        consumer_timeout_ms.
        """
        limit_ms = self.options.consumer_timeout_ms
        if not self._state.closed:
            for message in self._take(1, None if limit_ms is None else limit_ms / 1000):
                return message
        raise StopIteration

    def poll(self, max_messages: int | None = None, timeout_s: float = 1.0) -> list[M]:
        """Return up to `max_messages` (default max_poll_records); [] if none came in
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
        if state.closed or self._pid != os.getpid():
            return
        self.stop()
        within_s = self._close_limit_s() if timeout_s is None else timeout_s
        try:
            if self._started:
                self._give_up_all(within_s)
                self._traces.close(LAST_TRACES_S)
        finally:
            with state.changed:
                state.closed = True
                state.changed.notify_all()
            self._membership.part()
            if self._own_transport is not None:
                self._own_transport.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run_handler(
        self, handler: Handler, *, threads: int, order: str, batch: int | None
    ) -> None:
        """Hand messages to threads until stop(), or until all stands still."""
        check_callable("handler", handler)
        state = self._state
        self._enter()
        state.in_run = True
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
                dispatcher.dispatch(self._wait_for_messages(state.share(), 1.0))
        finally:
            state.stopping = True
            workers.drain(self._close_limit_s())
            self.close()
        if workers.broken is not None:
            raise workers.broken
        if state.failure is not None:
            raise state.failure

    def _take(self, limit: int, timeout_s: float | None) -> list[M]:
        self._trace_hand()
        self._enter()
        taken: list[tuple[OwnedQueue, Message]] = []
        came_back = False
        try:
            with self._state.changed:
                self._finish_hand()
            came_back = True
            taken = self._wait_for_messages(limit, timeout_s)
            with self._state.changed:
                self._hand = [*dict.fromkeys([owned for owned, _ in taken])]
                if any(one.trace_percent for one in self._state.settings.values()):
                    self._traced = taken
            messages = [cast(M, message) for _, message in taken]
            # Whatever it got, the application now has to come back in time.
            self._state.away_since = time.monotonic()
            return messages
        except BaseException:
            # Raised into this thread (Ctrl-C, a soft time limit): what the application did
            # not get
            # must not count as finished when it asks for more.
            if came_back:
                self._hand, self._traced = [], []
                self._state.undo_hand_out(taken)
            self._state.away_since = time.monotonic()
            raise

    def _trace_hand(self) -> None:
        """The application came back: what it was given of traced subscriptions took until
        now.
        """
        traced, self._traced = self._traced, []
        for owned, message in traced:
            percent, began = (
                self._state.settings_of(owned).trace_percent,
                self._state.away_since,
            )
            if percent and began is not None:
                self._traces.add(
                    message, percent=percent, began=began, failed=message.failed
                )

    def _wait_for_messages(
        self, limit: int, timeout_s: float | None
    ) -> list[tuple[OwnedQueue, Message]]:
        """Wait for messages to give out; [] after `timeout_s`, at stop(), or when all
        queues stand still.
        """
        state = self._state
        give_up_at = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            self._call_back()
            with state.changed:
                self._raise_if_ended()
                if state.next_event() is not None:
                    # A queue may have come in between: on_assigned is called before its
                    # first message.
                    continue
                taken = [] if state.stopping else state.hand_out(limit)
                left_s = 3600.0 if give_up_at is None else give_up_at - time.monotonic()
                if taken or state.stopping or left_s <= 0 or state.all_halted():
                    return taken
                state.changed.messages.wait(left_s)

    def _enter(self) -> None:
        self._check_process()
        self._state.away_since = None
        if not self._started:
            self._started = True
            for part in (self._membership.run, *self._parts()):
                threading.Thread(target=part, name="catmq-consumer", daemon=True).start()

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise Closed(
                f"this {type(self).__name__} belongs to the parent process: create one "
                "after the fork"
            )

    def _raise_if_ended(self) -> None:
        state = self._state
        if state.fatal is not None:
            raise state.fatal
        if state.failure is not None and not state.in_run and state.all_halted():
            raise state.failure
        silence, state.silence = state.silence, None
        if silence is not None:
            # It tells of all queues.
            state.unreported.clear()
            state.want_heartbeat()
            raise silence
