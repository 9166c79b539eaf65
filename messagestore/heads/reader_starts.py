"""Insert the reader rows of a subscription at its start position."""

from __future__ import annotations

from collections.abc import Sequence

from messagestore.engine.mysql_session import Session
from messagestore.heads.time_lookup import first_at
from messagestore.tables import reader_sql
from metadata.rules.groups.states import Start


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
    """Insert missing reader rows of instances in queues of a node.

    They start at the first message that was stored at `start_at_ms` or later, or at the
    head if there is none. Without a time, `start` is `earliest` or `latest`.
    """
    if start_at_ms is None:
        reader_sql.insert_readers(
            session,
            group_id=group_id,
            queues=queues,
            epoch=epoch,
            latest=start == Start.LATEST,
            instances=instances,
        )
        return
    # (low, head) of the queues in which an instance lacks a row. Only there the time is
    # looked up, which costs a query for each halving.
    bounds: dict[int, tuple[int, int]] = {}
    for instance in instances:
        for queue, position in reader_sql.read_positions(
            session, group_id=group_id, queues=queues, instance=instance
        ).items():
            # A row of a lower epoch was left by an earlier subscription. It does not count.
            if position.epoch is None or position.epoch < epoch:
                bounds[queue] = (position.low, position.head)
    for queue, queue_bounds in bounds.items():
        offset = first_at(session, queue=queue, bounds=queue_bounds, at_ms=start_at_ms)
        reader_sql.insert_readers_at(
            session,
            group_id=group_id,
            queue=queue,
            epoch=epoch,
            offset=offset,
            instances=instances,
        )
