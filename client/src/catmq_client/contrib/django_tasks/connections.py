"""The way to the brokers, one for each process: backends are made anew in every thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from catmq_client.contrib.django_outbox import conf
from catmq_client.http.transport import HttpTransport, Transport
from catmq_client.producer import Producer

# A task that is sent directly is refused to its caller after so long, ms.
DELIVERY_TIMEOUT_MS = 10_000


class _Held:
    """The transport and the producer of a process."""

    def __init__(self, transport: Transport | None = None) -> None:
        self._lock = threading.Lock()
        self._transport = transport
        self._producer: Producer | None = None

    def transport(self) -> Transport:
        with self._lock:
            if self._transport is None:
                given = conf.current()
                self._transport = HttpTransport(
                    given.urls, api_key=given.api_key, verify=given.verify
                )
            return self._transport

    def producer(self) -> Producer:
        way = self.transport()
        with self._lock:
            if self._producer is None:
                self._producer = Producer(
                    transport=way, delivery_timeout_ms=DELIVERY_TIMEOUT_MS
                )
            return self._producer


# By process: a child of a fork finds nothing of its parent's.
_held: dict[int, _Held] = {}


def transport() -> Transport:
    """Return the process's transport, to the brokers of CATMQ_OUTBOX or CATMQ_URL. Raises
    OptionError.
    """
    return _held.setdefault(os.getpid(), _Held()).transport()


def producer() -> Producer:
    """Return the process's producer."""
    return _held.setdefault(os.getpid(), _Held()).producer()


@contextmanager
def using(way: Transport) -> Iterator[None]:
    """Let everything of this process go by another transport, such as a FakeBroker, in a
    block.
    """
    before = _held.get(os.getpid())
    _held[os.getpid()] = _Held(way)
    try:
        yield
    finally:
        del _held[os.getpid()]
        if before is not None:
            _held[os.getpid()] = before
