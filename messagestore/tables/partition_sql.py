"""Statements for partitions, which only MySQL and MariaDB have, and for retention and disk
usage.
"""

from __future__ import annotations

from collections.abc import Sequence

from messagestore.engine import db_errors
from messagestore.engine.mysql_session import MySqlSession, Session, Step
from messagestore.tables.shapes import LongTransaction, Partition
from messagestore.tables.sql_steps import fetch_rows, message_table, processlist, step
from metadata.rules.nodes import Engine


def list_partitions(session: Session, *, queue: int) -> list[Partition]:
    """Return a queue's partitions in rising order.

    Empty if its table has none: on SQLite, or if an earlier version made it. Raises
    `db_errors.Altered` if the table is missing or partitioned in another way.
    """
    if session.engine == Engine.SQLITE:
        return []
    table = message_table(queue)
    rows = fetch_rows(session, "select_partitions", table_name=table)
    if not rows:
        raise db_errors.Altered(f"Table {table} is missing.")
    partitions: list[Partition] = []
    for name, method, bound, size in rows:
        # A table without partitions has one row without a name.
        if name is None:
            return []
        if method != "RANGE" or not str(bound).isdigit():
            problem = f"partition {name} is {method} {bound}, not a range of offsets"
            raise db_errors.Altered(f"Table {table} was altered: {problem}.")
        partitions.append(
            Partition(name, partitions[-1].end if partitions else 0, int(bound), int(size))
        )
    return partitions


def add_partitions(session: Session, *, queue: int, ends: Sequence[int]) -> None:
    """Add partitions above the last one. Each holds the offsets below its end."""
    definitions = ", ".join(
        f"PARTITION below_{end:d} VALUES LESS THAN ({end:d})" for end in ends
    )
    session.run(
        step(session, "add_partitions", table=message_table(queue), partitions=definitions)
    )


def drop_partition(session: Session, *, queue: int, name: str) -> None:
    session.run(_partition_step(session, "drop_partition", queue=queue, name=name))


def rebuild_partition(session: Session, *, queue: int, name: str) -> None:
    """Give a partition the indexes of the table's definition, by copying it.

    Writers of the table wait meanwhile.
    """
    session.run(_partition_step(session, "rebuild_partition", queue=queue, name=name))


def find_partitions_without_index(session: Session, *, queue: int) -> list[str]:
    """Return the partitions that lack the key index, although the table's definition has it.

    A server that is killed during an ALTER TABLE may leave them (MariaDB 10.11). Reading
    them by the index is the only test that every account may make.
    """
    lacking = []
    for partition in list_partitions(session, queue=queue):
        probe = _partition_step(
            session, "probe_key_index", queue=queue, name=partition.name
        )
        try:
            session.run(probe)
        except (db_errors.Altered, db_errors.Denied):
            raise
        except db_errors.Final:  # 1030: the partition has no index of that name
            lacking.append(partition.name)
    return lacking


def _partition_step(session: Session, verb: str, *, queue: int, name: str) -> Step:
    quoted = f"`{name.replace('`', '``')}`"
    return step(session, verb, table=message_table(queue), partition=quoted)


def limit_lock_wait(session: Session) -> None:
    """Let this session wait at most one second for a table lock."""
    # A statement that waits for a metadata lock blocks every later statement on the table.
    session.run(step(session, "limit_lock_wait"))


def take_table_lock(session: Session, *, table: str, seconds: int) -> bool:
    """Take the right to change a table, held until the session closes. False if another
    session has it.
    """
    rows = fetch_rows(session, "take_table_lock", table_name=table, seconds=seconds)
    # GET_LOCK: 1 if taken, 0 after the timeout, NULL on an error.
    return bool(rows[0][0] == 1)


def list_long_transactions(session: Session, *, seconds: int) -> list[LongTransaction]:
    """Return transactions in the node's database older than `seconds`, the oldest first.

    Empty if the account may not see them because it lacks the privilege PROCESS.
    """
    try:
        table = processlist(session)
        rows = fetch_rows(
            session, "select_long_transactions", processlist=table, seconds=seconds
        )
    except db_errors.Final:
        return []
    return [LongTransaction(*row) for row in rows]


_TABLESPACES = {"mariadb": "INNODB_SYS_TABLESPACES", "mysql": "INNODB_TABLESPACES"}


def raise_low(session: Session, *, queue: int, low: int) -> bool:
    """Raise the log start offset of a queue.

    Return False if it was as high already, or would be above the head.
    """
    return (
        session.transact(step(session, "raise_low", queue=queue, low=low))[0].matched == 1
    )


def delete_below(session: Session, *, queue: int, end: int) -> int:
    """Delete messages below an offset, as far as they are below the log start offset.

    Return how many.
    """
    # The statement compares with the stored log start offset, so that no served message is
    # deleted even if the caller is wrong.
    values = {"table": message_table(queue), "queue": queue, "end_offset": end}
    return session.transact(step(session, "delete_below", **values))[0].matched


def measure_rows(session: Session, *, queue: int, first: int, end: int) -> tuple[int, int]:
    """Return (messages, bytes of their content) at offsets first … end-1.

    Reads every row, so keep the range short.
    """
    table = message_table(queue)
    rows, size = fetch_rows(
        session, "select_row_bytes", table=table, first_offset=first, end_offset=end
    )[0]
    return int(rows), int(size)


def read_queue_bytes(session: Session) -> dict[int, int]:
    """Return {queue: bytes of its table with indexes} from the server's statistics.

    MySQL and MariaDB only.
    """
    return {
        int(queue): int(size) for queue, size in fetch_rows(session, "select_queue_sizes")
    }


def read_used_bytes(session: Session) -> tuple[int, int]:
    """Return (bytes of the node's files, free bytes inside them).

    The second is 0 on MySQL and MariaDB.
    """
    if not isinstance(session, MySqlSession):
        size, free = fetch_rows(session, "select_file_size")[0]
        return int(size), int(free)
    try:
        view = _TABLESPACES[session.flavour]
        # InnoDB returns free pages of a table to that table only, so they do not count as
        # free.
        return int(fetch_rows(session, "select_tablespaces", view=view)[0][0]), 0
    # Statistics of tables are less exact, but every account may read them.
    except db_errors.Final:  # the account lacks the right PROCESS
        return int(fetch_rows(session, "select_table_sizes")[0][0]), 0
