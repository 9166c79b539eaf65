"""Verbs on dead messages: those of which no retry is left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from messagestore.engine.mysql_session import MySqlSession, Session
from messagestore.tables.sql_steps import fetch_rows, id_list, step


class NewDead(NamedTuple):
    """A dead message to be stored; `origin` is JSON, headers as they are stored."""

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
    """A dead message with what it holds; the fields before `headers` are those of a
    DeadRow.
    """

    row: DeadRow
    headers: str | None
    body: bytes
    batch_id: bytes


class DeadFilter(NamedTuple):
    """Selection of a group's dead messages; None: of all topics, of all errors."""

    group_id: int
    topic_id: int | None = None
    error_class: str | None = None


class DeadPosition(NamedTuple):
    """A dead message's place in the order of their deaths on a node."""

    died_at_ms: int
    id: int


START = DeadPosition(0, 0)


class ErrorCount(NamedTuple):
    """Number of a topic's messages that died of a kind of error, and when the first and the
    last did.
    """

    topic_id: int
    error_class: str
    messages: int
    first_ms: int
    last_ms: int


def insert_dead(session: Session, *, queue: int, node_epoch: int, dead: NewDead) -> bool:
    """Store a dead message, once; False, and nothing stored, if the failure queue's head
    row refuses it.

    Raises `db_errors.Duplicate` if the batch id is known.
    """
    results = session.transact(
        step(session, "insert_dead", queue=queue, node_epoch=node_epoch, **dead._asdict())
    )
    return results[-1].matched == 1


def list_dead(
    session: Session, *, selection: DeadFilter, before: DeadPosition, most: int
) -> list[DeadRow]:
    """At most so many of them that died before a place, the newest first."""
    values = _which(session, selection)
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
    """At most so many with a key, or whose origin begins so, among the next `scan` ones
    before a place, and where the scan ended.

    That is None if nothing is left behind it.
    """
    values = _which(session, selection)
    values |= {"until_ms": before.died_at_ms, "below": before.id}
    last = fetch_rows(session, "find_dead_stretch", **values, skipped=scan - 1)
    end = DeadPosition(last[0][1], last[0][0]) if last else None
    begin = end or START
    values |= {"from_ms": begin.died_at_ms, "from_id": begin.id, "most": most}
    name, wanted = (
        ("search_dead", {"msg_key": key})
        if origin is None
        else ("search_dead_origin", {"origin": origin})
    )
    return [DeadRow(*row) for row in fetch_rows(session, name, **values, **wanted)], end


def summarize_dead(session: Session, *, selection: DeadFilter) -> list[ErrorCount]:
    return [
        ErrorCount(*row)
        for row in fetch_rows(session, "summarize_dead", **_which(session, selection))
    ]


def count_dead_by_group(
    session: Session, *, within_s: int
) -> list[tuple[int, int, int, int]]:
    """(group, dead messages, those of the last so many seconds, when the newest died, ms)
    of all groups.
    """
    rows = fetch_rows(session, "tally_dead", within_s=within_s)
    return [(group, count, int(fresh), newest) for group, count, fresh, newest in rows]


def select_dead(
    session: Session, *, group_id: int, ids_wanted: Sequence[int]
) -> list[DeadLetter]:
    """Those of some dead messages that are the group's, by id."""
    if not ids_wanted:
        return []
    rows = fetch_rows(session, "select_dead", group_id=group_id, ids=id_list(ids_wanted))
    return [DeadLetter(DeadRow(*row[:12]), *row[12:]) for row in rows]


def read_dead_copies(
    session: Session, *, group_id: int, batches: str
) -> dict[bytes, DeadRow]:
    """Return the dead letters of a group that were stored under some ids, as the inside of
    an IN (…).
    """
    rows = fetch_rows(session, "select_dead_copies", group_id=group_id, batches=batches)
    return {row[12]: DeadRow(*row[:12]) for row in rows}


def list_dead_positions(
    session: Session, *, selection: DeadFilter, after: DeadPosition, upto: int, most: int
) -> list[DeadPosition]:
    """At most so many of them behind a place, in the order of their deaths, with ids up to
    `upto`.
    """
    values = _which(session, selection)
    values |= {"from_ms": after.died_at_ms, "after": after.id, "upto": upto, "most": most}
    rows = fetch_rows(session, "select_dead_places", **values)
    return [DeadPosition(died_at_ms, row_id) for row_id, died_at_ms in rows]


def read_newest_dead_id(session: Session) -> int:
    """The highest id of a dead message on the node, 0 without any."""
    return int(fetch_rows(session, "select_newest_dead")[0][0])


def count_dead(session: Session, *, selection: DeadFilter, upto: int) -> int:
    """Count the dead messages with ids up to `upto`."""
    return int(
        fetch_rows(session, "count_dead", **_which(session, selection), upto=upto)[0][0]
    )


def delete_dead(session: Session, *, group_id: int, ids_wanted: Sequence[int]) -> int:
    """Delete some dead messages of a group; how many there were."""
    if not ids_wanted:
        return 0
    results = session.transact(
        step(session, "delete_dead", group_id=group_id, ids=id_list(ids_wanted))
    )
    return results[0].matched


def list_dead_pairs(session: Session) -> list[tuple[int, int]]:
    """(group, topic) of all that the node holds."""
    return [
        (group_id, topic_id)
        for group_id, topic_id in fetch_rows(session, "select_dead_pairs")
    ]


def delete_old_dead(
    session: Session, *, group_id: int, topic_id: int, days: int, most: int
) -> int:
    """Delete what died more than so many days ago, the oldest first, at most so many; how
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


def _which(session: Session, selection: DeadFilter) -> dict[str, object]:
    """The condition and the index that serves it, as the holes `where` and `by`, and
    values.
    """
    where = f"group_id = {selection.group_id:d}"
    by = "dead_message_group"
    if selection.topic_id is not None:
        where += f" AND topic_id = {selection.topic_id:d}"
        by = "dead_message_topic"
    if selection.error_class is None:
        return {"where": where, "by": by}
    by = "dead_message_error" if selection.topic_id is None else "dead_message_both"
    if isinstance(session, MySqlSession):
        return {
            "where": where.encode()
            + b" AND error_class = "
            + session.literal(selection.error_class),
            "by": by,
        }
    return {
        "where": f"{where} AND error_class = :error_class",
        "by": by,
        "error_class": selection.error_class,
    }
