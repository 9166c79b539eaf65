"""Hold up the commits of a server while a test kills connections that wait in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from tests.support.environment import IS_MYSQL
from tests.support.mariadb import MariaDB

DELAY = "SET GLOBAL binlog_group_commit_sync_delay = {}"  # microseconds, a second at most
# part of a connection's state in the process list
STATE = "waiting for handler commit" if IS_MYSQL else "backup lock"
# MySQL's information_schema.processlist fails with error 3854 while a statement with bytes
# that are not text runs.
PROCESSLIST = f"{'performance' if IS_MYSQL else 'information'}_schema.processlist"
STAGES = ("START", "FLUSH", "BLOCK_DDL", "BLOCK_COMMIT")


@contextmanager
def held_up(server: MariaDB) -> Iterator[None]:
    """During the block each commit takes a second (MySQL), or waits for the end of the
    block (MariaDB).
    """
    if IS_MYSQL:
        server.execute(DELAY.format(1_000_000))
        try:
            yield
        finally:
            server.execute(DELAY.format(0))
        return
    with closing(server.connect()) as connection:
        blocker = connection.cursor()
        for stage in STAGES:
            blocker.execute(f"BACKUP STAGE {stage}")
        yield
        blocker.execute("BACKUP STAGE END")
