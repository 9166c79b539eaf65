"""Passes of background work that combine functions of several packages (see table.py).

Each pass is bounded, is harmless when it runs twice at once, and returns how many things it
did.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, field

from django.contrib.sessions.models import Session
from django.utils import timezone

from catmq_site.background import alarm_mails
from messagestore import retention, verify
from messagestore.consume import group_lag
from messagestore.inspect import raise_alarms
from messagestore.nodes import disks, registry
from messagestore.produce import batches
from messagestore.retries import dead_letters
from messagestore.topology import drains, queues, retry_topics, subscriptions, topics
from metadata import actors, redrive_rows
from metadata.brokers import java_callers
from metadata.cache import snapshot
from metadata.groups import commits, handling_traces
from metadata.membership import rebalance
from metadata.monitoring import alarms, mails, metrics_history, rollups
from metadata.nodes import size_rows
from metadata.topics import producers, routings

PATIENCE_S = 3.0  # how long a pending rebalance is left to the worker of django-q


@dataclass(slots=True)
class OverdueRebalances:
    """Rebalances groups that have been pending for PATIENCE_S, without django-q.

    Every process looks, not only the lease holder, so that a process which takes the lease
    over knows since when each group has been pending.
    """

    pending_since: dict[int, float] = field(
        default_factory=dict
    )  # group → time.monotonic()

    def look(self) -> None:
        now = time.monotonic()
        # Groups that are no longer pending drop out, so their next request waits again.
        self.pending_since = {
            group: self.pending_since.get(group, now)
            for group in rebalance.pending_groups()
        }

    def run_once(self) -> int:
        """Rebalance the groups that are overdue at the last look. Return their number."""
        latest = time.monotonic() - PATIENCE_S
        overdue = [group for group, since in self.pending_since.items() if since <= latest]
        # A django-q worker may have rebalanced a group since the last look. The mark is
        # checked again under the lock of the group, so no group is rebalanced twice.
        return rebalance.rebalance_each(overdue, rebalance.rebalance_if_due)


def finish_creations() -> None:
    """Finish or undo creations that a crash interrupted between metadata and tables.

    All sweeps run even if a sweep fails; the last error is raised then.
    """
    with ExitStack() as sweeps:  # runs the callbacks in reverse order
        for sweep in (retry_topics.sweep, queues.sweep, subscriptions.sweep, topics.sweep):
            sweeps.callback(sweep)


def sweep_rebalances() -> int:
    """Rebalance the groups that are pending, or that have a queue without a reader."""
    return rebalance.rebalance_each(
        {*rebalance.pending_groups(), *rebalance.groups_with_unassigned_queues()}
    )


def drop_tables() -> int:
    return topics.drop_deleted() + drains.drop_retired()


def expire_messages() -> int:
    """Clean every topic by its retention. Return the number of queues that were cleaned."""
    queues_cleaned = retention.clean(
        actor=actors.job("expire_messages"), pass_s=retention.PASS_S
    )
    return sum(bool(q.raised or q.dropped or q.deleted) for q in queues_cleaned)


def expire_dead_letters() -> int:
    return dead_letters.expire() + redrive_rows.prune()


def prune_batches() -> int:
    """Delete batch records that no client repeats any more, and their routings."""
    return batches.expire() + routings.prune()


def check_health(every_minutes: dict[str, int]) -> int:
    """Raise and end alarms, and send their mails. Return the number of both.

    `every_minutes`: the interval of each job, by which a job that does not run is noticed.
    """
    snapshot.refresh()
    return (
        raise_alarms.update_alarms(every_minutes=every_minutes)
        + alarm_mails.send_due_mails()
    )


def check_consistency() -> int:
    return verify.watch(actor=actors.job("check_consistency"))


def record_lag() -> int:
    """Record the lag of every subscription, for lists and charts."""
    snapshot.refresh()
    count = group_lag.record()
    metrics_history.sum_lag()
    return count


def note_heads() -> int:
    """Copy the heads of all nodes to metadata, so that a restored node is noticed."""
    snapshot.refresh()
    return registry.note_heads()


def record_sizes() -> int:
    snapshot.refresh()
    return disks.record()


def prune_metrics() -> int:
    """Delete expired chart figures, records of positions, producers and handling traces."""
    figures = rollups.prune() + commits.prune() + size_rows.prune()
    return figures + producers.prune() + java_callers.prune() + handling_traces.prune()


def prune_alarms() -> int:
    """Delete alarms that ended long ago, and their mails."""
    return mails.prune() + alarms.prune()


def prune_sessions() -> int:
    return Session.objects.filter(expire_date__lt=timezone.now()).delete()[0]
