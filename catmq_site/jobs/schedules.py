"""Every schedule of the system, written to django-q by `manage.py syncjobs`; a minute is the finest grain.

A job makes bounded passes, answers how many things it did, and is correct when it runs twice at once. One
that may take hours runs apart, as a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from django.contrib.sessions.models import Session
from django.utils import timezone

from catmq_site.jobs import alarm_mails, daily
from messagestore import consistency, retention
from messagestore.consume import instances, lag
from messagestore.inspect import alarm_job
from messagestore.nodes import node_sizes, registry
from messagestore.produce import batches
from messagestore.retries import dead_letters
from messagestore.topology import drains, topics
from metadata import actors, redrive_rows
from metadata.brokers import brokers
from metadata.cache import snapshot
from metadata.config import config
from metadata.db import audit
from metadata.groups import commits, offset_resets
from metadata.jobs import reports, runs
from metadata.membership import history, rebalance
from metadata.monitoring import alarms, mails, metrics_history
from metadata.nodes import size_rows
from metadata.topics import routings


@dataclass(frozen=True, slots=True)
class Job:
    """One schedule: what it does, in words for the portal, and how often."""

    text: str
    every_minutes: int
    run: Callable[[], int]
    apart: bool = False


def drop_tables() -> int:
    """Drops the tables of topics and queues whose days of grace are over."""
    return topics.drop_deleted() + drains.drop_retired()


def retire_queues() -> int:
    """Retires the draining queues that every group has read to the end."""
    return drains.retire_drained()


MOST_TRIMMED = 500_000  # rows in one run of a job


def until_none(trim: Callable[[], int]) -> int:
    """Repeats a bounded step until it finds nothing, or the run has done enough; how many rows went.

    One step a run would fall behind for ever where more rows come than one step takes.
    """
    count = 0
    while count < MOST_TRIMMED and (gone := trim()):
        count += gone
    return count


def clean_up() -> int:
    """Cleans every topic as its retention says; how many queues gave something up."""
    found = retention.clean(actor=actors.job("clean_up"), pass_s=retention.PASS_S)
    return sum(bool(one.raised or one.dropped or one.deleted) for one in found)


def trim_alarms() -> int:
    """Deletes the alarms that nobody has raised for long, and mails of them."""
    return until_none(mails.trim) + until_none(alarms.trim)


def watch_everything() -> int:
    """Looks at everything that may be wrong, and has mails written and sent; how many alarms turned."""
    snapshot.refresh()
    turned = alarm_job.look(every_minutes={name: job.every_minutes for name, job in JOBS.items()})
    return turned + alarm_mails.tell()


def check_consistency() -> int:
    """Compares metadata with the nodes; how many alarms began or ended."""
    return consistency.watch(actor=actors.job("check_consistency"))


def trim_dead() -> int:
    """Forgets dead messages and redrives whose days are over."""
    return dead_letters.trim() + until_none(redrive_rows.trim)


def trim_batches() -> int:
    """Forgets sent batches that no client repeats any more, and the routings that they went by."""
    return batches.expire() + routings.trim()


def note_heads() -> int:
    """Copies the heads of all nodes to metadata, so that a node that goes back is known."""
    snapshot.refresh()
    return registry.note_heads()


def trim_audit() -> int:
    """Deletes the audit rows of long ago."""
    return audit.trim()


def forget_brokers() -> int:
    """Takes brokers out of the registry that were not seen for a week."""
    return brokers.forget_silent()


def clear_sessions() -> int:
    """Deletes the web sessions that have expired."""
    return Session.objects.filter(expire_date__lt=timezone.now()).delete()[0]


def trim_job_runs() -> int:
    """Deletes old records of job runs."""
    return runs.trim()


def trim_reports() -> int:
    """Deletes old reports."""
    return reports.trim()


def sweep_rebalances() -> int:
    """Rebalances the groups whose mark is set, or that have a queue without a reader; how many."""
    return rebalance.each({*rebalance.pending(), *rebalance.neglected()})


def trim_moves() -> int:
    """Deletes old moves of offsets."""
    return until_none(offset_resets.trim)


def trim_history() -> int:
    """Deletes old rebalances, in bounded steps until few are left; how many."""
    return until_none(history.trim)


def forget_instances() -> int:
    """Forgets instances of broadcasting groups that were no member for a week, and their positions."""
    return instances.prune()


def record_lag() -> int:
    """Records how far every subscription is behind, for lists and charts."""
    snapshot.refresh()
    count = lag.record()
    metrics_history.sum_lag()
    return count


def roll_up() -> int:
    """Sums the minutes of charts up into quarters of an hour and days."""
    return metrics_history.roll_up()


def trim_series() -> int:
    """Deletes the figures of charts, and looks at positions, that are older than they are kept."""
    return until_none(metrics_history.trim) + until_none(commits.trim) + until_none(size_rows.trim)


def record_sizes() -> int:
    """Records how much each node holds, to see how it grows."""
    snapshot.refresh()
    return node_sizes.record()


JOBS = {
    "record_lag": Job("Record how far every group is behind", 1, record_lag),
    "roll_up": Job("Sum up figures of minutes for charts of weeks and years", 5, roll_up),
    "trim_series": Job("Delete old figures of charts", 10, trim_series),
    "sweep_rebalances": Job("Rebalance groups that nobody has rebalanced", 1, sweep_rebalances),
    "trim_history": Job("Delete old rebalances from the history", 5, trim_history),
    "forget_instances": Job("Forget long gone instances of broadcasting groups", 60, forget_instances),
    "retire_queues": Job("Retire drained queues that every group has read", 1, retire_queues),
    "drop_tables": Job("Drop the tables of deleted topics and retired queues", 60, drop_tables),
    "clean_up": Job("Remove messages that are older or more than their topics keep", 10, clean_up),
    "watch": Job("Look for trouble: begin and end alarms, and mail them", 1, watch_everything),
    "check_consistency": Job("Compare metadata with the nodes", 60, check_consistency),
    "trim_alarms": Job("Delete alarms that were not raised for 90 days", 24 * 60, trim_alarms),
    "trim_dead": Job("Forget dead messages whose days are over", 60, trim_dead),
    "trim_batches": Job("Forget sent batches that no client repeats any more", 60, trim_batches),
    "note_heads": Job("Note how far the queues of each node are", 1, note_heads),
    "record_sizes": Job("Record how much each node holds", 60, record_sizes),
    "trim_audit": Job("Delete audit rows older than 400 days", 24 * 60, trim_audit),
    "forget_brokers": Job("Forget brokers that were not seen for 7 days", 60, forget_brokers),
    "clear_sessions": Job("Delete expired web sessions", 24 * 60, clear_sessions),
    "trim_moves": Job("Delete moves of offsets older than 90 days", 60, trim_moves),
    "trim_job_runs": Job("Delete old records of job runs", 24 * 60, trim_job_runs),
    "trim_reports": Job("Delete reports older than 400 days", 24 * 60, trim_reports),
}
if config.archive_topics:
    JOBS["archive_topics"] = Job(
        "Archive the topics that settings name", daily.EVERY_MINUTES, daily.archive_topics, apart=True
    )
if config.daily_reports:
    JOBS["make_reports"] = Job(
        "Make the reports that settings name", daily.EVERY_MINUTES, daily.make_reports, apart=True
    )


def sync() -> tuple[int, int]:
    """Makes django-q's schedules equal to JOBS; (how many there are, how many others were removed)."""
    from django_q.models import Schedule

    for name, job in JOBS.items():
        wanted = {
            "func": "catmq_site.jobs.tasks.run_job",
            "args": repr((name,)),
            "minutes": job.every_minutes,
        }
        Schedule.objects.update_or_create(name=name, defaults={**wanted, "schedule_type": Schedule.MINUTES})
    removed, _ = Schedule.objects.exclude(name__in=JOBS).delete()
    return len(JOBS), removed
