"""Statements for positions of share groups, and the view of a queue that a lease begins
with.

A *reader row* says that a group is subscribed to a queue. It has the epoch, and the
*committed offset*: all messages below it are finished. The *position* of a share group is the
offset at which its next lease of new messages begins (`next_offset`). A *run* is a range of
consecutive offsets below the position that was leased to a member and is not finished. So the
lowest unfinished offset, the *floor*, is the lowest one in the runs, or the position if there
are no runs. The committed offset follows the floor.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from messagestore.engine import db_errors
from messagestore.engine.mysql_session import Session
from messagestore.tables.sql_steps import fetch_rows, id_list, step
from metadata.rules.groups import sharing

MOST_FOR_FLOOR = 100  # runs that are read to find the floor: those with the lowest offsets


class ShareView(NamedTuple):
    """A queue as a share group sees it: bounds, reader row, position, and number of runs.

    `epoch` and `committed` are those of the reader row. `position_epoch` and `next_offset`
    are None until start_position() has created the position. `due_in_ms` is the time until
    the earliest-ending lease of a run ends, negative if it has ended, None without runs.
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
        """Return True if the position belongs to the epoch of the reader row.

        After a reset of offsets it does not, and start_position() must set it again.
        """
        return self.position_epoch == self.epoch


class Floor(NamedTuple):
    """The lowest unfinished offset of a queue, in an epoch."""

    epoch: int
    offset: int


def create_share_tables(session: Session) -> None:
    """Create the tables of share groups. Harmless if they exist."""
    session.run(step(session, "create_share_tables"))


def read_views(
    session: Session, *, group_id: int, queues: Sequence[int]
) -> dict[int, ShareView]:
    """Return {queue: view} of those queues in which the group has a reader row, in one
    round trip.
    """
    values = {"group_id": group_id, "queues": id_list(queues)}
    views, runs = session.run(step(session, "select_share_views", **values))
    views_by_queue = {row[0]: ShareView(*row) for row in views.rows}
    for queue, count, due_us in runs.rows:
        # Runs of a group that is no longer subscribed have no reader row.
        if queue in views_by_queue:
            views_by_queue[queue] = views_by_queue[queue]._replace(
                runs=int(count), due_in_ms=int(due_us) // 1000
            )
    return views_by_queue


def start_position(session: Session, *, group_id: int, queue: int) -> None:
    """Set the position to the committed offset, if it is missing or of an earlier epoch.

    Runs of earlier epochs are deleted. Harmless if it was done before.
    """
    session.transact(step(session, "start_share", group_id=group_id, queue=queue))


def read_floor(session: Session, *, group_id: int, queue: int) -> Floor | None:
    """Return the lowest unfinished offset, None without a position.

    With MOST_FOR_FLOOR or more runs, the result may be lower than the true floor.
    """
    values = {"group_id": group_id, "queue": queue, "most": MOST_FOR_FLOOR}
    rows = fetch_rows(session, "select_floor", **values)
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
    """Raise the committed offset. A lower offset or another epoch changes nothing."""
    values = {
        "group_id": group_id,
        "queue": queue,
        "epoch": to.epoch,
        "position": to.offset,
    }
    session.transact(step(session, "raise_committed", **values))


def delete_shares(
    session: Session, *, group_id: int, queues: Sequence[int], below: int
) -> None:
    """Delete positions and runs of a group whose epoch is below `below`."""
    # A node that is not upgraded yet has no such tables, and no positions.
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
    """Delete the positions and runs of all groups in a queue."""
    # As above: a node that is not upgraded yet has no such tables.
    with suppress(db_errors.Altered):
        session.transact(step(session, "delete_queue_shares", queue=queue))
