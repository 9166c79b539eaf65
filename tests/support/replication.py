"""Two servers of the version under test in GTID replication."""

from __future__ import annotations

from tests.support.environment import IS_MYSQL
from tests.support.mariadb import SMALL, MariaDB
from tests.support.waiting import until

BINLOG = ("--log-bin", "--sync-binlog=1")
# of MySQL
GTID = ("--gtid-mode=ON", "--enforce-gtid-consistency=ON", "--replica-net-timeout=5")
ROWS = ("--binlog-format=ROW", "--log-slave-updates")  # of MariaDB
MARIADB = (*ROWS, "--slave-net-timeout=5", "--slave-parallel-threads=2")
POSITION = "SELECT @@gtid_executed" if IS_MYSQL else "SELECT @@gtid_binlog_pos"
APPLIED = (
    "SELECT WAIT_FOR_EXECUTED_GTID_SET(%s, 1)"
    if IS_MYSQL
    else "SELECT MASTER_GTID_WAIT(%s, 1)"
)


def options(server_id: int) -> list[str]:
    """What a server of a pair is started with."""
    return [*SMALL, *BINLOG, *(GTID if IS_MYSQL else MARIADB), f"--server-id={server_id}"]


def follow(replica: MariaDB, primary: MariaDB) -> None:
    """Has a server copy another one, from now on, and be read-only."""
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
    """Statements of MySQL that have a server copy another one from where that is now."""
    account = f"SOURCE_USER='catmq', SOURCE_PASSWORD='{primary.password}', GET_SOURCE_PUBLIC_KEY=1"
    place = f"SOURCE_HOST='127.0.0.1', SOURCE_PORT={primary.port}"
    return (
        "RESET BINARY LOGS AND GTIDS",
        f"SET GLOBAL gtid_purged = '{position(primary)}'",
        f"CHANGE REPLICATION SOURCE TO {place}, {account}, SOURCE_CONNECT_RETRY=1, "
        "SOURCE_AUTO_POSITION=1",
    )


def as_mariadb(primary: MariaDB) -> tuple[str, ...]:
    """Statements of MariaDB that do the same."""
    account = f"MASTER_USER='catmq', MASTER_PASSWORD='{primary.password}'"
    place = f"MASTER_HOST='127.0.0.1', MASTER_PORT={primary.port}"
    return (
        "RESET MASTER",
        f"SET GLOBAL gtid_slave_pos = '{position(primary)}'",
        f"CHANGE MASTER TO {place}, {account}, MASTER_CONNECT_RETRY=1, MASTER_USE_GTID=slave_pos",
    )


def position(server: MariaDB) -> str:
    """The transactions that a server has."""
    return str(server.execute(POSITION)[0][0]).replace("\n", "")


def await_caught_up(replica: MariaDB, primary: MariaDB) -> None:
    """Returns when the replica has all that the primary has now."""
    wanted = position(primary)
    until(lambda: replica.execute(APPLIED, [wanted])[0][0] == 0, limit_s=60)
