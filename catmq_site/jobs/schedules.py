"""Every schedule of the system, written to django-q by `manage.py syncjobs`; a minute is
the finest grain.

A job makes bounded passes, answers how many things it did, and is correct when it runs
twice at once. One that may take hours runs apart, as a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from django.contrib.sessions.models import Session
from django.utils import timezone

from catmq_site.jobs import alarm_mails, daily
from messagestore import retention, verify
from messagestore.consume import broadcast_positions, group_lag
from messagestore.inspect import alarm_job
from messagestore.nodes import disks, registry
from messagestore.produce import batches
from messagestore.retries import dead_letters
from messagestore.topology import drains, topics
from metadata import actors, redrive_rows
from metadata.brokers import broker_rows, java_callers
from metadata.cache import snapshot
from metadata.config import config
from metadata.db import audit
from metadata.groups import commits, handling_traces, offset_resets
from metadata.jobs import reports, runs
from metadata.membership import rebalance, rebalance_history
from metadata.monitoring import alarms, mails, metrics_history, rollups
from metadata.nodes import size_rows
from metadata.topics import producers, routings


@dataclass(frozen=True, slots=True)
class Job:
    """One schedule: what it does, in words for the portal, and how often."""

    text: str
    every_minutes: int
    run: Callable[[], int]
    apart: bool = False


def drop_tables() -> int:
    return topics.drop_deleted() + drains.drop_retired()


def expire_messages() -> int:
    """Clean every topic as its retention says; return how many queues gave something up."""
    found = retention.clean(actor=actors.job("expire_messages"), pass_s=retention.PASS_S)
    return sum(bool(one.raised or one.dropped or one.deleted) for one in found)


def prune_alarms() -> int:
    """Delete the alarms that nobody has raised for long, and mails of them."""
    return mails.prune() + alarms.prune()


def check_health() -> int:
    """Look at everything that may be wrong, and have mails written and sent; how many
    alarms turned.
    """
    snapshot.refresh()
    turned = alarm_job.look(
        every_minutes={name: job.every_minutes for name, job in JOBS.items()}
    )
    return turned + alarm_mails.tell()


def check_consistency() -> int:
    return verify.watch(actor=actors.job("check_consistency"))


def expire_dead_letters() -> int:
    return dead_letters.expire() + redrive_rows.prune()


def prune_batches() -> int:
    """Delete the records of batches that no client repeats any more, and the routings that
    they went by.
    """
    return batches.expire() + routings.prune()


def note_heads() -> int:
    """Copy the heads of all nodes to metadata, so that a node that goes back is known."""
    snapshot.refresh()
    return registry.note_heads()


def prune_sessions() -> int:
    return Session.objects.filter(expire_date__lt=timezone.now()).delete()[0]


def sweep_rebalances() -> int:
    """Rebalance the groups whose mark is set, or that have a queue without a reader; return
    how many.
    """
    return rebalance.rebalance_each(
        {*rebalance.pending_groups(), *rebalance.groups_with_unassigned_queues()}
    )


def record_lag() -> int:
    """Record how far every subscription is behind, for lists and charts."""
    snapshot.refresh()
    count = group_lag.record()
    metrics_history.sum_lag()
    return count


def prune_metrics() -> int:
    """Delete what is older than it is kept: figures of charts, looks at positions,
    producers, traces.
    """
    series = rollups.prune() + commits.prune() + size_rows.prune()
    return series + producers.prune() + java_callers.prune() + handling_traces.prune()


def record_sizes() -> int:
    snapshot.refresh()
    return disks.record()


JOBS = {
    "record_lag": Job("Record the lag of every group", 1, record_lag),
    "roll_up": Job(
        "Aggregate minute figures for the charts of weeks and years", 5, rollups.roll_up
    ),
    "prune_metrics": Job("Delete old figures of charts", 10, prune_metrics),
    "sweep_rebalances": Job(
        "Rebalance groups that nobody has rebalanced", 1, sweep_rebalances
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
    "drop_tables": Job(
        "Drop the tables of deleted topics and retired queues", 60, drop_tables
    ),
    "expire_messages": Job(
        "Delete messages past the retention of their topics", 10, expire_messages
    ),
    "check_health": Job(
        "Check health, raise and end alarms, and send mails", 1, check_health
    ),
    "check_consistency": Job("Compare metadata with the nodes", 60, check_consistency),
    "prune_alarms": Job(
        "Delete alarms that were not raised for 90 days", 24 * 60, prune_alarms
    ),
    "expire_dead_letters": Job("Delete expired dead letters", 60, expire_dead_letters),
    "prune_batches": Job("Delete old records of batch ids", 60, prune_batches),
    "note_heads": Job("Record the log end offsets of each node", 1, note_heads),
    "record_sizes": Job("Record the size of each node", 60, record_sizes),
    "prune_audit": Job("Delete audit rows older than 400 days", 24 * 60, audit.prune),
    "prune_brokers": Job(
        "Delete brokers that were not seen for 7 days", 60, broker_rows.prune_silent
    ),
    "prune_sessions": Job("Delete expired web sessions", 24 * 60, prune_sessions),
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


def sync() -> tuple[int, int]:
    """Make django-q's schedules equal to JOBS; (how many there are, how many others were
    removed).
    """
    from django_q.models import Schedule

    for name, job in JOBS.items():
        wanted = {
            "func": "catmq_site.jobs.tasks.run_job",
            "args": repr((name,)),
            "minutes": job.every_minutes,
        }
        Schedule.objects.update_or_create(
            name=name, defaults={**wanted, "schedule_type": Schedule.MINUTES}
        )
    removed, _ = Schedule.objects.exclude(name__in=JOBS).delete()
    return len(JOBS), removed
