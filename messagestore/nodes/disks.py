"""Disk usage and sizes of the nodes, measured by a single broker and shared by the
snapshot.

Free space is `capacity_gb` minus the size of the node's files. An embedded node is also
limited by its file system, and space that deleted messages left inside its file counts as
free. A MySQL or MariaDB node without a capacity is not guarded: its disk is not visible
from here.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from messagestore import sweeping
from messagestore.engine import db_errors
from messagestore.engine.mysql_session import Session
from messagestore.pool import node_pools
from messagestore.pool.session_pool import sqlite_path
from messagestore.tables import partition_sql, queue_sql
from metadata.cache.snapshot_types import NodeInfo
from metadata.config import config
from metadata.errors import CatmqError
from metadata.monitoring import alarms
from metadata.nodes import node_rows, size_rows
from metadata.rules import disks
from metadata.rules.alarm_rules import AlarmKind
from metadata.rules.alarm_texts import alarm_text
from metadata.rules.disks import DiskState
from metadata.rules.nodes import Engine

log = logging.getLogger(__name__)
GB = 1_000_000_000
SAMPLE_RANGES = 4  # ranges of a queue in which row sizes are sampled
SAMPLE_SIZE = 25  # messages sampled in each range
ROW_BYTES = 60  # overhead of a row in addition to its message
PAUSE_FACTOR = 25  # pause after a measurement, in multiples of its duration


class Space(NamedTuple):
    """Bytes that a node may use, and how many of them are free."""

    total: int
    free: int

    @property
    def free_percent(self) -> float:
        return 100.0 * max(self.free, 0) / self.total

    @property
    def usable(self) -> int:
        """Bytes until the node counts as full and refuses messages."""
        return max(0, int(self.free - self.total * config.min_free_percent / 100))


def measure(session: Session, info: NodeInfo) -> Space | None:
    """Return the space of a node, None if it is unknown. Raises the node's errors."""
    used, reusable = (
        partition_sql.read_used_bytes(session)
        if info.capacity_gb or info.engine == Engine.SQLITE
        else (0, 0)
    )
    spaces = []
    if info.capacity_gb:
        total = info.capacity_gb * GB
        spaces.append(Space(total, total - used + reusable))
    if info.engine == Engine.SQLITE:
        disk = os.statvfs(sqlite_path(info.database))
        spaces.append(
            Space(disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize + reusable)
        )
    return min(spaces, key=lambda space: space.free_percent, default=None)


class DiskWatch:
    """Measures all nodes; a loop of one broker calls `run_once`."""

    def __init__(self) -> None:
        self._next_at: dict[int, float] = {}

    def run_once(self) -> int:
        """Measure the nodes that are due. Returns how many changed their state."""
        changed = 0
        for node_id, info in sweeping.online_nodes().items():
            started_at = time.monotonic()
            if started_at < self._next_at.get(node_id, 0.0):
                continue
            try:
                changed += update_disk_state(node_id, info)
            except (CatmqError, OSError) as error:
                log.warning("Disk usage of node %s is not known: %s", info.name, error)
            ended_at = time.monotonic()
            # A large node takes long to measure, so it is measured less often: measuring
            # takes at most about 4 % of a connection's time.
            self._next_at[node_id] = ended_at + PAUSE_FACTOR * (ended_at - started_at)
        return changed


def update_disk_state(node_id: int, info: NodeInfo) -> bool:
    """Measure a node and record a new state (full, low, ok). Returns True if it changed."""
    with node_pools.node(node_id).reading() as session:
        space = measure(session, info)
    state = "ok"
    if space is not None:
        state = disks.next_disk_state(
            info.disk,
            free_percent=space.free_percent,
            full_below=config.min_free_percent,
            low_below=config.alarm_free_percent,
        )
    if state == info.disk:
        return False
    node_rows.record_disk_state(node_id=node_id, state=state)
    detail = alarm_text("unlimited")
    if space is not None:
        percent, total = f"{space.free_percent:.1f}", f"{space.total / GB:,.1f}"
        detail = alarm_text("space", percent=percent, total=total)
    log.warning("The disk of node %s is %s: %s", info.name, state, detail)
    # A full node is also low, so both alarms are active then.
    is_active_of_kind = {
        AlarmKind.NODE_LOW: state != DiskState.OK,
        AlarmKind.NODE_FULL: state == DiskState.FULL,
    }
    for kind, is_active in is_active_of_kind.items():
        if is_active:
            alarms.raise_alarm(kind=kind, name=info.name, detail=detail)
        else:
            alarms.end_alarms(kind=kind, names=[info.name])
    return True


def record() -> int:
    """Record the sizes of all reachable nodes and their queues. Returns the number of
    nodes.
    """
    nodes: dict[int, tuple[int, int]] = {}
    queues: dict[int, dict[int, int]] = {}

    def measure_node(session: Session, info: NodeInfo) -> None:
        used, reusable = partition_sql.read_used_bytes(session)
        heads = queue_sql.read_heads(session, queues=None)
        nodes[info.id] = (max(used - reusable, 0), len(heads))
        queues[info.id] = queue_bytes(session, heads)

    sweeping.query_nodes(sweeping.online_nodes(), measure_node, subject="Size")
    size_rows.record_queue_sizes(queues)
    return size_rows.record_sizes(nodes)


def queue_bytes(session: Session, queues: Iterable[int]) -> dict[int, int]:
    """Return the bytes of each queue; those of an embedded node are estimated from samples."""
    if session.engine == Engine.MYSQL:
        sizes = partition_sql.read_queue_bytes(session)
        return {queue: sizes[queue] for queue in queues if queue in sizes}
    estimates = {}
    for queue in queues:
        with suppress(db_errors.Final):  # a missing table is reported by other checks
            head = queue_sql.read_head(session, queue=queue)
            low, end = (head.low, head.head) if head is not None else (0, 0)
            # Rows at a few places of the queue, because sizes may change over time; a full
            # scan would read every body.
            width = max(1, -(-(end - low) // SAMPLE_RANGES))
            total = 0.0
            for first in range(low, end, width):
                range_end = min(first + width, end)
                rows, size = partition_sql.measure_rows(
                    session,
                    queue=queue,
                    first=first,
                    end=min(first + SAMPLE_SIZE, range_end),
                )
                total += (size / rows + ROW_BYTES) * (range_end - first) if rows else 0
            estimates[queue] = int(total)
    return estimates
