"""Redrive: a request to send dead letters again."""

from __future__ import annotations

from django.db import models

from metadata.models.fields import MAX_NAME, NameField, enum_field, value_constraint
from metadata.models.groups import ConsumerGroup
from metadata.rules.groups.states import RedriveState, RedriveTarget


class Redrive(models.Model):
    """A request to redrive dead letters of a group, and its progress.

    It includes `chosen` ({node: rows}), or if that is null all dead letters of `topic_id`
    and `error_class` if these are set. In any case only rows up to `bounds` ({node: the
    highest row at the time of the request}).

    `places` ({node: [died at in ms, row]}) is its progress. `deleting` ({node: rows}) were
    sent again and are being deleted: if a broker ends before it has counted them, the next
    broker counts those that are deleted. Dead letters that cannot be redriven are counted
    in `skipped` and stay. Names of topics are for display.
    """

    group = models.ForeignKey(
        ConsumerGroup, on_delete=models.PROTECT, related_name="redrives"
    )
    topic_id = models.BigIntegerField(null=True)
    topic = NameField(max_length=MAX_NAME, blank=True)
    error_class = models.CharField(max_length=100, null=True)  # noqa: DJ001 - null: of every kind
    chosen = models.JSONField(null=True)
    to = enum_field(RedriveTarget, max_length=5)
    rate = models.PositiveIntegerField()  # messages a second
    state = enum_field(RedriveState, RedriveState.RUNNING)
    bounds = models.JSONField(default=dict)
    places = models.JSONField(default=dict)
    deleting = models.JSONField(default=dict, db_default={})
    total = models.BigIntegerField()
    redriven = models.BigIntegerField(default=0)
    skipped = models.BigIntegerField(default=0)
    detail = models.CharField(max_length=1000, blank=True)
    asked_by = NameField(max_length=MAX_NAME)
    created_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("-id",)
        indexes = (
            models.Index(fields=("group", "id"), name="redrive_group"),
            models.Index(fields=("state",), name="redrive_state"),
        )
        constraints = (
            value_constraint("to", RedriveTarget, name="redrive_to"),
            value_constraint("state", RedriveState, name="redrive_state_known"),
        )

    def __str__(self) -> str:
        return f"redrive {self.pk}"
