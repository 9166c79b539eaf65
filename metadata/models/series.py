"""Measurements over time: Sample (messages of topics and groups), CommitLook (committed
offsets), TopicProducer and JavaCaller (clients), HandlingTrace (handling of single messages).
"""

from __future__ import annotations

from django.db import models

from metadata.models.fields import MAX_NAME, NameField, enum_field, value_constraint
from metadata.rules.groups.states import HandlingOutcome


class Sample(models.Model):
    """Counts of a step of time: `step_s` seconds from `at` on.

    With `group_ref` 0 the messages sent to the topic, else the messages that the group
    pulled of it, and its highest lag in the step. `topic_ref` 0 stands for all topics, and
    with it `group_ref` -1 for all groups. `bucket_10s_1` to `bucket_10s_6` are the messages
    of each ten seconds of a minute. `handled`, and likewise `handled_1` to `handled_6`, are
    the messages that the group committed, null if they were not counted.

    Ids instead of foreign keys, because samples are kept after their topic or group was
    deleted.
    """

    class Step(models.IntegerChoices):
        """Length in seconds. `metadata.monitoring.rollups` decides how long each is kept."""

        MINUTE = 60
        QUARTER = 900
        DAY = 86_400

    step_s = models.PositiveIntegerField(choices=Step.choices, default=Step.MINUTE)
    at = models.DateTimeField()
    topic_ref = models.BigIntegerField()
    group_ref = models.BigIntegerField(default=0)
    messages = models.BigIntegerField(default=0)
    bytes = models.BigIntegerField(default=0)
    errors = models.BigIntegerField(default=0)
    bucket_10s_1 = models.IntegerField(default=0, db_default=0)
    bucket_10s_2 = models.IntegerField(default=0, db_default=0)
    bucket_10s_3 = models.IntegerField(default=0, db_default=0)
    bucket_10s_4 = models.IntegerField(default=0, db_default=0)
    bucket_10s_5 = models.IntegerField(default=0, db_default=0)
    bucket_10s_6 = models.IntegerField(default=0, db_default=0)
    handled = models.BigIntegerField(null=True, blank=True)
    handled_1 = models.IntegerField(null=True, blank=True)
    handled_2 = models.IntegerField(null=True, blank=True)
    handled_3 = models.IntegerField(null=True, blank=True)
    handled_4 = models.IntegerField(null=True, blank=True)
    handled_5 = models.IntegerField(null=True, blank=True)
    handled_6 = models.IntegerField(null=True, blank=True)
    lag = models.BigIntegerField(null=True, blank=True)
    lag_ms = models.BigIntegerField(null=True, blank=True)

    class Meta:
        ordering = ("at", "id")
        constraints = (
            models.UniqueConstraint(
                fields=("step_s", "topic_ref", "group_ref", "at"),
                name="sample_step_of_what",
            ),
            value_constraint("step_s", (60, 900, 86_400), name="sample_step"),
        )
        indexes = (
            models.Index(fields=("step_s", "at"), name="sample_step_at"),
            models.Index(fields=("step_s", "group_ref", "at"), name="sample_step_group"),
        )

    def __str__(self) -> str:
        return f"{self.step_s} s from {self.at:%Y-%m-%d %H:%M}"


class CommitLook(models.Model):
    """Committed offsets of a group in the queues of a topic, as a job read them.

    `positions` is {queue: Look of rules.groups.commits}. Ids instead of foreign keys, as in
    Sample.
    """

    topic_ref = models.BigIntegerField()
    group_ref = models.BigIntegerField()
    at = models.DateTimeField(db_index=True)
    positions = models.JSONField()

    class Meta:
        ordering = ("id",)
        indexes = (
            models.Index(
                fields=("topic_ref", "group_ref", "id"), name="commit_look_of_whom"
            ),
        )

    def __str__(self) -> str:
        return (
            f"group {self.group_ref} in topic {self.topic_ref} at {self.at:%Y-%m-%d %H:%M}"
        )


class TopicProducer(models.Model):
    """A producer of a topic: name of its API key, address, and name and version of its
    client.

    `messages` were sent in the hour `hour` (hours since 1970), `messages_before` in the
    hour before it. An id instead of a foreign key, as in Sample.
    """

    topic_ref = models.BigIntegerField()
    name = NameField(max_length=MAX_NAME)
    address = NameField(max_length=100, blank=True)
    sdk = NameField(max_length=100, blank=True)
    first_seen = models.DateTimeField()
    last_seen = models.DateTimeField(db_index=True)
    hour = models.BigIntegerField()
    messages = models.BigIntegerField(default=0)
    messages_before = models.BigIntegerField(default=0)

    class Meta:
        ordering = ("topic_ref", "-last_seen")
        constraints = (
            models.UniqueConstraint(
                fields=("topic_ref", "name", "address", "sdk"), name="topic_producer"
            ),
        )

    def __str__(self) -> str:
        return f"{self.name} at {self.address}"


class JavaCaller(models.Model):
    """Numbers of requests of a Java client from an address: answered, refused, or limited
    because of their rate.

    They are counted in the hour `hour` (hours since 1970), and `…_before` in the hour
    before it. `sdk` is '' for requests that were refused before they were read.
    """

    address = NameField(max_length=100)
    sdk = NameField(max_length=100, blank=True)
    last_seen = models.DateTimeField(db_index=True)
    hour = models.BigIntegerField()
    answered = models.BigIntegerField(default=0)
    refused = models.BigIntegerField(default=0)
    limited = models.BigIntegerField(default=0)
    answered_before = models.BigIntegerField(default=0)
    refused_before = models.BigIntegerField(default=0)
    limited_before = models.BigIntegerField(default=0)

    class Meta:
        ordering = ("-last_seen",)
        constraints = (
            models.UniqueConstraint(fields=("address", "sdk"), name="java_caller"),
        )

    def __str__(self) -> str:
        return f"{self.sdk} at {self.address}"


class HandlingTrace(models.Model):
    """A sampled attempt to handle a message: the member, the time, the duration, and the
    outcome.

    `took_ms` is null if only the delivery is known. Ids instead of foreign keys, as in
    Sample.
    """

    group_ref = models.BigIntegerField()
    queue_ref = models.BigIntegerField()
    message_offset = models.BigIntegerField()
    member = NameField(max_length=MAX_NAME)
    attempt = models.PositiveIntegerField(default=0)
    outcome = enum_field(HandlingOutcome)
    at = models.DateTimeField(db_index=True)
    took_ms = models.BigIntegerField(null=True, blank=True)

    class Meta:
        ordering = ("at", "id")
        constraints = (value_constraint("outcome", HandlingOutcome, name="trace_outcome"),)
        indexes = (
            models.Index(fields=("queue_ref", "message_offset"), name="trace_message"),
            models.Index(fields=("group_ref", "id"), name="trace_group"),
        )

    def __str__(self) -> str:
        return f"{self.queue_ref}-{self.message_offset} by {self.member}"
