"""Statements that the audit uses. They read ranges and change nothing."""

from __future__ import annotations

from collections.abc import Sequence

from messagestore.engine.mysql_session import Session
from messagestore.tables.shapes import BatchRow, ReaderRow, RowCount
from messagestore.tables.sql_steps import fetch_rows, id_list, message_table


def count_rows(session: Session, *, queue: int, first: int, end: int) -> RowCount:
    """Summarize the rows at offsets first … end-1. Reads each of them, so keep the range
    short.
    """
    rows = fetch_rows(
        session,
        "count_rows",
        table=message_table(queue),
        first_offset=first,
        end_offset=end,
    )
    return RowCount(*rows[0])


def list_offsets(
    session: Session, *, queue: int, first: int, end: int
) -> list[tuple[int, int]]:
    """Return (offset, storage time in ms) of the rows at offsets first … end-1."""
    table = message_table(queue)
    return list(
        fetch_rows(
            session, "select_offsets", table=table, first_offset=first, end_offset=end
        )
    )


def read_offset_ends(
    session: Session, *, queue: int, first: int
) -> tuple[int | None, int | None]:
    """Return the lowest and the highest offset at or above `first` that has a row, None
    without rows.
    """
    lowest, highest = fetch_rows(
        session, "select_ends", table=message_table(queue), first_offset=first
    )[0]
    return lowest, highest


def list_readers(session: Session, *, queues: Sequence[int]) -> list[ReaderRow]:
    """Return the reader rows of some queues, of all groups and instances."""
    # The primary key begins with the group, so a query for each group uses it.
    groups = (
        [group_id for (group_id,) in fetch_rows(session, "select_reader_groups")]
        if queues
        else []
    )
    return [
        ReaderRow(*row)
        for group_id in groups
        for row in fetch_rows(
            session, "select_readers", group_id=group_id, queues=id_list(queues)
        )
    ]


def list_all_readers(session: Session) -> list[ReaderRow]:
    return [ReaderRow(*row) for row in fetch_rows(session, "select_all_readers")]


def list_message_tables(session: Session) -> list[int]:
    """Return the ids of the queues that have a table on the node."""
    numbers = [
        str(name).removeprefix("message_")
        for (name,) in fetch_rows(session, "select_message_tables")
    ]
    return [int(number) for number in numbers if number.isascii() and number.isdigit()]


def read_batch_ends(session: Session) -> tuple[bytes | None, int | None]:
    """Return the highest stored batch id, and the time in ms of the oldest batch."""
    highest, oldest_ms = fetch_rows(session, "select_batch_ends")[0]
    return highest, oldest_ms


def count_batch_page(
    session: Session, *, queues: Sequence[int], after: bytes, last: bytes, most: int
) -> tuple[int, bytes | None, int]:
    """Count a page of batch ids above `after` and up to `last`, of at most `most` ids.

    Return (ids, the highest of them, how many of them belong to `queues`).
    """
    values = {"queues": id_list(queues), "after": after, "last": last, "most": most}
    count, highest, queue_count = fetch_rows(session, "select_batch_page", **values)[0]
    return count, highest, int(queue_count)


def list_batches(
    session: Session, *, queues: Sequence[int], after: bytes, last: bytes
) -> list[BatchRow]:
    """Return batches of some queues with ids above `after` and up to `last`, by id."""
    values = {"queues": id_list(queues), "after": after, "last": last}
    return [BatchRow(*row) for row in fetch_rows(session, "select_batches", **values)]
