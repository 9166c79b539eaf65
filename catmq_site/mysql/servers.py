"""The servers of the metadata database, if CATMQ_DATABASE_URL names several.

Connections go to the server that accepts writes; all are asked again every few seconds, when
a thread needs a connection. `cluster_members.choose_writer` decides, as for nodes. There is
no recorded writer here: the record would be in this database. So of servers without a
cluster exactly one may accept writes, and what a replica lacks when somebody makes it
writable is lost.
"""

from __future__ import annotations

import logging
import select
import threading
import time
from contextlib import closing
from typing import Any

from metadata import surveys
from metadata.rules import cluster_members
from metadata.rules.addresses import Address, parse_addresses
from metadata.rules.cluster_members import Member, NoWriter

log = logging.getLogger(__name__)
REVIEW_EVERY_S = 2.0
ASK_TIMEOUT_S = 2
# For a new connection's wait until its member has caught up. A member that was cut off a
# moment ago looks healthy, and would let it wait for the whole read timeout.
CATCH_UP_S = 2.0
NO_CONNECTION = 2003  # CR_CONN_HOST_ERROR
DENIED = 1142  # ER_TABLEACCESS_DENIED_ERROR


class Servers:
    """The servers of one list, as this process sees them. Thread-safe."""

    def __init__(self, driver: Any, hosts: str) -> None:
        self._driver = driver
        self._places = parse_addresses(hosts)
        self._writer: Member | None = None
        self._asked_at = float("-inf")
        self._failed_at, self._failure = float("-inf"), ""
        self._asking = threading.Lock()

    def find_writer(self, parameters: dict[str, Any]) -> Member:
        """Return the server that accepts writes. Raises the driver's OperationalError."""
        writer = self._writer
        is_fresh = time.monotonic() - self._asked_at < REVIEW_EVERY_S
        # While one thread asks again, which takes seconds if a server is frozen, the others
        # continue with the writer of before.
        if writer is not None and (is_fresh or self._asking.locked()):
            return writer
        entered_at = time.monotonic()
        with self._asking:
            # Another thread has asked while this one waited. To ask takes seconds while
            # servers are cut off, and threads would do it one after the other.
            if self._failed_at >= entered_at:
                raise self._driver.OperationalError(NO_CONNECTION, self._failure)
            # Read once: other threads call forget() at any time.
            writer = self._writer
            if writer is not None and time.monotonic() - self._asked_at < REVIEW_EVERY_S:
                return writer
            return self._ask(parameters)

    @property
    def writer(self) -> Member | None:
        """The server that was last chosen, None before the first choice."""
        return self._writer

    def forget(self) -> None:
        """Ask all servers before the next connection: the writer could not be used."""
        self._asked_at = float("-inf")
        self._writer = None

    def settle(self, connection: Any, member: Member) -> None:
        """Wait until a new connection sees what the cluster has committed.

        Raises the driver's OperationalError after CATCH_UP_S.
        """
        barrier = cluster_members.BARRIERS.get(member.kind)
        if barrier is None:
            return
        variable, value = barrier
        # MySQL refuses to set it inside a transaction (1766), which SHOW would begin.
        own_autocommit = connection.get_autocommit()
        connection.autocommit(True)
        with closing(connection.cursor()) as cursor:
            cursor.execute(f"SHOW SESSION VARIABLES LIKE '{variable}'")
            own_value = cluster_members.as_literal(cursor.fetchone()[1])
            cursor.execute(f"SET SESSION {variable} = {cluster_members.as_literal(value)}")
            # Any read of a table waits; the session's own value is set again after it.
            connection.send_query(b"SELECT COUNT(*) FROM information_schema.schemata")
            poller = select.poll()
            poller.register(connection.fileno(), select.POLLIN)
            if not poller.poll(1000 * CATCH_UP_S):
                raise self._driver.OperationalError(
                    NO_CONNECTION,
                    f"{member.address} does not catch up with its cluster in {CATCH_UP_S:g} s",
                )
            connection.read_query_result()
            connection.store_result().fetch_row(0)
            cursor.execute(f"SET SESSION {variable} = {own_value}")
        connection.autocommit(own_autocommit)

    def _ask(self, parameters: dict[str, Any]) -> Member:
        """Ask all servers, and remember the writer. Raises the driver's OperationalError."""

        def ask(place: Address) -> Member | str:
            try:
                return self._read_member(parameters, place)
            except self._driver.Error as error:
                remedy = (
                    " (manage.py grants group prints this right)"
                    if error.args[0] == DENIED
                    else ""
                )
                return f"{error.args[-1]}{remedy}"

        members, unreachable = surveys.ask_all(
            self._places, ask, decides=cluster_members.decides
        )
        former = self._writer
        try:
            writer = cluster_members.choose_writer(members, unreachable=unreachable)
        except NoWriter as error:
            self._writer = None
            self._failed_at, self._failure = time.monotonic(), str(error)
            raise self._driver.OperationalError(NO_CONNECTION, self._failure) from None
        self._writer, self._asked_at = writer, time.monotonic()
        if former is not None and former.address != writer.address:
            log.warning(
                "The metadata database is written on %s now, before it was %s",
                writer.address,
                former.address,
            )
        return writer

    def _read_member(self, parameters: dict[str, Any], place: Address) -> Member:
        limits = {"connect_timeout": ASK_TIMEOUT_S, "read_timeout": ASK_TIMEOUT_S}
        # Without the database and the session settings, which a member that is not ready
        # refuses.
        account = {k: v for k, v in parameters.items() if k not in ("db", "init_command")}
        connection = self._driver.connect(
            **{**account, **limits, "host": place.host, "port": place.port}
        )
        with closing(connection), closing(connection.cursor()) as cursor:
            cursor.execute(cluster_members.VARIABLES_QUERY)
            variables = dict(cursor.fetchall())
            cursor.execute(cluster_members.STATUS_QUERY)
            status = dict(cursor.fetchall())
            group: list[tuple[Any, ...]] = []
            if variables.get("group_replication_group_name"):
                cursor.execute(cluster_members.GROUP_QUERY)
                group = list(cursor.fetchall())
        return cluster_members.member_of(
            place, variables=variables, status=status, group=group
        )


def current_writer(hosts: str) -> Member | None:
    """Return the server that this process writes to, None for a single server or before the
    first connection.
    """
    known = _servers.get(hosts)
    return None if known is None else known.writer


_guard = threading.Lock()
_servers: dict[str, Servers] = {}


def of_list(driver: Any, hosts: str) -> Servers:
    """Return the servers of a list, the same object for each connection of this process."""
    with _guard:
        if hosts not in _servers:
            _servers[hosts] = Servers(driver, hosts)
        return _servers[hosts]
