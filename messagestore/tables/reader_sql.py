"""Statements for readers: the committed offset of each group in a queue, and the owner that
may move it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from messagestore.engine.mysql_session import Session
from messagestore.tables.shapes import Position, ReaderKey, Rewound
from messagestore.tables.sql_steps import fetch_rows, id_list, reader_columns, step
from metadata.grouping import chunks
from metadata.rules.nodes import Engine

_INSTANCES_PER_TRANSACTION = 100
_END = 2**63 - 1  # above every head


def insert_readers(
    session: Session,
    *,
    group_id: int,
    queues: Sequence[int],
    epoch: int,
    latest: bool,
    instances: Sequence[str] = ("",),
) -> None:
    """Insert reader rows for each instance, at the low or head of the queues. Existing rows
    stay.

    A row below the epoch was left by an earlier subscription. It is replaced.
    """
    rows = {
        "group_id": group_id,
        "queues": id_list(queues),
        "epoch": epoch,
        # The statement limits the position to the low and the head of each queue.
        "position": _END if latest else 0,
    }
    _insert(session, rows, instances)


def insert_readers_at(
    session: Session,
    *,
    group_id: int,
    queue: int,
    epoch: int,
    offset: int,
    instances: Sequence[str],
) -> None:
    """Insert reader rows of one queue, at an offset or the nearest offset that the queue
    has.
    """
    rows = {
        "group_id": group_id,
        "queues": id_list([queue]),
        "epoch": epoch,
        "position": offset,
    }
    _insert(session, rows, instances)


def _insert(session: Session, rows: Mapping[str, object], instances: Sequence[str]) -> None:
    values = {**rows, "below": rows["epoch"]}
    # Delete, then insert: a row of an earlier subscription has a lower epoch and must not
    # stay.
    statements = ("delete_instance_readers", "insert_readers")
    for chunk in chunks(instances, _INSTANCES_PER_TRANSACTION):
        session.transact(
            *(
                step(session, name, **values, instance=instance)
                for instance in chunk
                for name in statements
            )
        )


def delete_readers(
    session: Session,
    *,
    group_id: int,
    queues: Sequence[int],
    below: int,
    instance: str | None = None,
) -> None:
    """Delete reader rows of a group whose epoch is below `below`.

    `instance` None stands for all instances.
    """
    rows: dict[str, object] = {
        "group_id": group_id,
        "queues": id_list(queues),
        "below": below,
    }
    if instance is None:
        session.transact(step(session, "delete_readers", **rows))
    else:
        session.transact(
            step(session, "delete_instance_readers", **rows, instance=instance)
        )


def delete_instance(session: Session, *, group_id: int, instance: str) -> None:
    session.transact(step(session, "delete_instance", group_id=group_id, instance=instance))


def read_positions(
    session: Session, *, group_id: int, queues: Sequence[int], instance: str = ""
) -> dict[int, Position]:
    """Return {queue: position} of those queues that have a head row."""
    rows = fetch_rows(
        session,
        "select_positions",
        group_id=group_id,
        instance=instance,
        queues=id_list(queues),
    )
    return {row[0]: Position(*row) for row in rows}


def acquire_reader(
    session: Session, *, reader: ReaderKey, epoch: int, owner: str
) -> tuple[int, str, int] | None:
    """Claim a queue for an owner at an epoch. Return (epoch, owner, committed) afterwards.

    The claim succeeded if epoch and owner are the caller's. From this commit on, no earlier
    owner can pull or commit. None if no reader row exists.
    """
    # One statement sets and reads: a check before it could be overtaken by another owner.
    results = session.transact(
        step(session, "acquire_reader", **reader_columns(reader), epoch=epoch, owner=owner)
    )
    rows = results[-1].rows
    return rows[0] if rows else None


def update_committed(
    session: Session,
    *,
    group_id: int,
    owner: str,
    offsets: Sequence[tuple[int, int, int]],
    instance: str = "",
) -> list[int | None]:
    """Commit (queue, epoch, offset)s in a single transaction. Return by how much each position
    moved.

    None where the reader row did not allow it: another epoch or owner, or an offset above
    the head. An offset below the committed one is allowed and changes nothing. If retention
    had deleted messages above the old position, the move counts as 0, because nobody
    handled them. Declared gaps count.
    """
    reader = {"group_id": group_id, "instance": instance, "owner": owner}
    results = session.transact(
        *(
            step(
                session,
                "update_committed",
                **reader,
                queue=queue,
                epoch=epoch,
                position=offset,
            )
            for queue, epoch, offset in offsets
        )
    )
    if session.engine == Engine.SQLITE:
        # SQLite has two results for each offset: the former position, and the change.
        before = [int(result.rows[0][0]) if result.rows else 0 for result in results[::2]]
        results = results[1::2]
    else:
        before = [result.number for result in results]
    return [
        # The statement allows a lower offset without a change: then nothing moved.
        max(0, offset - former) if result.matched == 1 else None
        for (_queue, _epoch, offset), former, result in zip(
            offsets, before, results, strict=True
        )
    ]


def reset_reader(session: Session, *, reader: ReaderKey, offset: int) -> Rewound | None:
    """Move a reader by hand: set the position, raise the epoch by 1 and remove the owner.

    Return the new epoch and the former offset, None if no reader row exists. A former owner
    can neither pull nor commit any more.
    """
    # In the same transaction, so that the former offset is the one that was replaced.
    before = step(session, "select_committed", **reader_columns(reader))
    rows = session.transact(
        before, step(session, "reset_reader", **reader_columns(reader), position=offset)
    )[0].rows
    position = read_positions(
        session, group_id=reader.group_id, queues=[reader.queue], instance=reader.instance
    ).get(reader.queue)
    if not rows or position is None or position.epoch is None:
        return None
    return Rewound(position.epoch, rows[0][0])
