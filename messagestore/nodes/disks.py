"""Disk usage of the nodes, measured by one broker for all, which learn it with the
snapshot; and their sizes.

Free is `capacity_gb` minus what the node's files take. An embedded node has its file system
as well, and counts as free what deleted messages have left inside the file. A MySQL or
MariaDB node without a capacity has no guard: its disk cannot be seen from here.
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
from metadata.rules.alarm_texts import alarm_text

log = logging.getLogger(__name__)
GB = 1_000_000_000
PLACES = 4  # in a queue where messages are weighed
SAMPLE = 25  # messages that are weighed at each
ROW_BYTES = 60  # of a row, beside what its message holds
PACE = 25  # measuring takes no more than this part of the time of a connection


class Space(NamedTuple):
    """Bytes that a node may take, and how many of them are free."""

    total: int
    free: int

    @property
    def free_percent(self) -> float:
        return 100.0 * max(self.free, 0) / self.total

    @property
    def usable(self) -> int:
        """Bytes until the node counts as full and stores nothing more."""
        return max(0, int(self.free - self.total * config.min_free_percent / 100))


def measure(session: Session, info: NodeInfo) -> Space | None:
    """The room on a node; None if nobody can say. Raises the node's faults."""
    used, reusable = (
        partition_sql.read_used_bytes(session)
        if info.capacity_gb or info.engine == "sqlite"
        else (0, 0)
    )
    spaces = []
    if info.capacity_gb:
        total = info.capacity_gb * GB
        spaces.append(Space(total, total - used + reusable))
    if info.engine == "sqlite":
        disk = os.statvfs(sqlite_path(info.database))
        spaces.append(
            Space(disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize + reusable)
        )
    return min(spaces, key=lambda one: one.free_percent, default=None)


class DiskWatch:
    """Measures all nodes; a loop of one broker."""

    def __init__(self) -> None:
        self._not_before: dict[int, float] = {}

    def run_once(self) -> int:
        """One pass; how many nodes changed their state."""
        changed = 0
        for node_id, info in sweeping.online_nodes().items():
            begun = time.monotonic()
            if begun < self._not_before.get(node_id, 0.0):
                continue
            try:
                changed += look(node_id, info)
            except (CatmqError, OSError) as error:
                log.warning("Disk usage of node %s is not known: %s", info.name, error)
            now = time.monotonic()
            self._not_before[node_id] = now + PACE * (now - begun)
        return changed


def look(node_id: int, info: NodeInfo) -> bool:
    """Measure a node and tell metadata if it became full, low or ok; return True if it did."""
    with node_pools.node(node_id).reading() as session:
        space = measure(session, info)
    state = "ok" if space is None else _state(info, space)
    if state == info.disk:
        return False
    node_rows.record_disk_state(node_id=node_id, state=state)
    what = alarm_text("unlimited")
    if space is not None:
        percent, total = f"{space.free_percent:.1f}", f"{space.total / GB:,.1f}"
        what = alarm_text("space", percent=percent, total=total)
    log.warning("The disk of node %s is %s: %s", info.name, state, what)
    _alarm(info.name, state, what)
    return True


def _state(info: NodeInfo, space: Space) -> str:
    return disks.next_disk_state(
        info.disk,
        free_percent=space.free_percent,
        full_below=config.min_free_percent,
        low_below=config.alarm_free_percent,
    )


def _alarm(node: str, state: str, what: str) -> None:
    lasting = {"ok": (), "low": ("node_low",), "full": ("node_low", "node_full")}[state]
    for kind in ("node_low", "node_full"):
        if kind in lasting:
            alarms.raise_alarm(kind=kind, name=node, detail=what)
        else:
            alarms.end_alarms(kind=kind, names=[node])


def record() -> int:
    """Note what every node that answers holds, and each of its queues; return how many
    nodes did.
    """
    nodes: dict[int, tuple[int, int]] = {}
    queues: dict[int, dict[int, int]] = {}

    def measured(session: Session, info: NodeInfo) -> None:
        used, reusable = partition_sql.read_used_bytes(session)
        there = queue_sql.read_heads(session, queues=None)
        nodes[info.id] = (max(used - reusable, 0), len(there))
        queues[info.id] = queue_bytes(session, there)

    sweeping.query_nodes(sweeping.online_nodes(), measured, subject="Size")
    size_rows.record_queue_sizes(queues)
    return size_rows.record_sizes(nodes)


def queue_bytes(session: Session, queues: Iterable[int]) -> dict[int, int]:
    """{queue id: bytes}; those of an embedded node are estimated by a few messages of each."""
    if session.engine == "mysql":
        found = partition_sql.read_queue_bytes(session)
        return {queue: found[queue] for queue in queues if queue in found}
    weighed = {}
    for queue in queues:
        with suppress(db_errors.Final):  # its table is gone, which other looks tell
            weighed[queue] = _estimated(session, queue)
    return weighed


def _estimated(session: Session, queue: int) -> int:
    head = queue_sql.read_head(session, queue=queue)
    if head is None:
        return 0
    width = max(1, -(-(head.head - head.low) // PLACES))
    total = 0.0
    for first in range(head.low, head.head, width):
        end = min(first + width, head.head)
        rows, size = partition_sql.measure_rows(
            session, queue=queue, first=first, end=min(first + SAMPLE, end)
        )
        total += (size / rows + ROW_BYTES) * (end - first) if rows else 0
    return int(total)
