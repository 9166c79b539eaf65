"""Verbs on the positions of share groups, and what is read of a queue before anything of it
is leased.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from messagestore.engine import db_errors
from messagestore.engine.mysql_session import Session
from messagestore.tables.sql_steps import fetch_rows, id_list, step
from metadata.rules.groups import sharing

MOST_FOR_FLOOR = 100  # of the lowest runs that are read for it


class ShareView(NamedTuple):
    """A queue as a share group has it: its bounds, the reader row, the position and how
    many runs there are.

    `position_epoch` and `next_offset` are None before the first lease. `due_in_ms`: until
    the first lease ends, negative when it has; None without runs.
    """

    queue: int
    head: int
    low: int
    epoch: int
    committed: int
    position_epoch: int | None
    next_offset: int | None
    runs: int = 0
    due_in_ms: int | None = None

    @property
    def has_started(self) -> bool:
        """Return True if the position belongs to the epoch of the reader row."""
        return self.position_epoch == self.epoch


class Floor(NamedTuple):
    """The lowest unfinished offset of a queue, in an epoch."""

    epoch: int
    offset: int


def create_share_tables(session: Session) -> None:
    """Make the tables of share groups; harmless when they exist."""
    session.run(step(session, "create_share_tables"))


def read_views(
    session: Session, *, group_id: int, queues: Sequence[int]
) -> dict[int, ShareView]:
    """{queue: view} of those queues in which the group has a reader row, in one round trip."""
    named = {"group_id": group_id, "queues": id_list(queues)}
    views, runs = session.run(step(session, "select_share_views", **named))
    found = {row[0]: ShareView(*row) for row in views.rows}
    for queue, count, due_us in runs.rows:
        if queue in found:
            found[queue] = found[queue]._replace(
                runs=int(count), due_in_ms=int(due_us) // 1000
            )
    return found


def start_position(session: Session, *, group_id: int, queue: int) -> None:
    """Begin at the committed offset, where the position is of an earlier epoch than the
    reader row or there is none; runs of earlier epochs go. Harmless where it was done."""
    session.transact(step(session, "start_share", group_id=group_id, queue=queue))


def read_floor(session: Session, *, group_id: int, queue: int) -> Floor | None:
    """The lowest unfinished offset, or one below it where there are very many runs; None
    without position.
    """
    named = {"group_id": group_id, "queue": queue, "most": MOST_FOR_FLOOR}
    rows = fetch_rows(session, "select_floor", **named)
    if not rows:
        return None
    epoch, position = rows[0][:2]
    runs = [
        (first, end, sharing.bits_from_bytes(done))
        for *_, first, end, done in rows
        if first is not None
    ]
    return Floor(
        epoch,
        sharing.lowest_unfinished(position, runs, all_read=len(rows) < MOST_FOR_FLOOR),
    )


def raise_committed(session: Session, *, group_id: int, queue: int, to: Floor) -> None:
    """Write the committed offset; it never falls, and not in another epoch."""
    named = {"group_id": group_id, "queue": queue, "epoch": to.epoch, "position": to.offset}
    session.transact(step(session, "raise_committed", **named))


def delete_shares(
    session: Session, *, group_id: int, queues: Sequence[int], below: int
) -> None:
    """Delete positions and runs of a group whose epoch is below a bound; a node without
    such tables has none."""
    with suppress(db_errors.Altered):
        session.transact(
            step(
                session,
                "delete_shares",
                group_id=group_id,
                queues=id_list(queues),
                below=below,
            )
        )


def delete_queue_shares(session: Session, *, queue: int) -> None:
    """Delete the positions and runs of all groups in a queue; a node without such tables
    has none.
    """
    with suppress(db_errors.Altered):
        session.transact(step(session, "delete_queue_shares", queue=queue))
