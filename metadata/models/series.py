"""Sample: what went through a topic, or a group's reading of it, in a step of time;
CommitLook: positions; TopicProducer: who sent it; HandlingTrace: who had a message, when,
and for how long."""

from __future__ import annotations

from django.db import models

from metadata.models.fields import MAX_NAME, NameField, value_constraint


class Sample(models.Model):
    """Counts of one step: `step_s` seconds from `at` on.

    `group_ref` 0: what was sent to the topic. Otherwise what that group pulled of it, and
    the highest lag seen in the step. Topic 0 with group 0 is what was sent to all, and with
    group -1 what all groups pulled and how far they are behind. `bucket_10s_1` to
    `bucket_10s_6`: the messages of each ten seconds of a minute. `handled`, and likewise
    `handled_1` to `handled_6`: what a group's commits moved its positions past; null where
    it was not counted. Ids instead of foreign keys: a sample outlives what it tells of,
    until it is trimmed.
    """

    class Step(models.IntegerChoices):
        """Seconds; how long each is kept is in `metadata.monitoring.rollups`."""

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
            value_constraint("step_s", 60, 900, 86_400, name="sample_step"),
        )
        indexes = (
            models.Index(fields=("step_s", "at"), name="sample_step_at"),
            models.Index(fields=("step_s", "group_ref", "at"), name="sample_step_group"),
        )

    def __str__(self) -> str:
        return f"{self.step_s} s from {self.at:%Y-%m-%d %H:%M}"


class CommitLook(models.Model):
    """Offsets that a group had committed in the queues of a topic, as a job last read them.

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
    """A sender of messages to a topic: name of its API key, address, and name and version
    of its client.

    `messages` were sent in the hour `hour` (hours since 1970), `messages_before` in the one
    before it. An id instead of a foreign key, as in Sample.
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
    """Requests of a Java client from an address: answered, refused, or limited for their
    rate.

    Each is counted in the hour `hour` (hours since 1970), and in the one before it. `sdk`
    is empty where a request was refused before it was read.
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
    """A sampled attempt at a message: the member it was delivered to, when, for how long,
    and the outcome.

    `took_ms` is null where only the delivery is known. Ids instead of foreign keys, as in
    Sample.
    """

    class Outcome(models.TextChoices):
        """Delivered: nothing else is known of it."""

        HANDLED = "handled"
        FAILED = "failed"
        DELIVERED = "delivered"

    group_ref = models.BigIntegerField()
    queue_ref = models.BigIntegerField()
    message_offset = models.BigIntegerField()
    member = NameField(max_length=MAX_NAME)
    attempt = models.PositiveIntegerField(default=0)
    outcome = models.CharField(max_length=10, choices=Outcome.choices)
    at = models.DateTimeField(db_index=True)
    took_ms = models.BigIntegerField(null=True, blank=True)

    class Meta:
        ordering = ("at", "id")
        constraints = (
            value_constraint(
                "outcome", "handled", "failed", "delivered", name="trace_outcome"
            ),
        )
        indexes = (
            models.Index(fields=("queue_ref", "message_offset"), name="trace_message"),
            models.Index(fields=("group_ref", "id"), name="trace_group"),
        )

    def __str__(self) -> str:
        return f"{self.queue_ref}-{self.message_offset} by {self.member}"
