"""Verbs on readers: where each group stands in a queue, and who may move it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from messagestore.engine.mysql_session import Session
from messagestore.tables.shapes import Position, ReaderKey, Rewound
from messagestore.tables.sql_steps import fetch_rows, id_list, reader_columns, step
from metadata.grouping import chunks

_INSTANCES_EACH = 100  # whose reader rows are made in one transaction
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
    """Make reader rows at the queues' low or head, for each instance; one that exists keeps
    its place.

    Rows below the epoch do not count as existing: an earlier subscription left them.
    """
    rows = {
        "group_id": group_id,
        "queues": id_list(queues),
        "epoch": epoch,
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
    """The same in one queue, at an offset or the nearest to it that the queue has."""
    rows = {
        "group_id": group_id,
        "queues": id_list([queue]),
        "epoch": epoch,
        "position": offset,
    }
    _insert(session, rows, instances)


def _insert(session: Session, rows: Mapping[str, object], instances: Sequence[str]) -> None:
    named = {**rows, "below": rows["epoch"]}
    both = ("delete_instance_readers", "insert_readers")
    for some in chunks(instances, _INSTANCES_EACH):
        session.transact(
            *(step(session, name, **named, instance=one) for one in some for name in both)
        )


def delete_readers(
    session: Session,
    *,
    group_id: int,
    queues: Sequence[int],
    below: int,
    instance: str | None = None,
) -> None:
    """Delete the rows of a group's readers (None: of all its instances) whose epoch is
    below a bound.
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
    """{queue: position} of those queues that have a head row."""
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
    """Claim a queue for an owner at an epoch; the (epoch, owner, committed) that stand
    afterwards decide.

    From the moment this commits no earlier owner can pull or commit. None where no reader
    row exists.
    """
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
    """Commit (queue, epoch, offset)s in one transaction; for each how many offsets its
    position moved by.

    None where the reader row did not allow it: another epoch or owner, or an offset above
    the head. A lower offset than the committed one changes nothing and is allowed. A
    position that retention had gone past tells nothing of what was handled, so its move
    counts as 0; declared gaps count.
    """
    whose = {"group_id": group_id, "instance": instance, "owner": owner}
    results = session.transact(
        *(
            step(
                session,
                "update_committed",
                **whose,
                queue=queue,
                epoch=epoch,
                position=offset,
            )
            for queue, epoch, offset in offsets
        )
    )
    if session.engine == "sqlite":  # two results for each: where it stood, and the change
        before = [int(result.rows[0][0]) if result.rows else 0 for result in results[::2]]
        results = results[1::2]
    else:
        before = [result.number for result in results]
    return [
        max(0, offset - stood) if result.matched == 1 else None
        for (_queue, _epoch, offset), stood, result in zip(
            offsets, before, results, strict=True
        )
    ]


def reset_reader(session: Session, *, reader: ReaderKey, offset: int) -> Rewound | None:
    """Move a reader by hand: position, epoch + 1, no owner; where it was and the epoch it
    has then.

    None where no reader row exists. Whoever owned it can neither pull nor commit any more.
    """
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
