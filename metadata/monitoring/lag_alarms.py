"""Lag alarms and "no consumer" alarms: the subscriptions that are behind or unread."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django.db.models import Exists, F, OuterRef, Q

from metadata.config import config
from metadata.db.clock import before, database_now
from metadata.db.transactions import reachable
from metadata.grouping import grouped
from metadata.models import ConsumerGroupConsumer, ConsumerGroupTopic, Queue, QueueOffset
from metadata.monitoring.alarms import AlarmFindings
from metadata.rules import alarm_rules
from metadata.rules.alarm_texts import alarm_text

STALE_S = 600.0  # a lag that was not recorded for longer tells nothing
MOST_NAMED = 8  # queues in a text


def find_lagging_subscriptions() -> AlarmFindings:
    """Subscriptions with more unread messages, or older ones, than their group's limits
    allow.

    One that was stopped by hand is meant to fall behind.
    """
    rows = _reading().filter(lag__gt=0, topic__kind="normal").order_by(F("lag").desc())
    columns = (
        "group__name",
        "topic__name",
        "lag",
        "lag_ms",
        "lag_at",
        "group__alarm_lag",
        "group__alarm_lag_s",
    )
    seen = AlarmFindings()
    with reachable():
        fresh = before(database_now(), seconds=STALE_S)
        for group, topic, lag, lag_ms, lag_at, most, most_s in rows.values_list(*columns):
            age_s = (lag_ms or 0) / 1000
            # A few old messages of a trial are no alarm, unless the group has a limit of
            # its own.
            is_old = lag >= config.alarm_min_unread or most_s is not None
            passed = alarm_rules.any_passed(
                alarm_rules.is_passed(lag, most or config.alarm_lag),
                is_old and alarm_rules.is_passed(age_s, most_s or config.alarm_lag_s),
            )
            detail = alarm_text("behind", messages=lag, minutes=round(age_s / 60))
            seen.add(
                f"{group}/{topic}",
                detail,
                is_so=None if lag_at is None or lag_at < fresh else passed,
            )
    return seen


def hold_cut_off_topics(seen: AlarmFindings, *, topics: Collection[str]) -> AlarmFindings:
    """Let a look find nothing new at subscriptions of some topics, whose node is away: one
    alarm is enough.

    Their alarms that last go on lasting.
    """
    held = {name for name in seen.found if name.partition("/")[2] in topics}
    found = {name: detail for name, detail in seen.found.items() if name not in held}
    return AlarmFindings(found, seen.unclear | held)


def _reading() -> Any:
    """The subscriptions that ought to be read: those of a casual group only while somebody
    is in it.
    """
    used = Q(group__casual=False) | Exists(
        ConsumerGroupConsumer.objects.filter(group=OuterRef("group"))
    )
    return ConsumerGroupTopic.objects.filter(
        used,
        state="ready",
        stopped=False,
        group__stopped=False,
        group__deleted_at__isnull=True,
    )


def find_subscriptions_without_consumer() -> AlarmFindings:
    """Subscriptions with unread messages in queues that no consumer owns, and share groups
    without any.
    """
    rows = QueueOffset.objects.filter(
        Q(group__mode="clustering") | Q(group__mode="share", group__members__isnull=True),
        owner__isnull=True,
        queue__state__in=(Queue.State.READ_WRITE, Queue.State.READ_ONLY),
        queue__head_seen__gt=F("committed"),
        group__subscriptions__in=_reading().filter(
            lag__gte=config.alarm_min_unread, topic__kind="normal"
        ),
        group__subscriptions__topic=F("queue__topic"),
    )
    columns = ("group__name", "queue__topic__name", "queue_id", "queue__number")
    with reachable():
        found = rows.order_by("queue_id").values_list(
            *columns, "group__subscriptions__stopped_queues"
        )
        lone = grouped(
            ((group, topic), number)
            for group, topic, queue, number, off in found
            if queue not in off
        )
    seen = AlarmFindings()
    for (group, topic), queues in lone.items():
        named = ", ".join(f"{topic}/{one}" for one in sorted(queues)[:MOST_NAMED])
        more = len(queues) - MOST_NAMED
        what = (
            alarm_text("idle_more", queues=named, more=more)
            if more > 0
            else alarm_text("idle", queues=named)
        )
        seen.add(f"{group}/{topic}", what)
    return seen
