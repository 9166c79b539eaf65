"""Reader rows of a subscription, made at the place where it starts."""

from __future__ import annotations

from collections.abc import Sequence

from messagestore.engine.mysql_session import Session
from messagestore.heads.time_lookup import first_at
from messagestore.tables import reader_sql


def insert_readers(
    session: Session,
    *,
    group_id: int,
    queues: Sequence[int],
    epoch: int,
    start: str,
    start_at_ms: int | None,
    instances: Sequence[str],
) -> None:
    """Make the reader rows of instances in queues of a node, where they are missing.

    They stand at the first message that was stored at `start_at_ms` or later, at the end if there is none;
    without a time at the `earliest` or `latest` message.
    """
    if start_at_ms is None:
        reader_sql.insert_readers(
            session,
            group_id=group_id,
            queues=queues,
            epoch=epoch,
            latest=start == "latest",
            instances=instances,
        )
        return
    bounds: dict[int, tuple[int, int]] = {}  # of queues that an instance lacks: it may have joined before
    for instance in instances:
        read = reader_sql.read_positions(session, group_id=group_id, queues=queues, instance=instance)
        for queue, one in read.items():
            if one.epoch is None or one.epoch < epoch:
                bounds[queue] = (one.low, one.head)
    for queue, kept in bounds.items():
        offset = first_at(session, queue=queue, bounds=kept, at_ms=start_at_ms)
        reader_sql.insert_readers_at(
            session, group_id=group_id, queue=queue, epoch=epoch, offset=offset, instances=instances
        )
