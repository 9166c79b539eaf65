"""MariaDB servers in GTID replication."""

from __future__ import annotations

from tests.support.mariadb import SMALL, MariaDB
from tests.support.waiting import until


def options(server_id: int) -> list[str]:
    """What a server of a pair is started with."""
    durable = ["--log-bin", "--sync-binlog=1", "--binlog-format=ROW", "--log-slave-updates"]
    return [*SMALL, *durable, f"--server-id={server_id}", "--slave-net-timeout=5"]


def follow(replica: MariaDB, primary: MariaDB) -> None:
    """Has a server copy another one, from now on, and be read-only."""
    (position,) = primary.execute("SELECT @@gtid_binlog_pos")[0]
    account = f"MASTER_USER='catmq', MASTER_PASSWORD='{primary.password}'"
    place = f"MASTER_HOST='127.0.0.1', MASTER_PORT={primary.port}"
    connect = f"CHANGE MASTER TO {place}, {account}, MASTER_CONNECT_RETRY=1, MASTER_USE_GTID=slave_pos"
    statements = ("STOP REPLICA", "RESET MASTER", f"SET GLOBAL gtid_slave_pos='{position}'", connect)
    for statement in (*statements, "START REPLICA", "SET GLOBAL read_only = 1"):
        replica.execute(statement)
    await_caught_up(replica, primary)


def await_caught_up(replica: MariaDB, primary: MariaDB) -> None:
    """Returns when the replica has all that the primary has now."""
    (position,) = primary.execute("SELECT @@gtid_binlog_pos")[0]
    until(lambda: replica.execute("SELECT MASTER_GTID_WAIT(%s, 1)", [position])[0][0] == 0, limit_s=60)
