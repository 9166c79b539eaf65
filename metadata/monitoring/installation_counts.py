"""Figures of the whole installation for /metrics: alarms, nodes, and the last job."""

from __future__ import annotations

from collections import Counter

from django.db.models import OuterRef, Subquery
from msgspec import Struct

from metadata.db.clock import database_now
from metadata.db.transactions import reachable
from metadata.models import Alarm, DbNode, JobRun, NodeSize
from metadata.rules.alarm_rules import AlarmKind
from metadata.rules.disks import DiskState

GB = 1_000_000_000


class NodeCounts(Struct, frozen=True):
    """A node as jobs measured it last.

    `used_bytes` is None until its size was measured, `capacity_bytes` is None for a node
    without a capacity. `delayed` is the number of delayed messages and retries that wait.
    """

    name: str
    used_bytes: int | None
    capacity_bytes: int | None
    disk: DiskState
    delayed: int


class InstallationCounts(Struct, frozen=True):
    """`alarms` has the number of active alarms of every kind. `last_job_age_s` is the time
    since a job began, by the clock of the metadata database. None if none has run yet.
    """

    alarms: dict[str, int]
    nodes: list[NodeCounts]
    last_job_age_s: float | None


def read() -> InstallationCounts:
    """Read the counts in four queries. Raises MetadataUnavailable."""
    newest_size = NodeSize.objects.filter(node=OuterRef("pk")).order_by("-at")
    with reachable():
        active = Alarm.objects.filter(ended_at__isnull=True).order_by()
        alarms = Counter(active.values_list("kind", flat=True))
        nodes = (
            DbNode.objects.annotate(used=Subquery(newest_size.values("bytes")[:1]))
            .order_by("name")
            .values_list("name", "used", "capacity_gb", "disk", "delayed_waiting")
        )
        # Ids rise with time, so the newest run needs no index on the times.
        last_job = (
            JobRun.objects.order_by("-pk").values_list("started_at", flat=True).first()
        )
        age = None if last_job is None else database_now() - last_job
        return InstallationCounts(
            # Kinds without an alarm count 0: a series that appears only with an alarm could
            # not be told apart from one that is missing.
            alarms={str(kind): alarms[kind] for kind in AlarmKind},
            nodes=[
                NodeCounts(
                    name=name,
                    used_bytes=used,
                    capacity_bytes=None if capacity_gb is None else capacity_gb * GB,
                    disk=DiskState(disk),
                    delayed=delayed,
                )
                for name, used, capacity_gb, disk, delayed in nodes
            ],
            last_job_age_s=None if age is None else age.total_seconds(),
        )
