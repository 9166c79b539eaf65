"""Sends messages; see Producer."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any

from catmq_client.errors import BufferFull, CatmqError, Closed
from catmq_client.http.transport import HttpTransport, Transport, api_path
from catmq_client.options import ProducerOptions, check_options
from catmq_client.sending.accumulator import Accumulator, QueueBuffer
from catmq_client.sending.delivery import Delivery
from catmq_client.sending.new_messages import (
    NOT_GIVEN,
    NewMessage,
    build_batch_message,
    build_message,
)
from catmq_client.sending.receipts import Batch, Receipt, SendFuture
from catmq_client.sending.routing import Layouts, Routes

log = logging.getLogger("catmq.producer")

# A sender with nothing to do ends after so long; the next send starts one again.
SENDER_IDLE_S = 30.0


class _Sending:
    """The moving parts of a producer in one process: made at the first send, and anew after
    a fork.
    """

    def __init__(self, transport: Transport, options: ProducerOptions) -> None:
        self.pid = os.getpid()
        self.accumulator = Accumulator(options)
        self.layouts = Layouts(
            transport,
            max_age_s=options.metadata_max_age_ms / 1000,
            timeout_s=options.request_timeout_ms / 1000,
            on_failure=lambda error: self.delivery.log_failure(error),
        )
        self.delivery = Delivery(
            transport=transport,
            accumulator=self.accumulator,
            layouts=self.layouts,
            options=options,
        )
        self.accumulator.on_full = self.start_sender_if_needed
        self._most = options.max_in_flight
        self._senders = 0
        self._lock = threading.Lock()

    def routes(self, topic: str, *, within_s: float) -> Routes:
        """The topic's routes, looked up again when they are old."""
        routes = self.layouts.routes(topic, within_s=within_s)
        layout = self.layouts.refresh(topic, after_refusal=False)
        if layout is not None:
            self.accumulator.relayout(routes, layout)
        return routes

    def start_sender_if_needed(self) -> None:
        """Start one more thread when a batch waits, no sender is idle and there may be
        more.
        """
        if (
            self.accumulator.idle
            or self._senders >= self._most
            or not self.accumulator.needs_sender()
        ):
            return
        with self._lock:
            if self._senders >= self._most:
                return
            self._senders += 1
        sender = threading.Thread(target=self._work, name="catmq-sender", daemon=True)
        try:
            sender.start()
        except BaseException:  # no more threads, or the caller was interrupted
            if sender.ident is None:
                with self._lock:
                    self._senders -= 1
            raise

    def deliver_here(
        self, future: SendFuture, buffer: QueueBuffer, *, own: Collection[SendFuture]
    ) -> None:
        """Send in the caller's thread while its buffer is free: a send alone needs no other
        thread.

        `own`: the futures of the caller's messages, `future` among them. An exception that
        is raised into the thread passes (Ctrl-C, a soft time limit, a timeout of gevent).
        """
        taken = None
        try:
            while not future.done():
                taken = self.accumulator.take(only=buffer)
                if taken is None:
                    self.accumulator.hand_over(buffer)
                    break
                ended = self.delivery.attempt(*taken)
                if ended is not None:
                    self._call_back_elsewhere(ended)
        except BaseException:
            self.delivery.abandon(buffer, own)
            if taken is not None and taken[1].done.is_set():
                self._call_back_elsewhere(taken[1])
            raise
        finally:
            # Others may have come while the buffer was ours, or a try failed and waits for
            # its
            # time.
            self.start_sender_if_needed()

    def _work(self) -> None:
        try:
            while (taken := self.accumulator.take(wait_s=SENDER_IDLE_S)) is not None:
                self.start_sender_if_needed()
                ended = self.delivery.step(*taken)
                if ended is not None and self.accumulator.callbacks.are_due(ended):
                    self._call_back(ended)
        finally:
            with self._lock:
                self._senders -= 1
            # A message that came between our last look and now must not wait for the next
            # send.
            self.start_sender_if_needed()

    def _call_back_elsewhere(self, batch: Batch) -> None:
        """Run callbacks in a thread of their own.

        In the application's thread their errors, which are logged, could not be told from
        exceptions that are raised into it.
        """
        if not self.accumulator.callbacks.are_due(batch):
            return
        call = self.accumulator.callbacks.call
        try:
            threading.Thread(
                target=call, args=(batch,), name="catmq-sender", daemon=True
            ).start()
        except RuntimeError:  # no more threads, or the interpreter is ending
            call(batch)

    def _call_back(self, batch: Batch) -> None:
        """Run callbacks. They may wait for other sends, so this thread does not count as a
        sender now.
        """
        with self._lock:
            self._senders -= 1
        try:
            self.start_sender_if_needed()
            self.accumulator.callbacks.call(batch)
        finally:
            with self._lock:
                self._senders += 1


class Producer(AbstractContextManager["Producer"]):
    """Sends messages to topics. Safe to share between threads, and to use after a fork.

    Each batch gets its batch_id and queue before the first try and keeps both in retries,
    so it is stored only once. Options and their defaults: ProducerOptions.
    """

    def __init__(
        self,
        urls: str | Sequence[str] | None = None,
        *,
        api_key: str | None = None,
        transport: Transport | None = None,
        verify: bool | str = True,
        proxies: Mapping[str, str] | None = None,
        compression: str | None = None,
        **options: Any,
    ) -> None:
        """Open nothing yet. `urls`: a broker's URL or several; see HttpTransport and
        ProducerOptions.
        """
        self.options = check_options(ProducerOptions, options)
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
        self._state: _Sending | None = None
        # One lock for each process: that of a parent may be held for ever in its child.
        self._locks: dict[int, threading.Lock] = {}
        self._closed = False
        self._block_s = self.options.max_block_ms / 1000
        # Messages of send_oneway that found no room or could not be stored.
        self.lost = 0
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

        Give `body`, which is bytes or text, or any JSON value as `json`. `key`, `tag`,
        `headers`
        and `trace_id` are optional. Messages of one key keep their order. `queue` chooses
        the queue; with queue_strict=False another queue is used if it is closed. `delay_ms`
        or
        `deliver_at` (a datetime with a time zone) delays delivery by up to a year; until
        then the message can be recalled. Raises OptionError, NotFound, InvalidRequest, …,
        DeliveryTimeout (not stored) or SendOutcomeUnknown.
        """
        message = build_message(
            body, json=json, key=key, tag=tag, headers=headers, trace_id=trace_id, queue=queue,
            delay_ms=delay_ms, deliver_at=deliver_at, queue_strict=queue_strict,
        )  # fmt: skip
        sending = self._sending()
        future, buffer = self._append(sending, topic, message, urgent=True)
        sending.deliver_here(future, buffer, own=(future,))
        return future.result()

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
        """Return a future of the receipt. The message is sent in a batch, after linger_ms
        at most.

        Waits up to max_block_ms while the buffer is full, then raises BufferFull. Else as
        send().
        """
        message = build_message(
            body, json=json, key=key, tag=tag, headers=headers, trace_id=trace_id, queue=queue,
            delay_ms=delay_ms, deliver_at=deliver_at, queue_strict=queue_strict,
        )  # fmt: skip
        sending = self._sending()
        future, _ = self._append(sending, topic, message)
        sending.start_sender_if_needed()
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
        """Send without a receipt. Messages that could not be stored are logged, and counted
        in `lost`.
        """
        message, sending = build_message(body, json=json, key=key, tag=tag), self._sending()
        try:
            future, _ = self._append(sending, topic, message, block_s=0.0)
        except BufferFull as error:
            self._count_lost(error)
            return
        future.add_done_callback(self._after_oneway)
        sending.start_sender_if_needed()

    def send_batch(
        self, topic: str, messages: Iterable[NewMessage | bytes | str | Mapping[str, Any]]
    ) -> list[Receipt | CatmqError]:
        """Send all messages and wait; return the receipt or error of each, in order.

        An invalid message raises OptionError before any is sent.
        """
        made = [build_batch_message(item) for item in messages]
        sending = self._sending()
        routes = sending.routes(topic, within_s=self._block_s)
        sent, buffers, last = sending.accumulator.append_all(
            routes, made, block_s=self._block_s
        )
        if last is not None:
            if len(buffers) > 1:
                sending.start_sender_if_needed()
            sending.deliver_here(
                *last, own={future for future in sent if isinstance(future, SendFuture)}
            )
        return [
            one.receipt_or_error() if isinstance(one, SendFuture) else one for one in sent
        ]

    def recall(self, message_id: str) -> None:
        """Delete a delayed message before it is delivered, by the `message_id` of its
        receipt.

        Raises Conflict (code `already_delivered`) if it is in its queue already, NotFound
        if there is none.
        """
        if self._closed:
            raise Closed("the producer is closed")
        timeout_s = self.options.request_timeout_ms / 1000
        self._transport.request(
            "DELETE", api_path("messages", message_id), timeout_s=timeout_s
        )

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all accepted messages are sent or failed, and their callbacks have
        returned.

        Inside a callback it does not wait for callbacks. Raises TimeoutError after
        `timeout_s` seconds.
        """
        state = self._state
        if state is None or state.pid != os.getpid():
            return
        give_up_at = None if timeout_s is None else time.monotonic() + timeout_s
        futures = state.accumulator.hurry_all()
        state.start_sender_if_needed()
        for future in futures:
            future.exception(
                None if give_up_at is None else max(0.0, give_up_at - time.monotonic())
            )
        left_s = None if give_up_at is None else max(0.0, give_up_at - time.monotonic())
        if not state.accumulator.await_callbacks(futures, left_s):
            raise TimeoutError(
                f"all was sent, but callbacks did not return within {timeout_s} s"
            )

    def close(self, timeout_s: float | None = None) -> None:
        """Flush for at most `timeout_s` (default: delivery_timeout_ms), then close the
        connections.
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

    def __exit__(self, *_: object) -> None:
        self.close()

    def _sending(self) -> _Sending:
        if self._closed:
            raise Closed("the producer is closed")
        state = self._state
        if state is None or state.pid != os.getpid():
            with self._locks.setdefault(os.getpid(), threading.Lock()):
                state = self._state
                if state is None or state.pid != os.getpid():
                    # Also after a fork: the parent's threads do not exist here.
                    state = self._state = _Sending(self._transport, self.options)
        return state

    def _append(
        self,
        sending: _Sending,
        topic: str,
        message: dict[str, Any],
        *,
        urgent: bool = False,
        block_s: float | None = None,
    ) -> tuple[SendFuture, QueueBuffer]:
        routes = sending.routes(topic, within_s=self._block_s)
        block_s = self._block_s if block_s is None else block_s
        return sending.accumulator.append(routes, message, urgent=urgent, block_s=block_s)

    def _after_oneway(self, future: SendFuture) -> None:
        error = future.exception()
        if error is not None:
            self._count_lost(error)

    def _count_lost(self, error: CatmqError) -> None:
        self.lost += 1
        # The first, then ever more rarely: a broken topic must not fill the disk with its
        # own log.
        if self.lost & (self.lost - 1) == 0:
            log.error(
                "send_oneway: %d messages lost so far; the last: %s", self.lost, error
            )


_open_producers: weakref.WeakSet[Producer] = weakref.WeakSet()


def _close_forgotten() -> None:
    """At the end of the program sends what an application forgot to flush."""
    for producer in list(_open_producers):
        try:
            producer.close()
        except (CatmqError, TimeoutError) as error:
            log.error("messages were lost at exit: %s", error)


atexit.register(_close_forgotten)
