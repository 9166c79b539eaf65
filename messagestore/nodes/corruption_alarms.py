"""Corrupt queues as alarms: raised by the process that met one, ended when the cause is
gone.

Whoever meets a contradiction only marks it (corruption.py), because pulls and sends never
wait for metadata. A loop of each process makes alarms of its marks, and takes back those
whose cause is gone; a loop of one broker ends the alarms, also those of processes that are
no more. Both look at the node, in the same way as a pull, and at what else a send needs.
"""

from __future__ import annotations

import logging
import time

from messagestore.engine import db_errors
from messagestore.engine.mysql_session import Session
from messagestore.heads import corruption
from messagestore.heads.corruption import Mark
from messagestore.heads.gap_check import explain
from messagestore.pool import node_pools
from messagestore.tables import audit_sql, message_sql, partition_sql, queue_sql, reader_sql
from metadata.cache import snapshot
from metadata.errors import NodeUnavailable, NotFound
from metadata.monitoring import alarms
from metadata.rules.alarm_texts import alarm_text, error_text

log = logging.getLogger(__name__)
KIND = "corrupt"
AGAIN_S = 30.0  # a mark that is met again and again is reported so often
# one that nobody met for so long is looked at; longer than until it would be reported again
CALM_S = 60.0


def raise_alarms() -> int:
    """Raise alarms for this process's marks, and drop those whose cause is gone; return how
    many were raised.

    Raises MetadataUnavailable; then the next pass raises them.
    """
    raised = 0
    for queue, mark in corruption.marks().items():
        now = time.monotonic()
        if mark.met_at > mark.told_at and now - mark.told_at >= AGAIN_S:
            raised += _raise(queue, mark)
        elif (
            now - mark.met_at >= CALM_S and problem(queue=queue, offset=mark.offset) is None
        ):
            corruption.clear(queue, mark)
    return raised


def review(*, calm_s: float = CALM_S) -> int:
    """End the alarms that nobody raised for `calm_s` and whose cause is gone; return how
    many.
    """
    ended = []
    for name, offset in alarms.list_calm_alarms(kind=KIND, calm_s=calm_s):
        info = snapshot.current().find_queue_by_name(name)
        if info is None or problem(queue=info.id, offset=offset) is None:
            ended.append(name)
    return alarms.end_alarms(kind=KIND, names=ended) if ended else 0


def problem(*, queue: int, offset: int | None) -> str | None:
    """Return what is wrong with a queue, at an offset or anywhere; None: nothing, or the
    queue is gone.
    """
    try:
        node = node_pools.node_of(queue)
    except NotFound:
        return None
    try:
        with node.reading() as session:
            # this and the next are what sends need, too
            message_sql.find_batch(session, batch_id=bytes(16))
            partition_sql.list_partitions(session, queue=queue)
            return _head_too_low(session, queue) or _hole(session, queue, offset)
    except db_errors.Final as fault:
        return fault.detail
    except NodeUnavailable as error:
        return error.detail  # nobody can say


def _raise(queue: int, mark: Mark) -> bool:
    name = snapshot.current().queue_name(queue)
    if name is None:
        return False
    now = time.monotonic()
    alarms.raise_alarm(kind=KIND, name=name, detail=error_text(mark.why), place=mark.offset)
    mark.told_at = now
    return True


def _head_too_low(session: Session, queue: int) -> str | None:
    before = queue_sql.read_head(session, queue=queue)
    if before is None:
        return None
    _, highest = audit_sql.read_offset_ends(session, queue=queue, first=before.head)
    # what was stored meanwhile is no contradiction
    after = queue_sql.read_head(session, queue=queue)
    if highest is None or after is None or highest < after.head:
        return None
    return alarm_text("end_too_low", end=str(after.head), stored=str(highest))


def _hole(session: Session, queue: int, offset: int | None) -> str | None:
    """Return the fault if no message is at an offset; reads all that a pull reads, whatever
    the offset.
    """
    position = reader_sql.read_positions(session, group_id=0, queues=[queue]).get(queue)
    first = offset if offset is not None else 0
    rows = message_sql.select_rows(
        session, queue=queue, first=first, end=first + 1, most_bytes=1
    )
    if position is None or offset is None or rows or offset >= position.head:
        return None
    fresh = queue_sql.read_head(session, queue=queue)
    gaps = queue_sql.read_gaps(session, queue=queue, position=offset)
    if explain(offset, low=fresh.low if fresh else 0, gaps=gaps).state != KIND:
        return None
    return alarm_text("missing_at", offset=str(offset), end=str(position.head))
