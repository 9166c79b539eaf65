"""Alarm: something that a person should know of, or do something about. ClockMark: what clocks showed."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from metadata.models.fields import MAX_NAME, NameField


class Alarm(models.Model):
    """One cause at one thing, however often it came up; `ended_at` is null while it lasts.

    `count` adds up what was lost, where something was: it never falls. `place` is the offset in the queue,
    where it is about one.
    """

    class Kind(models.TextChoices):
        """What `name` is depends on it: group/topic, a node, topic/queue."""

        UNREAD_DROPPED = "unread_dropped"
        NODE_LOW = "node_low"
        NODE_FULL = "node_full"
        NOT_CLEANED = "not_cleaned"
        SUSPECT = "suspect"

    kind = models.CharField(max_length=20, choices=Kind.choices)
    name = NameField(max_length=2 * MAX_NAME + 1)
    detail = models.CharField(max_length=1000)
    count = models.BigIntegerField(default=0)
    place = models.BigIntegerField(null=True, blank=True)
    first_at = models.DateTimeField()
    last_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-last_at", "-id")
        constraints = (
            models.UniqueConstraint(fields=("kind", "name"), name="alarm_kind_name"),
            models.CheckConstraint(
                condition=Q(kind__in=("unread_dropped", "node_low", "node_full", "not_cleaned", "suspect")),
                name="alarm_kind",
            ),
        )

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class ClockMark(models.Model):
    """The database's clock beside a machine's own count of seconds since its start, as a job last saw both.

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
