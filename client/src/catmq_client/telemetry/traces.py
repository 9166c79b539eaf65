"""Traces of a sample of the messages that a consumer handled: when each began, for how
long, its outcome.

They go to the broker in batches, in a thread of their own that begins with the first of
them. A batch that does not arrive is dropped, as is what is too much: nothing depends on a
trace, and nothing waits for one.
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

log = logging.getLogger("catmq.consumer")

# Seconds from a trace until it is sent, with those that came since.
EVERY_S = 2.0
TIMEOUT_S = 5.0
# Traces that wait; brokers take as many in one request.
MOST_WAITING = 200


def is_traced(queue: int, offset: int, percent: int) -> bool:
    """Return True if a message is in a sample of so many percent, as brokers see it.

    >>> [offset for offset in range(60) if is_traced(7, offset, 5)]
    [1, 14, 23, 29, 37]
    """
    return crc32(b"%d-%d" % (queue, offset)) % 100 < percent


class _Trace(NamedTuple):
    queue: int
    offset: int
    attempt: int
    failed: bool
    # Monotonic.
    began: float
    ended: float


class Traces:
    """Collects traces of one consumer, and sends them. Any thread may add."""

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
        """Note an attempt at a message that ends now, if it is in the sample; `began` is
        monotonic.

        A retry is known by the place of the message that failed first, so that all attempts
        are traced.
        """
        origin = message.origin
        queue, offset = (
            (origin.queue, origin.offset) if origin else (message.queue, message.offset)
        )
        if is_traced(queue, offset, percent):
            self._add(
                _Trace(queue, offset, message.attempt, failed, began, time.monotonic())
            )

    def close(self, within_s: float) -> None:
        """Send what waits, and end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(within_s)

    def _add(self, trace: _Trace) -> None:
        with self._changed:
            if self._closed or len(self._waiting) >= MOST_WAITING:
                return
            self._waiting.append(trace)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="catmq-traces", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def _run(self) -> None:
        closed = False
        while not closed:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                self._changed.wait_for(lambda: self._closed, EVERY_S)
                found, self._waiting = self._waiting, []
                closed = self._closed
            if found:
                self._send(found)

    def _send(self, found: list[_Trace]) -> None:
        consumer_id = self._consumer_id()
        if consumer_id is None:
            return
        now = time.monotonic()
        body: dict[str, Any] = {"traces": [_view(one, now) for one in found]}
        try:
            self._transport.request(
                "POST",
                api_path("consumers", consumer_id, "traces"),
                body=body,
                timeout_s=TIMEOUT_S,
            )
        except CatmqError as error:
            log.debug("%d traces are dropped: %s", len(found), error)
        except Exception:
            log.exception("internal error while sending traces; continuing")


def _view(one: _Trace, now: float) -> dict[str, Any]:
    return {
        "queue": one.queue,
        "offset": one.offset,
        "attempt": one.attempt,
        "outcome": "failed" if one.failed else "handled",
        "ago_ms": round(1000 * (now - one.began)),
        "took_ms": round(1000 * (one.ended - one.began)),
    }
