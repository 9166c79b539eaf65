"""The metrics of alarms, nodes and jobs in `/metrics`. Every broker answers the same.

group_metrics.py reads their figures together with those of groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric

from brokerapi.http.metric_families import gauge
from metadata.config import config
from metadata.monitoring.installation_counts import InstallationCounts
from metadata.release import VERSION
from metadata.rules.disks import DiskState

DISK_VALUES = {DiskState.OK: 0, DiskState.LOW: 1, DiskState.FULL: 2}


def broker_families() -> Iterator[Metric]:
    """Yield what this broker is. It needs no database, so it is there from the start."""
    yield gauge(
        "catmq_broker_info",
        "Always 1; the labels are the name and the release of this broker.",
        ("broker", "version"),
        [((config.broker_name, VERSION), 1)],
    )


def node_families(delayed_late_s: Mapping[str, float]) -> Iterator[Metric]:
    """Yield what the nodes answered. `delayed_late_s` is by the name of the node."""
    yield gauge(
        "catmq_node_delayed_late_seconds",
        "Time since the oldest delayed message or retry of a node was due; 0 if none is late.",
        ("node",),
        (((node,), late_s) for node, late_s in delayed_late_s.items()),
    )


def metadata_families(counts: InstallationCounts, *, age_s: float) -> Iterator[Metric]:
    """Yield what metadata knew `age_s` seconds ago."""
    yield gauge(
        "catmq_alarms",
        "Active alarms of a kind, acknowledged ones included.",
        ("kind",),
        (((kind,), count) for kind, count in counts.alarms.items()),
    )
    yield gauge(
        "catmq_node_used_bytes",
        "Size of a node's tables, as a job measured it within the last hour.",
        ("node",),
        (((node.name,), node.used_bytes) for node in counts.nodes),
    )
    yield gauge(
        "catmq_node_capacity_bytes",
        "Bytes that a node may use; only nodes that were given a capacity.",
        ("node",),
        (((node.name,), node.capacity_bytes) for node in counts.nodes),
    )
    yield gauge(
        "catmq_node_disk_state",
        "Free space of a node: 0 enough, 1 low, 2 full: it refuses messages.",
        ("node",),
        (((node.name,), DISK_VALUES[node.disk]) for node in counts.nodes),
    )
    yield gauge(
        "catmq_node_delayed_messages",
        "Delayed messages and retries of a node that wait, as a job counted them last.",
        ("node",),
        (((node.name,), node.delayed) for node in counts.nodes),
    )
    last_job_age_s = counts.last_job_age_s
    yield gauge(
        "catmq_job_age_seconds",
        "Time since the last scheduled job began; a job begins every minute.",
        (),
        # It goes on while metadata is away, as no job can begin then.
        [((), None if last_job_age_s is None else last_job_age_s + age_s)],
    )
