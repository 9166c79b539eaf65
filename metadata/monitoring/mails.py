"""Notifications of alarms by e-mail: rows that wait until they are sent, so none is lost.

`write_notifications` finds the alarms that began or ended since it last ran, and inserts a
row for each address. An alarm that began and ended between two runs is not notified. The
sender reads the rows with `pending_notifications` and reports each result. If it crashes
after the mail server accepted a mail, or does not get the server's answer, the row is sent
again: a repeated mail is better than a lost mail.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from django.db.models import F, Max, Q
from msgspec import Struct

from metadata.config import config
from metadata.db.clock import before, database_now, ms
from metadata.db.prune import PruneRule
from metadata.db.transactions import reachable, transactional
from metadata.grouping import grouped
from metadata.models import Alarm, AlarmMail, ConsumerGroup, Topic
from metadata.rules.alarm_rules import AlarmEvent, Subject, parse_subject
from metadata.rules.mail import is_address, is_allowed_recipient, parse_addresses

PACE_S = 300.0  # shortest time between two mails to an address
MAX_WAIT_S = 86_400.0  # a notification that was not sent for this long is dropped
KEPT_DAYS = 30
MAX_ROWS = 5_000  # alarms or notifications in a pass


class AlarmNotice(Struct, frozen=True):
    """A notification of an alarm; `id` is that of its row.

    `ended_at_ms` is None if the notification says that the alarm began.
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
    """Insert notifications for alarms that began or ended since the last call.

    Return the number of notifications.
    """
    now = database_now()
    has_begun = Q(ended_at__isnull=True, notified__lt=F("times"))
    has_ended = Q(ended_at__isnull=False, notified_end__lt=F("times"))
    changed = Alarm.objects.select_for_update().filter(
        has_begun | has_ended, since_at__isnull=False
    )
    # Locked, so that two processes cannot notify the same change.
    rows = list(changed.order_by("pk")[:MAX_ROWS])
    recipients = _Recipients([parse_subject(row.kind, row.name) for row in rows])
    mails: list[AlarmMail] = []
    for row in rows:
        if row.ended_at is None:
            event, addresses = AlarmEvent.BEGAN, recipients.of_alarm(row)
            row.notified = row.times
        else:
            began = AlarmMail.objects.filter(
                alarm=row, occurrence=row.times, what=AlarmEvent.BEGAN
            )
            # Addresses that were not notified yet of the begin need neither mail.
            began.filter(sent_at__isnull=True).delete()
            notified = began.filter(sent_at__isnull=False, error="")
            event, addresses = (
                AlarmEvent.ENDED,
                list(notified.values_list("address", flat=True)),
            )
            row.notified = row.notified_end = row.times
        mails += [
            AlarmMail(
                alarm=row, occurrence=row.times, what=event, address=address, made_at=now
            )
            for address in addresses
        ]
    # A repeat after a lost answer finds its rows and inserts none (ignore_conflicts).
    AlarmMail.objects.bulk_create(mails, batch_size=500, ignore_conflicts=True)
    Alarm.objects.bulk_update(rows, ("notified", "notified_end"), batch_size=200)
    return len(mails)


class _Recipients:
    """Recipients of alarms: the addresses of the settings, and those of their groups and
    topics.
    """

    def __init__(self, subjects: Sequence[Subject]) -> None:
        groups = {subject.group for subject in subjects if subject.group}
        topics = {subject.topic for subject in subjects if subject.topic}
        group_rows = ConsumerGroup.objects.filter(name__in=groups, deleted_at__isnull=True)
        self._groups = dict(group_rows.values_list("name", "alarm_emails"))
        self._topics = dict(
            Topic.objects.filter(name__in=topics).values_list("name", "alarm_emails")
        )

    def of_alarm(self, alarm: Alarm) -> list[str]:
        """Return the addresses to notify, each once.

        Invalid addresses are left out; they may come from releases that did not check
        addresses.
        """
        subject = parse_subject(alarm.kind, alarm.name)
        own_addresses = (
            f"{self._groups.get(subject.group, '')},{self._topics.get(subject.topic, '')}"
        )
        candidates = [*config.alarm_emails, *parse_addresses(own_addresses)]
        return [
            address
            for address in dict.fromkeys(candidates)
            if is_address(address) and is_allowed_recipient(address, config.mail_domains)
        ]


def list_unheard_alarms() -> list[str]:
    """Return the names of active alarms that have no recipient. Raises MetadataUnavailable."""
    with reachable():
        rows = list(Alarm.objects.filter(ended_at__isnull=True).order_by("name")[:MAX_ROWS])
        recipients = _Recipients([parse_subject(row.kind, row.name) for row in rows])
        return [row.name for row in rows if not recipients.of_alarm(row)]


def pending_notifications() -> dict[str, list[AlarmNotice]]:
    """Return the pending notifications by address, oldest first.

    Addresses that got a mail within PACE_S are left out. Notifications older than
    MAX_WAIT_S are deleted.
    """
    with reachable():
        now = database_now()
        rows = AlarmMail.objects.filter(sent_at__isnull=True)
        rows.filter(made_at__lt=before(now, seconds=MAX_WAIT_S)).delete()
        # What waits for such an address goes into its next mail.
        recent_addresses = AlarmMail.objects.filter(
            sent_at__gt=before(now, seconds=PACE_S)
        ).values("address")
        due_rows = (
            rows.exclude(address__in=recent_addresses)
            .select_related("alarm")
            .order_by("pk")
        )
        # The setting of allowed domains may have changed since the row was inserted.
        allowed_rows = [
            row
            for row in due_rows[:MAX_ROWS]
            if is_allowed_recipient(row.address, config.mail_domains)
        ]
        return grouped(
            (
                row.address,
                AlarmNotice(
                    row.pk,
                    ms(row.made_at),
                    row.alarm.kind,
                    row.alarm.name,
                    row.alarm.detail,
                    row.alarm.facts,
                    ms(row.alarm.since_at or row.alarm.first_at),
                    ms(row.alarm.ended_at)
                    if row.what == AlarmEvent.ENDED and row.alarm.ended_at
                    else None,
                ),
            )
            for row in allowed_rows
        )


def mark_sent(ids: Collection[int]) -> None:
    with reachable():
        rows = AlarmMail.objects.filter(pk__in=list(ids))
        rows.update(sent_at=database_now(), tries=F("tries") + 1, error="")


def mark_refused(ids: Collection[int], *, why: str) -> None:
    """Record that the mail server refuses this address, so that they are never sent."""
    with reachable():
        rows = AlarmMail.objects.filter(pk__in=list(ids))
        rows.update(sent_at=database_now(), tries=F("tries") + 1, error=why[:500])


def mark_failed(ids: Iterable[int], *, why: str) -> None:
    """Record that notifications could not be sent now, unless they were sent meanwhile."""
    with reachable():
        rows = AlarmMail.objects.filter(pk__in=list(ids), sent_at__isnull=True)
        rows.update(tries=F("tries") + 1, error=why[:500])


class MailState(Struct, frozen=True):
    """State of the notifications: how many wait, the last error ("" if none), and when one
    was last sent.
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
