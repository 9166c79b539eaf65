"""Alarm: a state that an operator should know of or act on. AlarmMail: a notification of it.

DeadLetterCount and ClockMark: measurements of the jobs that raise alarms.
"""

from __future__ import annotations

from django.db import models

from metadata.models.fields import MAX_NAME, NameField, enum_field, value_constraint
from metadata.rules.alarm_rules import AlarmEvent, AlarmKind


class Alarm(models.Model):
    """A cause at an object. The row is kept when the alarm ends, and used again when it
    recurs.

    An occurrence is a time for which the alarm lasts. `times` counts the occurrences.
    `since_at` is the begin of the present or last occurrence, null before the first.
    `ended_at` is null while the alarm lasts. `pending_since` is the time since which
    measurements contradict the row, so that an occurrence will begin or end soon.
    `acknowledged_*` belong to the present occurrence.

    `notified` and `notified_end` are the numbers of the last occurrences for whose begin
    and end mails were written. `facts` are the values in `detail` (rules/alarm_texts.py),
    null in rows of older releases. `count` is the total of lost messages, and never falls.
    `place` is an offset, for an alarm about a queue.
    """

    kind = enum_field(AlarmKind, max_length=20)
    name = NameField(max_length=2 * MAX_NAME + 1)
    detail = models.CharField(max_length=1000)
    facts = models.JSONField(null=True, blank=True)
    count = models.BigIntegerField(default=0)
    place = models.BigIntegerField(null=True, blank=True)
    first_at = models.DateTimeField()
    last_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    since_at = models.DateTimeField(null=True, blank=True)
    pending_since = models.DateTimeField(null=True, blank=True)
    times = models.BigIntegerField(default=0)
    acknowledged_at = models.DateTimeField(null=True, blank=True)
    acknowledged_by = NameField(max_length=MAX_NAME, blank=True)
    notified = models.BigIntegerField(default=0)
    notified_end = models.BigIntegerField(default=0)

    class Meta:
        ordering = ("-last_at", "-id")
        constraints = (
            models.UniqueConstraint(fields=("kind", "name"), name="alarm_kind_name"),
            value_constraint("kind", AlarmKind, name="alarm_kind"),
        )
        indexes = (models.Index(fields=("ended_at", "kind"), name="alarm_lasting"),)

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class AlarmMail(models.Model):
    """A notification of one address that an alarm began or ended.

    Several notifications may be sent in one mail. `sent_at` is null while it is pending. A
    notification that is pending for too long is not sent.
    """

    alarm = models.ForeignKey(Alarm, on_delete=models.CASCADE, related_name="mails")
    occurrence = models.BigIntegerField()
    what = enum_field(AlarmEvent, max_length=5)
    address = models.CharField(max_length=254)
    made_at = models.DateTimeField()
    sent_at = models.DateTimeField(null=True, blank=True)
    tries = models.PositiveIntegerField(default=0)
    error = models.CharField(max_length=500, blank=True)

    class Meta:
        ordering = ("id",)
        constraints = (
            models.UniqueConstraint(
                fields=("alarm", "occurrence", "what", "address"), name="alarm_mail_once"
            ),
            value_constraint("what", AlarmEvent, name="alarm_mail_what"),
        )
        indexes = (
            models.Index(fields=("sent_at", "id"), name="alarm_mail_waiting"),
            models.Index(fields=("address", "sent_at"), name="alarm_mail_address"),
        )

    def __str__(self) -> str:
        return f"{self.what} {self.alarm_id} to {self.address}"


class DeadLetterCount(models.Model):
    """Number of a group's dead letters, as a job counted them on the nodes that answered.

    Dead letters up to `seen_at` were acknowledged by the user `seen_by`. Ids instead of
    foreign keys, as in Sample.
    """

    group_ref = models.BigIntegerField(unique=True)
    messages = models.BigIntegerField(default=0)
    last_hour = models.BigIntegerField(default=0)
    newest_at = models.DateTimeField()
    counted_at = models.DateTimeField()
    seen_at = models.DateTimeField(null=True, blank=True)
    seen_by = NameField(max_length=MAX_NAME, blank=True)

    class Meta:
        ordering = ("-newest_at", "-id")
        verbose_name_plural = "dead letter counts"

    def __str__(self) -> str:
        return f"{self.messages} dead of group {self.group_ref}"


class ClockMark(models.Model):
    """The database's clock and a machine's count of seconds since its start, as a job last
    read both.

    Passing time advances both equally. A jump of the clock changes only one of them.
    """

    host = models.CharField(max_length=200, primary_key=True)
    boot = models.CharField(max_length=100)  # identifies a start of the machine
    elapsed_s = models.FloatField()
    at = models.DateTimeField()

    class Meta:
        ordering = ("host",)

    def __str__(self) -> str:
        return self.host
