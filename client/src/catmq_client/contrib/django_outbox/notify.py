"""Notification of the relay at each commit, so that it need not poll the outbox often.

The relay stores an address in the row of its lease. A process that commits a message sends
a UDP datagram to that address. A datagram that is lost or dropped by a firewall delays the
message only until the relay's next poll.
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

log: logging.Logger = logging.getLogger("catmq.outbox")

# A process reads the relay's address again after this many seconds.
ADDRESS_MAX_AGE_S = 5.0
MAX_DATAGRAM_BYTES = 64
# Datagrams read in a wait. A sender that floods the socket does not stop the relay.
MAX_DATAGRAMS = 1_000
LOOPBACK = "127.0.0.1"

# By database alias: (monotonic time when the address was read, address).
_addresses: dict[str, tuple[float, str]] = {}


def on_commit(alias: str) -> None:
    """Notify the relay when the current transaction commits. Consecutive messages of a
    transaction cause a single notification.
    """
    if not conf.current().notify:
        return
    connection, callback = transaction.get_connection(alias), _callback_for(alias)
    registered = connection.run_on_commit
    # The previous callback serves this message, too, unless a rollback to a savepoint
    # could drop that callback and keep this message.
    if (
        registered
        and registered[-1][1] is callback
        and registered[-1][0] <= {*connection.savepoint_ids}
    ):
        return
    transaction.on_commit(callback, using=alias, robust=True)


@cache
def _callback_for(alias: str) -> Callable[[], None]:
    """Return the same object for the same alias, so that on_commit recognises it."""
    return partial(notify, alias)


def notify(alias: str) -> None:

    now = time.monotonic()
    read_at, address = _addresses.get(alias, (float("-inf"), ""))
    if now - read_at >= ADDRESS_MAX_AGE_S:
        try:
            relays = OutboxRelay.objects.using(alias).filter(pk=1)
            address = relays.values_list("address", flat=True).first() or ""
        except DatabaseError as error:
            log.debug("the address of the relay cannot be read: %s", error)
            address = ""
        # An empty address is cached, too: without a relay a commit costs no query.
        _addresses[alias] = now, address
    if not address:
        return
    try:
        host, port, token = address.split()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as udp:
            udp.sendto(token.encode(), socket.MSG_DONTWAIT, (host, int(port)))
    except (OSError, ValueError) as error:
        log.debug("the relay at %s was not notified: %s", address, error)


class Listener:
    """The relay's UDP socket.

    Its address contains a random token, so only processes that can read the database can
    wake the relay.
    """

    def __init__(self, udp: socket.socket) -> None:
        self._socket = udp
        self._token = secrets.token_hex(8)
        host, port, *_ = udp.getsockname()
        self.address: str = f"{host} {port} {self._token}"

    def wait(self, timeout_s: float) -> bool:
        """Wait for a notification. Return True if it came, False after `timeout_s` or when
        the relay has to stop.
        """
        notified, wait_s = False, max(timeout_s, 0.0)
        try:
            for _ in range(MAX_DATAGRAMS):
                self._socket.settimeout(wait_s)
                notified |= self._socket.recv(MAX_DATAGRAM_BYTES) == self._token.encode()
                # Only the first read waits. The next reads drain the datagrams that have
                # arrived by now.
                wait_s = 0.0
        except (TimeoutError, BlockingIOError):
            pass
        return notified

    def wake_at(self, stop: threading.Event) -> None:
        """Let wait() return when `stop` is set."""

        def wake() -> None:
            stop.wait()
            try:
                # Without the token: wait() returns and reports no notification.
                self._socket.sendto(b"", self._socket.getsockname())
            except OSError:
                log.debug("the relay has ended before it was told to")

        threading.Thread(target=wake, name="catmq-outbox-stop", daemon=True).start()


@contextmanager
def listening(alias: str) -> Iterator[Listener | None]:
    """Open a listener for the relay of a database. Yields None if notifications are disabled
    or no socket can be opened.
    """
    host = transaction.get_connection(alias).settings_dict.get("HOST") or ""
    udp = None
    try:
        if conf.current().notify:
            # A host that is a path is a Unix socket: the database runs on this host.
            udp = _bind_socket("" if host.startswith("/") else str(host))
    except OSError as error:
        log.warning(
            "the relay cannot be notified, and looks into the outbox by itself: %s", error
        )
    if udp is None:
        yield None
        return
    with closing(udp):
        yield Listener(udp)


def _bind_socket(database_host: str) -> socket.socket:
    """Return a UDP socket on the interface that reaches the database. The processes that
    commit messages can reach that network, too. An empty `database_host` is this host.
    """
    host = LOOPBACK
    if database_host:
        family, *_, database_address = socket.getaddrinfo(
            database_host, 9, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            # connect() of a UDP socket sends nothing. It chooses the local address.
            probe.connect(database_address)
            host = probe.getsockname()[0]
    udp = socket.socket(
        socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM
    )
    try:
        udp.bind((host, 0))
    except OSError:
        udp.close()
        raise
    return udp
