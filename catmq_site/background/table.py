"""The list of all background work, and how often it runs.

*Loops* run inside every broker process, in threads (loop_threads.py), and pause for seconds
at most. The passes of a leased loop are made by one process of all brokers. *Jobs* run once a
minute or less often: django-q runs them, and `manage.py syncjobs` creates their schedules. A
job that may take hours runs in a process of its own. Every pass is bounded, and harmless when
it runs twice at once. gunicorn starts the loops of a worker
(server/gunicorn_conf.py), and `manage.py syncjobs` writes the schedules of jobs
(jobs/schedules.py). The portal's page of jobs shows both lists.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

from django.conf import settings

from catmq_site.background import broker_memory, daily, key_indexes, metadata_loops, sweeps
from catmq_site.background.broker_loop import BrokerLoop
from catmq_site.background.loop_threads import Loop, NodeLoops, leased
from catmq_site.background.metadata_writer import WriterNotes
from messagestore.consume import broadcast_positions, java_starts, node_owners
from messagestore.heads import head_watcher
from messagestore.heads.partitions import Ahead
from messagestore.nodes import corruption_alarms, registry
from messagestore.nodes.disks import DiskWatch
from messagestore.nodes.takeovers import Takeovers
from messagestore.pool import node_pools
from messagestore.produce import delayed_delivery
from messagestore.retries import lost_leases, redrives
from messagestore.shares import upkeep
from messagestore.topology import drains
from metadata.brokers import (
    broker_rows,
    discovery,
    java_callers,
    registration,
    send_rate_limit,
    snapshot_acks,
)
from metadata.config import config
from metadata.db import audit
from metadata.groups import handling_traces, offset_resets
from metadata.jobs import reports, runs
from metadata.limits.bulkhead import bulkhead
from metadata.membership import (
    expiry,
    heartbeats,
    java_beats,
    java_pulls,
    rebalance_history,
)
from metadata.monitoring import metrics_history, rollups
from metadata.release import VERSION
from metadata.topics import producers

EXPIRY_EVERY_S = 0.5  # a dead holder of this lease is replaced within about 2 s


@dataclass(frozen=True, slots=True)
class Job:
    """A job that django-q runs. `text`: its purpose, for the portal. `apart`: it runs in a
    process of its own, which is started only if `is_due` returns True.

    `run` gets the recorded run if `reports` is set, to report its progress.
    """

    text: str
    every_minutes: int
    run: Callable[..., int]
    apart: bool = False
    is_due: Callable[[], bool] = lambda: True
    reports: bool = False


def loops(*, url: str = config.broker_url) -> list[Loop | NodeLoops]:
    """Return the loops of a broker process, in the order in which they start.

    `url`: the address of this broker that clients receive.
    """
    # Imported here: the import opens the prometheus files of this process, which only brokers
    # may have.
    from brokerapi.http import group_metrics, metrics

    overdue = sweeps.OverdueRebalances()
    identity = registration.BrokerIdentity(
        config.broker_name, url, VERSION, broker_memory.INCARNATION
    )
    broker = BrokerLoop(identity, snapshot_acks.SnapshotAck(process_name()))
    return [
        # Metadata, members and this broker
        Loop(
            "metadata",
            metadata_loops.CHECK_EVERY_S,
            metadata_loops.check_metadata,
            finish=bulkhead.end_checks,
            purpose="Check that the metadata database answers, and whether it changed",
        ),
        Loop(
            "heartbeats",
            0.0,
            heartbeats.serve,
            finish=heartbeats.end_service,
            purpose="Record the heartbeats of consumers as they arrive",
        ),
        Loop(
            "grants",
            0.0,
            node_owners.claim_granted,
            purpose="Write the new owner of a queue to its node as soon as it is granted",
        ),
        Loop(
            "snapshot",
            0.0,
            metadata_loops.SnapshotLoop().wait_and_refresh,
            purpose="Load metadata that changed, and wake the pulls that it concerns",
        ),
        leased(
            "metadata writer",
            5.0,
            WriterNotes(settings.DATABASES["default"].get("HOST", "")).run_once,
            purpose="Record which server the metadata database is written to",
        ),
        Loop(
            "broker",
            0.8,
            broker.run_once,
            finish=broker.finish,
            purpose="Renew this broker's registration",
        ),
        leased(
            "expiry",
            EXPIRY_EVERY_S,
            expiry.expire_silent_members,
            purpose="Expire members whose heartbeats stopped",
        ),
        leased(
            "rebalances",
            1.0,
            overdue.run_once,
            first=overdue.look,
            purpose="Rebalance groups that wait for longer than 3 s",
        ),
        Loop(
            "history",
            2.0,
            rebalance_history.write_late_notes,
            purpose="Write the history of rebalances",
        ),
        Loop(
            "rates",
            send_rate_limit.EVERY_S,
            lambda: send_rate_limit.share_limits(name=process_name()),
            purpose="Divide the send rate limits among the broker processes",
        ),
        # Queues and nodes
        Loop(
            "bell",
            head_watcher.APART_S,
            head_watcher.listen,
            jitter=0.0,
            purpose="Wake pulls for messages that other processes of this broker stored",
        ),
        NodeLoops(
            "heads",
            head_watcher.nodes,
            _heads_loop,
            config.head_interval_ms / 1000,
            purpose="Wake pulls for messages that other brokers stored",
        ),
        NodeLoops(
            "circuits",
            node_pools.used_node_ids,
            # A loop for each node: a probe of a frozen node takes seconds.
            lambda node_id: Loop(
                f"circuit-{node_id}", CIRCUIT_EVERY_S, lambda: node_pools.watch(node_id)
            ),
            CIRCUIT_EVERY_S,
            purpose="Probe a node that does not answer until it does",
        ),
        Loop("nodes", 5.0, registry.probe, purpose="Check the state of every node"),
        leased(
            "takeovers",
            3.0,
            Takeovers().run_once,
            purpose="Promote a replica that was made writable, if its primary is not any more",
        ),
        leased(
            "disks",
            5.0,
            DiskWatch().run_once,
            purpose="Measure the disks of the nodes, and stop sends to a full one",
        ),
        leased(
            "corruption",
            5.0,
            corruption_alarms.review,
            first=corruption_alarms.raise_alarms,
            purpose="Raise and end the alarms of corrupt queues",
        ),
        leased(
            "partitions",
            5.0,
            Ahead().run_once,
            purpose="Add partitions to message tables before they are needed",
        ),
        leased(
            "unfinished",
            30.0,
            sweeps.finish_creations,
            purpose="Finish or undo creations and deletions that a crash interrupted",
        ),
        # Messages
        NodeLoops(
            "delays",
            delayed_delivery.nodes,
            _delays_loop,
            delayed_delivery.EVERY_S,
            purpose="Move delayed messages that are due into their queues",
        ),
        Loop(
            "shares",
            upkeep.EVERY_S,
            upkeep.run_once,
            finish=upkeep.run_once,
            purpose="Raise the positions of share groups, and free runs of departed members",
        ),
        leased(
            "lost leases",
            lost_leases.EVERY_S,
            lost_leases.sweep,
            purpose="Move messages of share groups that were delivered too often to the "
            "dead letters",
        ),
        leased(
            "redrives",
            redrives.EVERY_S,
            redrives.Redriver().run_once,
            purpose="Send dead letters again that an operator redrives",
        ),
        # Figures
        Loop("metrics", 1.0, metrics.sample, purpose="Sample gauges for /metrics"),
        Loop(
            "figures",
            group_metrics.REFRESH_S,
            group_metrics.board.refresh,
            finish=group_metrics.board.leave,
            purpose="Read the figures of groups and topics for /metrics",
        ),
        Loop(
            "series",
            3.0,
            metrics_history.flush,
            finish=metrics_history.flush,
            purpose="Write the figures of charts",
        ),
        Loop(
            "traces",
            handling_traces.FLUSH_S,
            handling_traces.flush,
            finish=handling_traces.flush,
            purpose="Write the traces of handled messages",
        ),
        Loop(
            "producers",
            producers.FLUSH_S,
            producers.flush,
            finish=producers.flush,
            purpose="Write who sends to which topic",
        ),
        *(java_loops() if config.java_networks else ()),
    ]


def list_broker_loops() -> list[runs.BrokerLoop]:
    """Return what the portal shows of the loops, by name."""
    return [
        runs.BrokerLoop(
            name=entry.name,
            purpose=entry.purpose,
            every_s=entry.every_s,
            lease=entry.lease if isinstance(entry, Loop) else "",
            per_node=isinstance(entry, NodeLoops),
        )
        for entry in sorted(loops(), key=attrgetter("name"))
    ]


def java_loops() -> list[Loop]:
    """Return the loops that only Java clients need."""
    return [
        Loop(
            "java-beats",
            java_beats.FLUSH_S,
            java_beats.flush,
            finish=java_beats.flush,
            purpose="Write the heartbeats of Java clients",
        ),
        Loop(
            "java-callers",
            java_callers.FLUSH_S,
            java_callers.flush,
            finish=java_callers.flush,
            purpose="Write the requests of Java clients by address",
        ),
        Loop(
            "java-pulls",
            java_pulls.FLUSH_S,
            java_pulls.flush,
            purpose="Write when Java clients pulled each queue",
        ),
        leased(
            "java-starts",
            java_starts.EVERY_S,
            java_starts.JavaStarts().run_once,
            purpose="Restart Java clients that stopped pulling",
        ),
    ]


CIRCUIT_EVERY_S = 0.25


def _heads_loop(node_id: int) -> Loop:
    watcher = head_watcher.NodeWatcher(node_id, is_alone=is_alone)
    every_s = config.head_interval_ms / 1000
    return Loop(
        f"heads-{node_id}", every_s, watcher.run_once, finish=watcher.leave, jitter=0.1
    )


def _delays_loop(node_id: int) -> Loop:
    # Not a leased() loop, which would stop while metadata is away: the mover keeps its own lease.
    holder = f"{socket.gethostname()}:{os.getpid()}"
    mover = delayed_delivery.DelayedDelivery(node_id, holder=holder, is_alone=is_alone)
    return Loop(
        f"delays-{node_id}", delayed_delivery.EVERY_S, mover.run_once, finish=mover.finish
    )


def is_alone() -> bool:
    """Return True if no other broker is alive."""
    return discovery.is_alone(config.broker_name)


def process_name() -> str:
    return f"{config.broker_name}/{os.getpid()}"


def check_health() -> int:
    return sweeps.check_health({name: job.every_minutes for name, job in JOBS.items()})


JOBS = {
    "record_lag": Job("Record the lag of every group", 1, sweeps.record_lag),
    "roll_up": Job(
        "Aggregate minute figures for the charts of weeks and years", 5, rollups.roll_up
    ),
    "prune_metrics": Job("Delete old figures of charts", 10, sweeps.prune_metrics),
    "sweep_rebalances": Job(
        "Rebalance groups that nobody has rebalanced", 1, sweeps.sweep_rebalances
    ),
    "prune_rebalances": Job(
        "Delete old rebalances from the history", 5, rebalance_history.prune
    ),
    "prune_instances": Job(
        "Delete instances of broadcasting groups that are gone",
        60,
        broadcast_positions.prune,
    ),
    "retire_queues": Job(
        "Retire drained queues that every group has read", 1, drains.retire_drained
    ),
    key_indexes.JOB: Job(
        "Build and drop the key indexes of topics",
        1,
        key_indexes.build,
        apart=True,
        is_due=key_indexes.is_due,
        reports=True,
    ),
    "drop_tables": Job(
        "Drop the tables of deleted topics and retired queues", 60, sweeps.drop_tables
    ),
    "expire_messages": Job(
        "Delete messages past the retention of their topics", 10, sweeps.expire_messages
    ),
    "check_health": Job(
        "Check health, raise and end alarms, and send mails", 1, check_health
    ),
    "check_consistency": Job(
        "Compare metadata with the nodes", 60, sweeps.check_consistency
    ),
    "prune_alarms": Job(
        "Delete alarms that were not raised for 90 days", 24 * 60, sweeps.prune_alarms
    ),
    "expire_dead_letters": Job(
        "Delete expired dead letters", 60, sweeps.expire_dead_letters
    ),
    "prune_batches": Job("Delete old records of batch ids", 60, sweeps.prune_batches),
    "note_heads": Job("Record the log end offsets of each node", 1, sweeps.note_heads),
    "record_sizes": Job("Record the size of each node", 60, sweeps.record_sizes),
    "prune_audit": Job("Delete audit rows older than 400 days", 24 * 60, audit.prune),
    "prune_brokers": Job(
        "Delete brokers that were not seen for 7 days", 60, broker_rows.prune_silent
    ),
    "prune_sessions": Job("Delete expired web sessions", 24 * 60, sweeps.prune_sessions),
    "prune_offset_resets": Job(
        "Delete offset resets older than 90 days", 60, offset_resets.prune
    ),
    "prune_job_runs": Job("Delete old records of job runs", 24 * 60, runs.prune),
    "prune_reports": Job("Delete reports older than 400 days", 24 * 60, reports.prune),
}
if config.archive_topics:
    JOBS["archive_topics"] = Job(
        "Archive the configured topics",
        daily.EVERY_MINUTES,
        daily.archive_topics,
        apart=True,
    )
if config.daily_reports:
    JOBS["make_reports"] = Job(
        "Create the configured reports", daily.EVERY_MINUTES, daily.make_reports, apart=True
    )
