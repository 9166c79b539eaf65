"""Lag alarms and "no consumer" alarms: subscriptions with too much lag, or without a reader.

messagestore.inspect.raise_alarms calls these checks every minute and begins or ends the
alarms.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django.db.models import Exists, F, OuterRef, Q

from metadata.config import config
from metadata.db.clock import before, database_now
from metadata.db.transactions import reachable
from metadata.grouping import grouped
from metadata.models import ConsumerGroupConsumer, ConsumerGroupTopic, QueueOffset
from metadata.monitoring.alarms import AlarmFindings
from metadata.rules import alarm_rules
from metadata.rules.alarm_rules import AlarmKind
from metadata.rules.alarm_texts import alarm_text
from metadata.rules.groups.states import GroupMode, SubscriptionState
from metadata.rules.topics.states import QueueState, TopicKind

STALE_S = 600.0  # an older recorded lag is not used
MAX_NAMED = 8  # queues named in a detail


def find_lagging_subscriptions() -> AlarmFindings:
    """Find subscriptions with more unread messages, or older messages, than their limits
    allow.

    The limits are those of the group, or else the settings. Paused subscriptions are
    left out.
    """
    rows = (
        _watched_subscriptions()
        .filter(lag__gt=0, topic__kind=TopicKind.NORMAL)
        .order_by(F("lag").desc())
    )
    columns = (
        "group__name",
        "topic__name",
        AlarmKind.LAG,
        "lag_ms",
        "lag_at",
        "group__alarm_lag",
        "group__alarm_lag_s",
    )
    findings = AlarmFindings()
    with reachable():
        stale_before = before(database_now(), seconds=STALE_S)
        for group, topic, lag, lag_ms, lag_at, max_lag, max_age_s in rows.values_list(
            *columns
        ):
            age_s = (lag_ms or 0) / 1000
            # A few old messages of a trial are no alarm, unless the group has its own age
            # limit.
            is_old = lag >= config.alarm_min_unread or max_age_s is not None
            is_behind = alarm_rules.any_passed(
                alarm_rules.is_passed(lag, max_lag or config.alarm_lag),
                is_old and alarm_rules.is_passed(age_s, max_age_s or config.alarm_lag_s),
            )
            detail = alarm_text("behind", messages=lag, minutes=round(age_s / 60))
            # Without a recent lag an alarm stays as it is.
            findings.add(
                f"{group}/{topic}",
                detail,
                is_so=None if lag_at is None or lag_at < stale_before else is_behind,
            )
    return findings


def hold_cut_off_topics(
    findings: AlarmFindings, *, topics: Collection[str]
) -> AlarmFindings:
    """Return the findings without those in topics whose node is unavailable.

    The alarm about the node is enough. Alarms that are active already stay active.
    """
    held_names = {name for name in findings.active if name.partition("/")[2] in topics}
    active = {
        name: detail for name, detail in findings.active.items() if name not in held_names
    }
    return AlarmFindings(active, findings.unclear | held_names)


def _watched_subscriptions() -> Any:
    """Return the subscriptions that should be read.

    Those of a casual group count only while the group has a member.
    """
    used = Q(group__casual=False) | Exists(
        ConsumerGroupConsumer.objects.filter(group=OuterRef("group"))
    )
    return ConsumerGroupTopic.objects.filter(
        used,
        state=SubscriptionState.READY,
        stopped=False,
        group__stopped=False,
        group__deleted_at__isnull=True,
    )


def find_subscriptions_without_consumer() -> AlarmFindings:
    """Find subscriptions with unread messages in queues without an owner.

    For share groups: those of groups without members.
    """
    rows = QueueOffset.objects.filter(
        Q(group__mode=GroupMode.CLUSTERING)
        | Q(group__mode=GroupMode.SHARE, group__members__isnull=True),
        owner__isnull=True,
        queue__state__in=(QueueState.READ_WRITE, QueueState.READ_ONLY),
        queue__head_seen__gt=F("committed"),
        group__subscriptions__in=_watched_subscriptions().filter(
            lag__gte=config.alarm_min_unread, topic__kind=TopicKind.NORMAL
        ),
        group__subscriptions__topic=F("queue__topic"),
    )
    columns = ("group__name", "queue__topic__name", "queue_id", "queue__number")
    # Paused queues are a list in the row of the subscription, so they are left out here and
    # not by the statement.
    with reachable():
        unowned_rows = rows.order_by("queue_id").values_list(
            *columns, "group__subscriptions__stopped_queues"
        )
        unowned_queues = grouped(
            ((group, topic), number)
            for group, topic, queue, number, stopped_queues in unowned_rows
            if queue not in stopped_queues
        )
    findings = AlarmFindings()
    for (group, topic), queues in unowned_queues.items():
        names = ", ".join(
            f"{topic}/{queue_number}" for queue_number in sorted(queues)[:MAX_NAMED]
        )
        unnamed_count = len(queues) - MAX_NAMED
        detail = (
            alarm_text("idle_more", queues=names, more=unnamed_count)
            if unnamed_count > 0
            else alarm_text("idle", queues=names)
        )
        findings.add(f"{group}/{topic}", detail)
    return findings
