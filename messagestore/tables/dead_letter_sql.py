"""Statements for dead letters: messages of which no retry is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from messagestore.engine import db_errors
from messagestore.engine.mysql_session import MySqlSession, Session
from messagestore.tables.sql_steps import fetch_rows, id_list, step


class NewDead(NamedTuple):
    """A dead letter to store. `origin` is JSON text, `headers` as they are stored."""

    batch_id: bytes
    group_id: int
    topic_id: int
    attempts: int
    error_class: str
    error: str
    origin: str
    msg_key: str | None
    tag: str | None
    headers: str | None
    body: bytes
    trace_id: str | None
    producer: str


class DeadRow(NamedTuple):
    id: int
    group_id: int
    topic_id: int
    died_at_ms: int
    attempts: int
    error_class: str
    error: str
    origin: str
    key: str | None
    tag: str | None
    trace_id: str | None
    size: int


class DeadLetter(NamedTuple):
    """A dead letter with headers and body."""

    row: DeadRow
    headers: str | None
    body: bytes
    batch_id: bytes


class DeadFilter(NamedTuple):
    """Selects dead letters of a group. None stands for all topics, or all errors."""

    group_id: int
    topic_id: int | None = None
    error_class: str | None = None


class DeadPosition(NamedTuple):
    """Position of a dead letter among those of a node, in the order of their deaths."""

    died_at_ms: int
    id: int


START = DeadPosition(0, 0)


class ErrorCount(NamedTuple):
    """Number of dead letters of a topic with an error class, and when the first and the
    last died.
    """

    topic_id: int
    error_class: str
    messages: int
    first_ms: int
    last_ms: int


def insert_dead(session: Session, *, queue: int, node_epoch: int, dead: NewDead) -> bool:
    """Store a dead letter. Return False if the head row of the retry queue refuses it.

    Raises `db_errors.Duplicate` if the batch id is stored already.
    """
    results = session.transact(
        # The head row is part of the statement: a retry queue that was fenced takes
        # nothing.
        step(session, "insert_dead", queue=queue, node_epoch=node_epoch, **dead._asdict())
    )
    return results[-1].matched == 1


def list_dead(
    session: Session, *, selection: DeadFilter, before: DeadPosition, most: int
) -> list[DeadRow]:
    """Return at most `most` selected dead letters that died before a position, the newest
    first.
    """
    values = _filter_values(session, selection)
    values |= {"until_ms": before.died_at_ms, "below": before.id, "most": most}
    return [DeadRow(*row) for row in fetch_rows(session, "list_dead", **values)]


def search_dead(
    session: Session,
    *,
    selection: DeadFilter,
    before: DeadPosition,
    scan: int,
    most: int,
    key: str | None = None,
    origin: str | None = None,
) -> tuple[list[DeadRow], DeadPosition | None]:
    """Search the next `scan` selected dead letters before a position: those of a key, or all
    whose origin begins with a text.

    Return at most `most` of them, and the position where the search ended, None if no older
    dead letter is left. A node that lacks the index of keys reads all selected dead letters.
    """
    columns = _filter_columns(selection)
    place = {"until_ms": before.died_at_ms, "below": before.id, "skipped": scan - 1}
    wanted = {"most": most, "msg_key": key, "origin": origin}
    name = "search_dead" if origin is None else "search_dead_origin"

    def search(
        scanned_columns: Mapping[str, int | str], index: str
    ) -> tuple[list[DeadRow], DeadPosition | None]:
        # Bounds the search by rows, so that a rare match costs no scan of all dead letters.
        scanned = _match(session, scanned_columns) | {"by": index}
        last_scanned = fetch_rows(session, "find_dead_stretch", **scanned, **place)
        end = DeadPosition(last_scanned[0][1], last_scanned[0][0]) if last_scanned else None
        begin = end or START
        values = _match(session, columns) | {"by": index} | place | wanted
        values |= {"from_ms": begin.died_at_ms, "from_id": begin.id}
        return [DeadRow(*row) for row in fetch_rows(session, name, **values)], end

    if key is not None:
        # Nodes of an earlier release have no such index until manage.py upgrade_nodes.
        with suppress(db_errors.NoIndex):
            by_key: dict[str, int | str] = {"group_id": selection.group_id, "msg_key": key}
            return search(by_key, "dead_message_key")
    return search(columns, _filter_index(selection))


def summarize_dead(session: Session, *, selection: DeadFilter) -> list[ErrorCount]:
    return [
        ErrorCount(*row)
        for row in fetch_rows(
            session, "summarize_dead", **_filter_values(session, selection)
        )
    ]


def count_dead_by_group(
    session: Session, *, within_s: int
) -> list[tuple[int, int, int, int]]:
    """Return (group, dead letters, those of the last `within_s` seconds, newest death in
    ms) of all groups.
    """
    rows = fetch_rows(session, "tally_dead", within_s=within_s)
    return [
        (group, count, int(recent_count), newest)
        for group, count, recent_count, newest in rows
    ]


def select_dead(
    session: Session, *, group_id: int, ids_wanted: Sequence[int]
) -> list[DeadLetter]:
    """Return those of some dead letters that belong to a group, by id."""
    if not ids_wanted:
        return []
    rows = fetch_rows(session, "select_dead", group_id=group_id, ids=id_list(ids_wanted))
    return [DeadLetter(DeadRow(*row[:12]), *row[12:]) for row in rows]


def read_dead_copies(
    session: Session, *, group_id: int, batches: str
) -> dict[bytes, DeadRow]:
    """Return dead letters of a group by batch id.

    `batches` has the batch ids as the inside of an IN (…).
    """
    rows = fetch_rows(session, "select_dead_copies", group_id=group_id, batches=batches)
    return {row[12]: DeadRow(*row[:12]) for row in rows}


def list_dead_positions(
    session: Session, *, selection: DeadFilter, after: DeadPosition, upto: int, most: int
) -> list[DeadPosition]:
    """Return positions of at most `most` selected dead letters after a position, in the
    order of their deaths.

    Only ids up to `upto` count, so that letters that die meanwhile are left out.
    """
    values = _filter_values(session, selection)
    values |= {"from_ms": after.died_at_ms, "after": after.id, "upto": upto, "most": most}
    rows = fetch_rows(session, "select_dead_places", **values)
    return [DeadPosition(died_at_ms, row_id) for row_id, died_at_ms in rows]


def read_newest_dead_id(session: Session) -> int:
    """Return the highest id of a dead letter on the node, 0 without any."""
    return int(fetch_rows(session, "select_newest_dead")[0][0])


def count_dead(session: Session, *, selection: DeadFilter, upto: int) -> int:
    """Count the selected dead letters with ids up to `upto`."""
    return int(
        fetch_rows(session, "count_dead", **_filter_values(session, selection), upto=upto)[
            0
        ][0]
    )


def delete_dead(session: Session, *, group_id: int, ids_wanted: Sequence[int]) -> int:
    """Delete some dead letters of a group. Return how many existed."""
    if not ids_wanted:
        return 0
    results = session.transact(
        step(session, "delete_dead", group_id=group_id, ids=id_list(ids_wanted))
    )
    return results[0].matched


def list_dead_pairs(session: Session) -> list[tuple[int, int]]:
    """Return (group, topic) of all dead letters on the node."""
    return [
        (group_id, topic_id)
        for group_id, topic_id in fetch_rows(session, "select_dead_pairs")
    ]


def delete_old_dead(
    session: Session, *, group_id: int, topic_id: int, days: int, most: int
) -> int:
    """Delete dead letters older than `days`, at most `most`, the oldest first. Return how
    many.
    """
    delete = step(
        session,
        "delete_old_dead",
        group_id=group_id,
        topic_id=topic_id,
        days=days,
        most=most,
    )
    return session.transact(delete)[0].matched


def _filter_values(session: Session, selection: DeadFilter) -> dict[str, object]:
    """Return the WHERE condition, the index that serves it, and the values, as parameters
    of a statement.
    """
    return _match(session, _filter_columns(selection)) | {"by": _filter_index(selection)}


def _filter_columns(selection: DeadFilter) -> dict[str, int | str]:
    """Return the values that the columns of selected dead letters have."""
    columns: dict[str, int | str] = {"group_id": selection.group_id}
    if selection.topic_id is not None:
        columns["topic_id"] = selection.topic_id
    if selection.error_class is not None:
        columns["error_class"] = selection.error_class
    return columns


def _filter_index(selection: DeadFilter) -> str:
    # Each filter has an index in the order of deaths. FORCE INDEX ({by}) lets a server read
    # the first rows in that order instead of sorting all that match.
    if selection.error_class is None:
        return "dead_message_group" if selection.topic_id is None else "dead_message_topic"
    return "dead_message_error" if selection.topic_id is None else "dead_message_both"


def _match(session: Session, columns: Mapping[str, int | str]) -> dict[str, object]:
    """Return the WHERE condition that columns have these values, as parameters of a statement."""
    # `where` becomes part of the statement's text. There MySQL takes a literal, and SQLite a
    # parameter.
    if isinstance(session, MySqlSession):
        conditions = (
            name.encode() + b" = " + session.literal(value)
            for name, value in columns.items()
        )
        return {"where": b" AND ".join(conditions)}
    return {"where": " AND ".join(f"{name} = :{name}" for name in columns), **columns}
