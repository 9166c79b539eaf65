"""Verbs of the auditor: they read ranges, and change nothing."""

from __future__ import annotations

from collections.abc import Sequence

from messagestore.engine.mysql_session import Session
from messagestore.tables.shapes import BatchRow, ReaderRow, RowCount
from messagestore.tables.sql_steps import fetch_rows, id_list, message_table


def count_rows(session: Session, *, queue: int, first: int, end: int) -> RowCount:
    """Count what lies at offsets first … end-1; keep the range short."""
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
    """(offset, stored at in ms) of the rows at offsets first … end-1."""
    table = message_table(queue)
    return list(
        fetch_rows(
            session, "select_offsets", table=table, first_offset=first, end_offset=end
        )
    )


def read_offset_ends(
    session: Session, *, queue: int, first: int
) -> tuple[int | None, int | None]:
    """The lowest and the highest offset at or above `first` that has a row."""
    lowest, highest = fetch_rows(
        session, "select_ends", table=message_table(queue), first_offset=first
    )[0]
    return lowest, highest


def list_readers(session: Session, *, queues: Sequence[int]) -> list[ReaderRow]:
    """The reader rows of some queues, of all groups and instances; asked group by group."""
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
    """The queues that have a table on the node."""
    numbers = [
        str(name).removeprefix("message_")
        for (name,) in fetch_rows(session, "select_message_tables")
    ]
    return [int(one) for one in numbers if one.isascii() and one.isdigit()]


def read_batch_ends(session: Session) -> tuple[bytes | None, int | None]:
    """The highest batch id that is remembered, and when the oldest batch was stored."""
    highest, oldest_ms = fetch_rows(session, "select_batch_ends")[0]
    return highest, oldest_ms


def count_batch_page(
    session: Session, *, queues: Sequence[int], after: bytes, last: bytes, most: int
) -> tuple[int, bytes | None, int]:
    """Return how many batch ids lie above `after` and up to `last`, at most `most`; the
    highest; and how many of them are about some queues.
    """
    values = {"queues": id_list(queues), "after": after, "last": last, "most": most}
    count, highest, mine = fetch_rows(session, "select_batch_page", **values)[0]
    return count, highest, int(mine)


def list_batches(
    session: Session, *, queues: Sequence[int], after: bytes, last: bytes
) -> list[BatchRow]:
    """Batches of some queues, by id, with ids above `after` and up to `last`."""
    values = {"queues": id_list(queues), "after": after, "last": last}
    return [BatchRow(*row) for row in fetch_rows(session, "select_batches", **values)]
