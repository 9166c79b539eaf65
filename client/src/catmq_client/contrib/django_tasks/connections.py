"""The transport and the producer of this process.

They are module state because Django creates a task backend in every thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from catmq_client.contrib.django_outbox import conf
from catmq_client.http.transport import HttpTransport, Transport
from catmq_client.producer import Producer

# If no broker has taken a directly sent task within this time, its caller gets an error.
DELIVERY_TIMEOUT_MS = 10_000


class _Connections:
    """The transport and the producer of a process, created at the first use."""

    def __init__(self, transport: Transport | None = None) -> None:
        self._lock = threading.Lock()
        self._transport = transport
        self._producer: Producer | None = None

    def transport(self) -> Transport:
        with self._lock:
            if self._transport is None:
                brokers = conf.current()
                self._transport = HttpTransport(
                    brokers.urls, api_key=brokers.api_key, verify=brokers.verify
                )
            return self._transport

    def producer(self) -> Producer:
        # Before the lock, which transport() takes, too.
        transport = self.transport()
        with self._lock:
            if self._producer is None:
                self._producer = Producer(
                    transport=transport, delivery_timeout_ms=DELIVERY_TIMEOUT_MS
                )
            return self._producer


# By process id: a forked child must not use its parent's sockets.
_by_process: dict[int, _Connections] = {}


def transport() -> Transport:
    """Return the process's transport to the brokers in CATMQ_OUTBOX or CATMQ_URL. Raises
    OptionError.
    """
    return _by_process.setdefault(os.getpid(), _Connections()).transport()


def producer() -> Producer:

    return _by_process.setdefault(os.getpid(), _Connections()).producer()


@contextmanager
def use_transport(transport: Transport) -> Iterator[None]:
    """Let this process use another transport, such as a FakeBroker, inside a block."""
    previous = _by_process.get(os.getpid())
    _by_process[os.getpid()] = _Connections(transport)
    try:
        yield
    finally:
        del _by_process[os.getpid()]
        if previous is not None:
            _by_process[os.getpid()] = previous
