"""Named statements as steps of a session, and the values that fill them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from messagestore.engine.messages import ROW_BODY
from messagestore.engine.mysql_session import (
    CountFitting,
    MySqlSession,
    Rows,
    Session,
    Step,
)
from messagestore.tables.shapes import ReaderKey
from messagestore.tables.statements import load


def message_table(queue: int) -> str:
    return f"message_{queue:d}"


def step(session: Session, name: str, **parameters: object) -> Step:
    """Return a named statement of the session's engine with its values."""
    return Step(load(session.engine)[name], parameters)


def fetch_rows(
    session: Session, name: str, **parameters: object
) -> Sequence[tuple[Any, ...]]:
    """Run a named statement and return the rows of its last result."""
    return session.run(step(session, name, **parameters))[-1].rows


def processlist(session: Session) -> str:
    """Return the name of the server's table of connections, which differs by server."""
    assert isinstance(session, MySqlSession)  # noqa: S101 - SQLite has none
    return session.processlist


def most_row_bytes(session: MySqlSession) -> int:
    """Return how long the rows of a single INSERT may be."""
    return session.max_packet - 10_000  # leaves room for everything around the rows


def reader_columns(reader: ReaderKey) -> dict[str, object]:
    return {"group_id": reader.group_id, "queue": reader.queue, "instance": reader.instance}


def id_list(queues: Sequence[int]) -> str:
    """Return queue ids or row ids as the inside of an IN (…)."""
    return ",".join(str(int(queue)) for queue in queues)


def text_list(session: Session, values: Sequence[str]) -> str | bytes:
    """Return texts as the inside of an IN (…). Any character is allowed."""
    if isinstance(session, MySqlSession):
        return b",".join(session.literal(value) for value in values)
    # SQLite: a hexadecimal literal needs no escaping.
    return ",".join(f"CAST(x'{value.encode().hex()}' AS TEXT)" for value in values)


def up_to_bytes(most_bytes: int) -> CountFitting:
    """Return a filter that takes message rows until their bodies reach `most_bytes`.

    The last row may exceed the limit, so that a message larger than the limit is returned,
    too.
    """
    taken_bytes = 0

    def fits(fetched: Rows) -> int:
        nonlocal taken_bytes
        # Most results fit as a whole. One sum is cheaper than a test for each row.
        size = sum([len(row[ROW_BODY] or b"") for row in fetched])
        if taken_bytes + size < most_bytes:
            taken_bytes += size
            return len(fetched)
        for index, row in enumerate(fetched):
            if taken_bytes >= most_bytes:
                return index
            taken_bytes += len(row[ROW_BODY] or b"")
        return len(fetched)

    return fits
