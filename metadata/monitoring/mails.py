"""Notifications of alarms by e-mail: rows that wait until they are sent, so none is lost.

`write_notifications` finds the alarms that began or ended since it last ran, and inserts a
row for each address. An alarm that began and ended between two runs is not notified. The
sender reads the rows with `pending_notifications` and reports each result. If it crashes
after the mail server accepted a mail, or does not get the server's answer, the row is sent
again: a repeated mail is better than a lost one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import F, Max, Q

from metadata.config import config
from metadata.db.clock import before, database_now, ms
from metadata.db.prune import PruneRule
from metadata.db.transactions import reachable, transactional
from metadata.grouping import grouped
from metadata.models import Alarm, AlarmMail, ConsumerGroup, Topic
from metadata.rules.alarm_rules import Subject, parse_subject
from metadata.rules.mail import is_address, is_allowed_recipient, parse_addresses

PACE_S = 300.0  # an address gets mails again no earlier
GIVEN_UP_S = 86_400.0  # a mail that could not be sent for so long is not sent
KEPT_DAYS = 30
MOST = 5_000  # alarms, or rows, in one pass


@dataclass(frozen=True, slots=True)
class AlarmNotice:
    """An alarm in a mail, whose row is `id`; `ended_at_ms` is None in one that says that it
    began.
    """

    id: int
    made_at_ms: int
    kind: str
    name: str
    detail: str
    facts: Mapping[str, Any] | None
    since_ms: int
    ended_at_ms: int | None


@transactional
def write_notifications() -> int:
    """Write the mails for all that began or ended since; return how many rows were made."""
    now = database_now()
    began = Q(ended_at__isnull=True, notified__lt=F("times"))
    ended = Q(ended_at__isnull=False, notified_end__lt=F("times"))
    turned = Alarm.objects.select_for_update().filter(began | ended, since_at__isnull=False)
    rows = list(turned.order_by("pk")[:MOST])
    called = _Addresses([parse_subject(row.kind, row.name) for row in rows])
    mails: list[AlarmMail] = []
    for row in rows:
        if row.ended_at is None:
            mails += [_mail(row, "began", to, now) for to in called.of(row)]
            row.notified = row.times
        else:
            mails += [_mail(row, "ended", to, now) for to in _knowing(row)]
            row.notified = row.notified_end = row.times
    AlarmMail.objects.bulk_create(mails, batch_size=500, ignore_conflicts=True)
    Alarm.objects.bulk_update(rows, ("notified", "notified_end"), batch_size=200)
    return len(mails)


def _mail(row: Alarm, what: str, address: str, now: datetime) -> AlarmMail:
    return AlarmMail(
        alarm=row, occurrence=row.times, what=what, address=address, made_at=now
    )


def _knowing(row: Alarm) -> list[str]:
    """Addresses that were told that it began; those that still wait to be told need hear
    neither.
    """
    mails = AlarmMail.objects.filter(alarm=row, occurrence=row.times, what="began")
    mails.filter(sent_at__isnull=True).delete()
    return list(
        mails.filter(sent_at__isnull=False, error="").values_list("address", flat=True)
    )


class _Addresses:
    """Recipients of each alarm: everybody in the settings, and who is named at its group
    and topic.
    """

    def __init__(self, subjects: Sequence[Subject]) -> None:
        groups = {one.group for one in subjects if one.group}
        topics = {one.topic for one in subjects if one.topic}
        named = ConsumerGroup.objects.filter(name__in=groups, deleted_at__isnull=True)
        self._groups = dict(named.values_list("name", "alarm_emails"))
        self._topics = dict(
            Topic.objects.filter(name__in=topics).values_list("name", "alarm_emails")
        )

    def of(self, row: Alarm) -> list[str]:
        """The addresses, each once; what was written before addresses were checked may hold
        none.
        """
        about = parse_subject(row.kind, row.name)
        named = f"{self._groups.get(about.group, '')},{self._topics.get(about.topic, '')}"
        found = [*config.alarm_emails, *parse_addresses(named)]
        return [
            one
            for one in dict.fromkeys(found)
            if is_address(one) and is_allowed_recipient(one, config.mail_domains)
        ]


def pending_notifications() -> dict[str, list[AlarmNotice]]:
    """{address: what it is to be told}, the oldest first; without those that had mail just
    now.

    What has waited for a day is given up.
    """
    with reachable():
        now = database_now()
        rows = AlarmMail.objects.filter(sent_at__isnull=True)
        rows.filter(made_at__lt=before(now, seconds=GIVEN_UP_S)).delete()
        lately = AlarmMail.objects.filter(sent_at__gt=before(now, seconds=PACE_S)).values(
            "address"
        )
        due = rows.exclude(address__in=lately).select_related("alarm").order_by("pk")
        # The setting of the domains may be younger than the row.
        may = [
            row
            for row in due[:MOST]
            if is_allowed_recipient(row.address, config.mail_domains)
        ]
        return grouped((row.address, _notice(row)) for row in may)


def _notice(row: AlarmMail) -> AlarmNotice:
    alarm = row.alarm
    ended = alarm.ended_at if row.what == "ended" else None
    since_ms = ms(alarm.since_at or alarm.first_at)
    until_ms = ms(ended) if ended else None
    return AlarmNotice(
        row.pk,
        ms(row.made_at),
        alarm.kind,
        alarm.name,
        alarm.detail,
        alarm.facts,
        since_ms,
        until_ms,
    )


def mark_sent(ids: Collection[int]) -> None:
    with reachable():
        rows = AlarmMail.objects.filter(pk__in=list(ids))
        rows.update(sent_at=database_now(), tries=F("tries") + 1, error="")


def mark_refused(ids: Collection[int], *, why: str) -> None:
    """Record that some will never be sent: the mail server does not take them for this
    address.
    """
    with reachable():
        rows = AlarmMail.objects.filter(pk__in=list(ids))
        rows.update(sent_at=database_now(), tries=F("tries") + 1, error=why[:500])


def mark_failed(ids: Iterable[int], *, why: str) -> None:
    """Record that some could not be sent now, unless they were."""
    with reachable():
        rows = AlarmMail.objects.filter(pk__in=list(ids), sent_at__isnull=True)
        rows.update(tries=F("tries") + 1, error=why[:500])


@dataclass(frozen=True, slots=True)
class MailState:
    """State of the mails: how many wait, why the last one that was tried did not go, when
    one last went.
    """

    waiting: int
    error: str
    sent_at_ms: int | None


def read_mail_state() -> MailState:
    with reachable():
        rows = AlarmMail.objects.filter(sent_at__isnull=True)
        error = (
            rows.exclude(error="").order_by("-pk").values_list("error", flat=True).first()
        )
        last = AlarmMail.objects.filter(error="").aggregate(at=Max("sent_at"))["at"]
        return MailState(rows.count(), error or "", ms(last) if last else None)


prune = PruneRule(AlarmMail.objects.all(), at="made_at", days=KEPT_DAYS)
