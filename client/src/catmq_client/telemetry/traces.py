"""Traces of a sample of the messages that a consumer handled: start, duration, outcome.

A thread, which starts with the first trace, sends them to the broker in batches. A batch
that cannot be sent is dropped, and traces beyond MAX_WAITING are: tracing must not delay or
fail the consumer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple
from zlib import crc32

from catmq_client.errors import CatmqError
from catmq_client.http.transport import Transport, api_path
from catmq_client.message import Message

log: logging.Logger = logging.getLogger("catmq.consumer")

# Traces are collected for this time and then sent together.
SEND_EVERY_S = 2.0
TIMEOUT_S = 5.0
# Traces in memory. It is also the limit of a request.
MAX_WAITING = 200


def is_traced(queue: int, offset: int, percent: int) -> bool:
    """Return True if a message is in a sample of `percent` percent.

    Brokers apply the same rule.

    >>> [offset for offset in range(60) if is_traced(7, offset, 5)]
    [1, 14, 23, 29, 37]
    """
    # A hash of the location, so that all attempts and all processes decide alike.
    return crc32(b"%d-%d" % (queue, offset)) % 100 < percent


class _Trace(NamedTuple):
    """An attempt at a message. A retry has the queue and offset of the first attempt."""

    queue: int
    offset: int
    attempt: int
    failed: bool
    # monotonic times
    began: float
    ended: float


class Traces:
    """Collects and sends the traces of a consumer. Any thread may add."""

    def __init__(
        self, *, transport: Transport, consumer_id: Callable[[], str | None]
    ) -> None:
        self._transport = transport
        self._consumer_id = consumer_id
        self._waiting: list[_Trace] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, message: Message, *, percent: int, began: float, failed: bool) -> None:
        """Add an attempt that ends now, if its message is in the sample.

        `began` is its monotonic start. A retry has the queue and offset of the message that
        failed first, so all attempts at a message are traced or none.
        """
        first = message.origin or message
        if not is_traced(first.queue, first.offset, percent):
            return
        trace = _Trace(
            first.queue, first.offset, message.attempt, failed, began, time.monotonic()
        )
        with self._changed:
            if self._closed or len(self._waiting) >= MAX_WAITING:
                return
            self._waiting.append(trace)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="catmq-traces", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def close(self, within_s: float) -> None:
        """Send the waiting traces and end the thread, for at most `within_s` seconds."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(within_s)

    def _run(self) -> None:
        closed = False
        while not closed:
            with self._changed:
                # Wait for the first trace, then collect more for a while.
                self._changed.wait_for(lambda: self._waiting or self._closed)
                self._changed.wait_for(lambda: self._closed, SEND_EVERY_S)
                traces, self._waiting = self._waiting, []
                closed = self._closed
            consumer_id = self._consumer_id()
            if not traces or consumer_id is None:
                continue
            now = time.monotonic()
            body: dict[str, Any] = {
                "traces": [
                    {
                        "queue": trace.queue,
                        "offset": trace.offset,
                        "attempt": trace.attempt,
                        "outcome": "failed" if trace.failed else "handled",
                        "ago_ms": round(1000 * (now - trace.began)),
                        "took_ms": round(1000 * (trace.ended - trace.began)),
                    }
                    for trace in traces
                ]
            }
            try:
                self._transport.request(
                    "POST",
                    api_path("consumers", consumer_id, "traces"),
                    body=body,
                    timeout_s=TIMEOUT_S,
                )
            except CatmqError as error:
                log.debug("%d traces are dropped: %s", len(traces), error)
            except Exception:
                log.exception("internal error while sending traces; continuing")
