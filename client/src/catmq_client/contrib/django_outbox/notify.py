"""Tells the relay of a commit, so that it need not look into the outbox all the time.

The relay writes an address beside its lease; who commits a message sends a datagram there.
Nothing depends on it: one that is lost, or that a firewall drops, costs the time until the
relay looks by itself.
"""

from __future__ import annotations

import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cache, partial

from django.db import DatabaseError, transaction

from catmq_client.contrib.django_outbox import conf
from catmq_client.contrib.django_outbox.models import OutboxRelay

log = logging.getLogger("catmq.outbox")

# A process believes the relay's address for so long, s.
BELIEVED_S = 5.0
MOST_BYTES = 64
# Datagrams that one wait takes: who sends them without end keeps no relay from its work.
MOST_AT_ONCE = 1_000
LOOPBACK = "127.0.0.1"

# By database: when the address was read, monotonic, and what it was.
_addresses: dict[str, tuple[float, str]] = {}


def on_commit(alias: str) -> None:
    """Notify the relay when the transaction under way commits; once for messages that
    follow each other.
    """
    if not conf.current().notify:
        return
    connection, call = transaction.get_connection(alias), _call_of(alias)
    waiting = connection.run_on_commit
    # A rollback to a savepoint that drops the former one would drop this one, too.
    if waiting and waiting[-1][1] is call and waiting[-1][0] <= {*connection.savepoint_ids}:
        return
    transaction.on_commit(call, using=alias, robust=True)


@cache
def _call_of(alias: str) -> Callable[[], None]:
    return partial(notify, alias)


def notify(alias: str) -> None:
    """Tell the relay that works now, if there is one, that there may be messages."""
    address = _address(alias)
    if not address:
        return
    try:
        host, port, word = address.split()
        kind = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(kind, socket.SOCK_DGRAM) as way:
            way.sendto(word.encode(), socket.MSG_DONTWAIT, (host, int(port)))
    except (OSError, ValueError) as error:
        log.debug("the relay at %s was not notified: %s", address, error)


def _address(alias: str) -> str:
    now = time.monotonic()
    read_at, address = _addresses.get(alias, (float("-inf"), ""))
    if now - read_at < BELIEVED_S:
        return address
    try:
        relays = OutboxRelay.objects.using(alias).filter(pk=1)
        address = relays.values_list("address", flat=True).first() or ""
    except DatabaseError as error:
        log.debug("the address of the relay cannot be read: %s", error)
        address = ""
    _addresses[alias] = now, address
    return address


class Listener:
    """The socket on which a relay is notified, at an address that only readers of the
    database know.
    """

    def __init__(self, way: socket.socket) -> None:
        self._socket = way
        self._word = secrets.token_hex(8)
        host, port, *_ = way.getsockname()
        self.address = f"{host} {port} {self._word}"

    def wait(self, timeout_s: float) -> bool:
        """Return True when a commit was told of, False after so many seconds."""
        told, limit_s = False, max(timeout_s, 0.0)
        try:
            for _ in range(MOST_AT_ONCE):
                self._socket.settimeout(limit_s)
                told |= self._socket.recv(MOST_BYTES) == self._word.encode()
                limit_s = 0.0  # what else has come by now
        except (TimeoutError, BlockingIOError):
            pass
        return told

    def wake_at(self, stop: threading.Event) -> None:
        """Let wait() return when `stop` is set."""

        def wake() -> None:
            stop.wait()
            try:
                self._socket.sendto(b"", self._socket.getsockname())
            except OSError:
                log.debug("the relay has ended before it was told to")

        threading.Thread(target=wake, name="catmq-outbox-stop", daemon=True).start()


@contextmanager
def listening(alias: str) -> Iterator[Listener | None]:
    """A listener for the relay of a database; None if there is to be none, or it cannot be
    had.
    """
    try:
        way = _bound(_host(alias)) if conf.current().notify else None
    except OSError as error:
        log.warning(
            "the relay cannot be notified, and looks into the outbox by itself: %s", error
        )
        way = None
    if way is None:
        yield None
        return
    with closing(way):
        yield Listener(way)


def _host(alias: str) -> str:
    """Return the host of a database; '' if it is this one."""
    host = transaction.get_connection(alias).settings_dict.get("HOST") or ""
    return "" if host.startswith("/") else str(host)


def _bound(database: str) -> socket.socket:
    """Return a socket on the network of the database, where those who commit are."""
    host = LOOPBACK
    if database:
        kind, *_, there = socket.getaddrinfo(database, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(kind, socket.SOCK_DGRAM) as probe:
            probe.connect(there)  # sends nothing
            host = probe.getsockname()[0]
    way = socket.socket(
        socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM
    )
    try:
        way.bind((host, 0))
    except OSError:
        way.close()
        raise
    return way
