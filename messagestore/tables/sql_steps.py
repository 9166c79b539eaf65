"""Named statements as steps of a session, and the pieces they are filled with."""

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
from messagestore.engine.statements import load
from messagestore.tables.shapes import ReaderKey


def message_table(queue: int) -> str:
    return f"message_{queue:d}"


def step(session: Session, name: str, **parameters: object) -> Step:
    """A named statement of the session's engine with its values."""
    return Step(load(session.engine)[name], parameters)


def fetch_rows(
    session: Session, name: str, **parameters: object
) -> Sequence[tuple[Any, ...]]:
    """Run a named statement; the rows of its last result."""
    return session.run(step(session, name, **parameters))[-1].rows


def processlist(session: Session) -> str:
    """The server's table of connections."""
    assert isinstance(session, MySqlSession)  # noqa: S101 - SQLite has none
    return session.processlist


def reader_columns(reader: ReaderKey) -> dict[str, object]:
    return {"group_id": reader.group_id, "queue": reader.queue, "instance": reader.instance}


def id_list(queues: Sequence[int]) -> str:
    """Queue ids as the inside of an IN (…)."""
    return ",".join(str(int(queue)) for queue in queues)


def text_list(session: Session, values: Sequence[str]) -> str | bytes:
    """Texts as the inside of an IN (…), whatever characters they have."""
    if isinstance(session, MySqlSession):
        return b",".join(session.literal(value) for value in values)
    return ",".join(f"CAST(x'{value.encode().hex()}' AS TEXT)" for value in values)


def up_to_bytes(most_bytes: int) -> CountFitting:
    """Take rows of messages until their bodies have reached so many bytes: the last may
    exceed them.
    """
    taken = 0

    def fits(fetched: Rows) -> int:
        nonlocal taken
        size = sum([len(row[ROW_BODY] or b"") for row in fetched])
        if taken + size < most_bytes:
            taken += size
            return len(fetched)
        for index, row in enumerate(fetched):
            if taken >= most_bytes:
                return index
            taken += len(row[ROW_BODY] or b"")
        return len(fetched)

    return fits
