"""Two servers of the tested version in GTID replication."""

from __future__ import annotations

from tests.support.environment import IS_MYSQL
from tests.support.mariadb import SMALL, MariaDB
from tests.support.waiting import until

BINLOG = ("--log-bin", "--sync-binlog=1")
# for MySQL
GTID = ("--gtid-mode=ON", "--enforce-gtid-consistency=ON", "--replica-net-timeout=5")
ROWS = ("--binlog-format=ROW", "--log-slave-updates")  # for MariaDB
MARIADB = (*ROWS, "--slave-net-timeout=5", "--slave-parallel-threads=2")
POSITION = "SELECT @@gtid_executed" if IS_MYSQL else "SELECT @@gtid_binlog_pos"
APPLIED = (
    "SELECT WAIT_FOR_EXECUTED_GTID_SET(%s, 1)"
    if IS_MYSQL
    else "SELECT MASTER_GTID_WAIT(%s, 1)"
)


def options(server_id: int) -> list[str]:
    """Return the options of a server in a pair."""
    return [*SMALL, *BINLOG, *(GTID if IS_MYSQL else MARIADB), f"--server-id={server_id}"]


def follow(replica: MariaDB, primary: MariaDB) -> None:
    """Make a server replicate another server from now on, and be read-only."""
    statements = as_mysql(primary) if IS_MYSQL else as_mariadb(primary)
    for statement in (
        "STOP REPLICA",
        *statements,
        "START REPLICA",
        "SET GLOBAL read_only = 1",
    ):
        replica.execute(statement)
    await_caught_up(replica, primary)


def as_mysql(primary: MariaDB) -> tuple[str, ...]:
    """Return MySQL statements that make a server replicate another server from its current
    position.
    """
    account = f"SOURCE_USER='catmq', SOURCE_PASSWORD='{primary.password}', GET_SOURCE_PUBLIC_KEY=1"
    address = f"SOURCE_HOST='127.0.0.1', SOURCE_PORT={primary.port}"
    return (
        "RESET BINARY LOGS AND GTIDS",
        f"SET GLOBAL gtid_purged = '{position(primary)}'",
        f"CHANGE REPLICATION SOURCE TO {address}, {account}, SOURCE_CONNECT_RETRY=1, "
        "SOURCE_AUTO_POSITION=1",
    )


def as_mariadb(primary: MariaDB) -> tuple[str, ...]:
    """Return MariaDB statements that do the same."""
    account = f"MASTER_USER='catmq', MASTER_PASSWORD='{primary.password}'"
    address = f"MASTER_HOST='127.0.0.1', MASTER_PORT={primary.port}"
    return (
        "RESET MASTER",
        f"SET GLOBAL gtid_slave_pos = '{position(primary)}'",
        f"CHANGE MASTER TO {address}, {account}, MASTER_CONNECT_RETRY=1, MASTER_USE_GTID=slave_pos",
    )


def position(server: MariaDB) -> str:
    """Return the transactions that a server has executed."""
    return str(server.execute(POSITION)[0][0]).replace("\n", "")


def await_caught_up(replica: MariaDB, primary: MariaDB) -> None:
    """Wait until the replica has applied everything that the primary has now."""
    primary_position = position(primary)
    until(lambda: replica.execute(APPLIED, [primary_position])[0][0] == 0, limit_s=60)
