"""The producer: sends messages to topics, in batches, with retries.

An application thread appends a message to a buffer (sending/accumulator.py). Threads of the
producer, the *senders*, take batches from the buffers and send them (sending/delivery.py).
send() and send_batch() also deliver in the caller's own thread, which saves a change of
threads.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, Self, Unpack

from catmq_client.errors import BufferFull, CatmqError, Closed
from catmq_client.http.transport import HttpTransport, Transport, api_path
from catmq_client.instrumentation import is_installed, observe_send
from catmq_client.keywords import ProducerKeywords
from catmq_client.options import ProducerOptions, check_options, list_options
from catmq_client.sending.accumulator import Accumulator, QueueBuffer
from catmq_client.sending.delivery import Delivery
from catmq_client.sending.new_messages import (
    NOT_GIVEN,
    NewMessage,
    build_batch_messages,
    build_message,
)
from catmq_client.sending.receipts import Batch, Pending, Receipt, RunFuture, SendFuture
from catmq_client.sending.routing import Layouts, Routes

log: logging.Logger = logging.getLogger("catmq.producer")

# A sender thread without work ends after this time. The next send starts another thread.
SENDER_IDLE_S = 30.0


class ProcessState:
    """The buffers, layouts and sender threads of a producer in a single process.

    The *layout* of a topic is what brokers say about its queues. Its *routes* choose the
    queue of each message by it (sending/routing.py).

    It is created at the first send. A forked child creates its own: the threads of its
    parent do not exist there.
    """

    def __init__(self, transport: Transport, options: ProducerOptions) -> None:
        self.pid: int = os.getpid()
        self.accumulator: Accumulator = Accumulator(options)
        self.layouts: Layouts = Layouts(
            transport,
            max_age_s=options.metadata_max_age_ms / 1000,
            timeout_s=options.request_timeout_ms / 1000,
            on_failure=lambda error: self.delivery.log_failure(error),
        )
        self.delivery: Delivery = Delivery(
            transport=transport,
            accumulator=self.accumulator,
            layouts=self.layouts,
            options=options,
        )
        self.accumulator.on_full = self.start_sender_if_needed
        self._max_senders = options.max_in_flight
        self._senders = 0
        self._lock = threading.Lock()

    def routes(self, topic: str, *, within_s: float) -> Routes:
        """Return the routes of a topic, after its layout was fetched again if it was old.

        The first call for a topic asks a broker, for at most `within_s` seconds.
        """
        routes = self.layouts.routes(topic, within_s=within_s)
        layout = self.layouts.refresh(topic, after_refusal=False)
        if layout is not None:
            # Not Routes.replace(): messages that wait in buffers must be moved, too.
            self.accumulator.apply_layout(routes, layout)
        return routes

    def start_sender_if_needed(self) -> None:
        """Start a sender if a batch waits, none is idle, and max_in_flight allows it."""
        # Read without the lock: this runs for every send. The lock is taken only to start a
        # thread.
        if (
            self.accumulator.idle_senders
            or self._senders >= self._max_senders
            or not self.accumulator.needs_sender()
        ):
            return
        with self._lock:
            if self._senders >= self._max_senders:
                return
            self._senders += 1
        sender = threading.Thread(target=self._run_sender, name="catmq-sender", daemon=True)
        try:
            sender.start()
        except BaseException:
            # The system has no more threads, or an exception was raised into the caller. If
            # the thread did start (it has an ident), it subtracts itself when it ends.
            if sender.ident is None:
                with self._lock:
                    self._senders -= 1
            raise

    def deliver_in_caller(
        self, future: Pending, buffer: QueueBuffer, *, own: Collection[Pending]
    ) -> None:
        """Send batches of a buffer in the caller's thread until `future` is done.

        It stops early when another thread has a batch of this buffer in flight. `own` are
        the futures of the caller's messages, `future` among them. An exception that is
        raised into the thread passes (Ctrl-C, a soft time limit, a timeout of gevent). The
        caller's messages then end with an error; those of other threads are still sent.
        """
        taken_batch = None
        try:
            while not future.done():
                taken_batch = self.accumulator.take(only=buffer)
                if taken_batch is None:
                    self.accumulator.wake_sender(buffer)
                    break
                # Unlike attempt_in_sender(), this lets every exception pass to the handler
                # below: it may be meant for the application.
                ended_batch = self.delivery.attempt_in_caller(*taken_batch)
                if ended_batch is not None:
                    self._run_callbacks_in_thread(ended_batch)
        except BaseException:
            self.delivery.abandon(buffer, own)
            if taken_batch is not None and taken_batch[1].done.is_set():
                self._run_callbacks_in_thread(taken_batch[1])
            raise
        finally:
            # Other threads may have appended while this thread held the buffer, or a failed
            # try waits for its next time.
            self.start_sender_if_needed()

    def _run_sender(self) -> None:
        """Send ready batches until none has come for SENDER_IDLE_S."""
        try:
            while (taken_batch := self.accumulator.take(wait_s=SENDER_IDLE_S)) is not None:
                self.start_sender_if_needed()
                ended_batch = self.delivery.attempt_in_sender(*taken_batch)
                if ended_batch is not None and self.accumulator.callbacks.has_callbacks_due(
                    ended_batch
                ):
                    # A callback may wait for another send. So this thread does not count as
                    # a sender meanwhile, and another can start in its place.
                    with self._lock:
                        self._senders -= 1
                    try:
                        self.start_sender_if_needed()
                        self.accumulator.callbacks.run(ended_batch)
                    finally:
                        with self._lock:
                            self._senders += 1
        finally:
            with self._lock:
                self._senders -= 1
            # A message that was appended after the last take() must not wait for the next
            # send.
            self.start_sender_if_needed()

    def _run_callbacks_in_thread(self, batch: Batch) -> None:
        """Run the callbacks of a batch in a new thread, after the caller's thread sent it.

        In the application's thread their errors, which are logged, could not be
        distinguished from exceptions that are raised into it.
        """
        callbacks = self.accumulator.callbacks
        if not callbacks.has_callbacks_due(batch):
            return
        try:
            threading.Thread(
                target=callbacks.run, args=(batch,), name="catmq-sender", daemon=True
            ).start()
        except RuntimeError:  # no more threads, or the interpreter is ending
            callbacks.run(batch)


@list_options(ProducerOptions)
class Producer:
    """Sends messages to topics. Safe to share between threads, and to use after a fork.

    Each batch has a batch_id and a queue before its first try, and keeps both in retries,
    so that it is stored only once.
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
        """Create the producer without opening connections.

        `urls` is the URL of a broker or several; see HttpTransport. help(Producer) lists
        the options.
        """
        self.options: ProducerOptions = check_options(ProducerOptions, options)
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
        self._state: ProcessState | None = None
        # A lock for each process: a child may be forked while a thread of its parent holds
        # the lock, which is then never released in the child.
        self._locks: dict[int, threading.Lock] = {}
        self._closed = False
        self._block_s = self.options.max_block_ms / 1000
        # Messages of send_oneway that the full buffer refused or that could not be stored.
        self.lost: int = 0
        _open_producers.add(self)

    def send(
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

        Pass `body`, which is bytes or text, or any JSON value as `json`. `key`, `tag`,
        `headers` and `trace_id` are optional. Messages with the same key keep their order.
        `queue` chooses the queue; with queue_strict=False another queue is used if it is
        closed. `delay_ms` or `deliver_at` (a datetime with a time zone) delays delivery by
        up to a year; until then the message can be recalled. Raises OptionError, NotFound,
        InvalidRequest and other errors of the broker, DeliveryTimeout (not stored) or
        SendOutcomeUnknown.
        """
        message = build_message(
            body, json=json, key=key, tag=tag, headers=headers, trace_id=trace_id, queue=queue,
            delay_ms=delay_ms, deliver_at=deliver_at, queue_strict=queue_strict,
        )  # fmt: skip
        with observe_send(topic, (message,)) as observer:
            state = self._process_state()
            future, buffer = self._append(state, topic, message, urgent=True)
            state.deliver_in_caller(future, buffer, own=(future,))
            receipt = future.result()
            observer.succeed((receipt,))
        return receipt

    def send_async(
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
        """Return a future of the receipt. The message is sent within linger_ms, in a batch.

        Waits up to max_block_ms while the buffer is full, then raises BufferFull. The
        arguments are those of send().
        """
        message = build_message(
            body, json=json, key=key, tag=tag, headers=headers, trace_id=trace_id, queue=queue,
            delay_ms=delay_ms, deliver_at=deliver_at, queue_strict=queue_strict,
        )  # fmt: skip
        state = self._process_state()
        future = self._append_followed(state, topic, message)
        state.start_sender_if_needed()
        return future

    def send_oneway(
        self,
        topic: str,
        body: bytes | str | None = None,
        *,
        json: Any = NOT_GIVEN,
        key: str | None = None,
        tag: str | None = None,
    ) -> None:
        """Send without a receipt. Unstored messages are logged and counted in `lost`."""
        message = build_message(body, json=json, key=key, tag=tag)
        state = self._process_state()
        try:
            future = self._append_followed(state, topic, message, block_s=0.0)
        except BufferFull as error:
            self._count_lost(error)
            return
        future.add_done_callback(self._after_oneway)
        state.start_sender_if_needed()

    def send_batch(
        self, topic: str, messages: Iterable[NewMessage | bytes | str | Mapping[str, Any]]
    ) -> list[Receipt | CatmqError]:
        """Send messages and wait. Return the receipt or error of each message, in order.

        An invalid message raises OptionError before any message is sent.
        """
        wire_messages = build_batch_messages(messages)
        with observe_send(topic, wire_messages) as observer:
            state = self._process_state()
            routes = state.routes(topic, within_s=self._block_s)
            appended = state.accumulator.append_all(
                routes, wire_messages, block_s=self._block_s
            )
            if appended.runs:
                last = appended.runs[-1]
                # This thread delivers the last buffer itself; other threads are needed for
                # the other buffers only.
                if len(appended.buffers()) > 1:
                    state.start_sender_if_needed()
                state.deliver_in_caller(
                    last.future, last.buffer, own={run.future for run in appended.runs}
                )
            outcomes = appended.await_outcomes()
            observer.succeed(outcomes)
        return outcomes

    def recall(self, message_id: str) -> None:
        """Delete a delayed message before its delivery, by the `message_id` of its receipt.

        Raises Conflict (code `already_delivered`) if it is already in its queue, NotFound
        if there is no such message.
        """
        if self._closed:
            raise Closed("the producer is closed")
        self._transport.request(
            "DELETE",
            api_path("messages", message_id),
            timeout_s=self.options.request_timeout_ms / 1000,
        )

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all accepted messages have ended and their callbacks have returned.

        Inside a callback it does not wait for callbacks. Raises TimeoutError after
        `timeout_s` seconds.
        """
        state = self._state
        if state is None or state.pid != os.getpid():
            return
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        futures = state.accumulator.make_all_ready()
        state.start_sender_if_needed()
        for future in futures:
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            if isinstance(future, RunFuture):
                future.await_outcomes(left_s)
            else:
                future.exception(left_s)
        remaining_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not state.accumulator.await_callbacks(futures, remaining_s):
            raise TimeoutError(
                f"all was sent, but callbacks did not return within {timeout_s} s"
            )

    def close(self, timeout_s: float | None = None) -> None:
        """Flush, then close the connections.

        Flushing takes at most `timeout_s` seconds (default: delivery_timeout_ms).
        """
        if self._closed:
            return
        self._closed = True
        _open_producers.discard(self)
        state = self._state
        if state is not None and state.pid == os.getpid():
            try:
                self.flush(
                    self.options.delivery_timeout_ms / 1000
                    if timeout_s is None
                    else timeout_s
                )
            finally:
                state.accumulator.close()
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

    def _process_state(self) -> ProcessState:
        """Return the state of this process, created at the first use. Raises Closed."""
        if self._closed:
            raise Closed("the producer is closed")
        state = self._state
        if state is None or state.pid != os.getpid():
            with self._locks.setdefault(os.getpid(), threading.Lock()):
                state = self._state
                if state is None or state.pid != os.getpid():
                    # After a fork, too: the sender threads of the parent do not exist here.
                    state = self._state = ProcessState(self._transport, self.options)
        return state

    def _append(
        self,
        state: ProcessState,
        topic: str,
        message: dict[str, Any],
        *,
        urgent: bool = False,
        block_s: float | None = None,
    ) -> tuple[SendFuture, QueueBuffer]:
        routes = state.routes(topic, within_s=self._block_s)
        block_s = self._block_s if block_s is None else block_s
        return state.accumulator.append(routes, message, urgent=urgent, block_s=block_s)

    def _append_followed(
        self,
        state: ProcessState,
        topic: str,
        message: dict[str, Any],
        *,
        block_s: float | None = None,
    ) -> SendFuture:
        """Append a message that is sent in the background, where its send is followed."""
        # Thousands of sends a second should not pay for the block without an instrumentation.
        if not is_installed():
            return self._append(state, topic, message, block_s=block_s)[0]
        with observe_send(topic, (message,)) as observer:
            future, _ = self._append(state, topic, message, block_s=block_s)
            observer.follow(future)
        return future

    def _after_oneway(self, future: SendFuture) -> None:
        error = future.exception()
        if error is not None:
            self._count_lost(error)

    def _count_lost(self, error: CatmqError) -> None:
        self.lost += 1
        # Log the 1st, 2nd, 4th, 8th, …: a broken topic must not fill the disk with its log.
        if self.lost & (self.lost - 1) == 0:
            log.error(
                "send_oneway: %d messages lost so far; the last: %s", self.lost, error
            )


_open_producers: weakref.WeakSet[Producer] = weakref.WeakSet()


@atexit.register
def _close_open_producers() -> None:
    """Send, at the end of the program, the messages that the application did not flush."""
    for producer in list(_open_producers):
        try:
            producer.close()
        except (CatmqError, TimeoutError) as error:
            log.error("messages were lost at exit: %s", error)
