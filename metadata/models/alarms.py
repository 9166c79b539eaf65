"""Alarm, and the mails that tell of it: something that a person should know of, or do
something about.

DeadLetterCount: what a job counted to tell. ClockMark: what clocks showed.
"""

from __future__ import annotations

from django.db import models

from metadata.models.fields import MAX_NAME, NameField, value_constraint


class AlarmKind(models.TextChoices):
    """Kind of an alarm; `name` depends on it (alarm_rules.subject): group/topic, a node, …"""

    UNREAD_DROPPED = "unread_dropped"
    NODE_LOW = "node_low"
    NODE_FULL = "node_full"
    NODE_FILLING = "node_filling"
    NODE_AWAY = "node_away"
    NOT_CLEANED = "not_cleaned"
    LAG = "lag"
    NO_CONSUMER = "no_consumer"
    DEAD_GROWING = "dead_growing"
    JOB_FAILED = "job_failed"
    CORRUPT = "corrupt"
    INCONSISTENT = "inconsistent"


class Alarm(models.Model):
    """One cause at one thing, however often it came up; `ended_at` is null while it lasts.

    An occurrence is one time that it lasted: `since_at` is the beginning of the present or
    last one, null before the first, and `times` counts them. `facts`: what `detail` was
    made of (rules/alarm_texts.py), null in rows of older releases. `pending_since`: since
    when what was seen contradicts the row, so that it opens or ends soon. `acknowledged_*`
    are of the present occurrence.
    `notified` and
    `notified_end` are the last occurrences whose beginning and end mails were written for.
    `count` adds up
    what was lost, where something was: it never falls. `place` is the offset in the queue,
    where it is about one.
    """

    kind = models.CharField(max_length=20, choices=AlarmKind.choices)
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
            value_constraint("kind", *AlarmKind.values, name="alarm_kind"),
        )
        indexes = (models.Index(fields=("ended_at", "kind"), name="alarm_lasting"),)

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class AlarmMail(models.Model):
    """A mail that tells one address that an alarm began or ended; one that waited too long
    is not sent.

    Several may go in one mail. `sent_at` is null while it waits.
    """

    class What(models.TextChoices):
        """End of an occurrence that a mail tells of."""

        BEGAN = "began"
        ENDED = "ended"

    alarm = models.ForeignKey(Alarm, on_delete=models.CASCADE, related_name="mails")
    occurrence = models.BigIntegerField()
    what = models.CharField(max_length=5, choices=What.choices)
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
            value_constraint("what", "began", "ended", name="alarm_mail_what"),
        )
        indexes = (
            models.Index(fields=("sent_at", "id"), name="alarm_mail_waiting"),
            models.Index(fields=("address", "sent_at"), name="alarm_mail_address"),
        )

    def __str__(self) -> str:
        return f"{self.what} {self.alarm_id} to {self.address}"


class DeadLetterCount(models.Model):
    """Number of a group's dead letters, as a job counted them on the nodes that answered.

    Those that died up to `seen_at` somebody has looked at. Ids instead of foreign keys, as
    in Sample.
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
    """The database's clock beside a machine's own count of seconds since its start, as a
    job last saw both.

    Time that passes moves both alike; a clock that jumps moves one of them.
    """

    host = models.CharField(max_length=200, primary_key=True)
    boot = models.CharField(max_length=100)  # tells one start of the machine from another
    elapsed_s = models.FloatField()
    at = models.DateTimeField()

    class Meta:
        ordering = ("host",)

    def __str__(self) -> str:
        return self.host
