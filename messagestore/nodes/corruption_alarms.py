"""Alarms for corrupt queues: raised by the process that met the fault, ended when it is
gone.

A pull or send that meets a contradiction only marks the queue (heads/corruption.py),
because pulls and sends never wait for metadata. A loop of each process raises alarms for
its marks and drops marks whose cause is gone. A loop of one broker ends alarms, also those
of processes that no longer exist. Both check the node as a pull does, and what else a send
needs.
"""

from __future__ import annotations

import logging
import time

from messagestore.engine import db_errors
from messagestore.engine.mysql_session import Session
from messagestore.heads import corruption
from messagestore.heads.gap_check import explain_missing
from messagestore.pool import node_pools
from messagestore.tables import audit_sql, message_sql, partition_sql, queue_sql, reader_sql
from metadata.cache import snapshot
from metadata.errors import NodeUnavailable, NotFound
from metadata.monitoring import alarms
from metadata.rules.alarm_rules import AlarmKind
from metadata.rules.alarm_texts import alarm_text, error_text

log = logging.getLogger(__name__)
KIND = AlarmKind.CORRUPT
AGAIN_S = 30.0  # at least this long between two alarms for the same mark
# A mark or alarm is checked after this time without a new fault. Longer than AGAIN_S, so that
# a queue which is still faulty raises its alarm again first.
CALM_S = 60.0


def raise_alarms() -> int:
    """Raise alarms for this process's marks and drop marks whose cause is gone.

    Returns how many alarms were raised. After MetadataUnavailable the next pass raises
    them.
    """
    raised = 0
    for queue, mark in corruption.marks().items():
        now = time.monotonic()
        if mark.met_at > mark.told_at and now - mark.told_at >= AGAIN_S:
            name = snapshot.current().queue_name(queue)
            if name is None:
                continue  # the queue is deleted
            alarms.raise_alarm(
                kind=KIND, name=name, detail=error_text(mark.why), place=mark.offset
            )
            # The time before the write: a fault that is met during it is reported again.
            mark.told_at = now
            raised += 1
        elif (
            now - mark.met_at >= CALM_S
            and find_problem(queue=queue, offset=mark.offset) is None
        ):
            corruption.clear(queue, mark)
    return raised


def review(*, calm_s: float = CALM_S) -> int:
    """End alarms not raised for `calm_s` whose cause is gone. Returns how many."""
    ended = []
    for name, offset in alarms.list_calm_alarms(kind=KIND, calm_s=calm_s):
        info = snapshot.current().find_queue_by_name(name)
        if info is None or find_problem(queue=info.id, offset=offset) is None:
            ended.append(name)
    return alarms.end_alarms(kind=KIND, names=ended) if ended else 0


def find_problem(*, queue: int, offset: int | None) -> str | None:
    """Return the fault of a queue, at an offset or in general.

    None if nothing is wrong, or the queue is deleted.
    """
    try:
        node = node_pools.node_of(queue)
    except NotFound:
        return None
    try:
        with node.reading() as session:
            # Sends need the batches and the partitions, so their errors count as well.
            message_sql.find_batch(session, batch_id=bytes(16))
            partition_sql.list_partitions(session, queue=queue)
            return _find_low_head(session, queue) or _find_hole(session, queue, offset)
    # While the node is unavailable nothing is known, so the alarm stays.
    except (db_errors.Final, NodeUnavailable) as error:
        return error.detail


def _find_low_head(session: Session, queue: int) -> str | None:
    before = queue_sql.read_head(session, queue=queue)
    if before is None:
        return None
    _, highest = audit_sql.read_offset_ends(session, queue=queue, first=before.head)
    # Read the head again: a message that was stored in between is no contradiction.
    after = queue_sql.read_head(session, queue=queue)
    if highest is None or after is None or highest < after.head:
        return None
    return alarm_text("end_too_low", end=str(after.head), stored=str(highest))


def _find_hole(session: Session, queue: int, offset: int | None) -> str | None:
    position = reader_sql.read_positions(session, group_id=0, queues=[queue]).get(queue)
    # Without an offset, too: this statement fails like a pull if the table was altered.
    first = offset if offset is not None else 0
    rows = message_sql.select_rows(
        session, queue=queue, first=first, end=first + 1, most_bytes=1
    )
    if position is None or offset is None or rows or offset >= position.head:
        return None
    # Retention, a gap or a promotion may explain the missing message.
    current_head = queue_sql.read_head(session, queue=queue)
    gaps = queue_sql.read_gaps(session, queue=queue, position=offset)
    if (
        explain_missing(
            offset, low=current_head.low if current_head else 0, gaps=gaps
        ).state
        != KIND
    ):
        return None
    return alarm_text("missing_at", offset=str(offset), end=str(position.head))
