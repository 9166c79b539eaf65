"""ConsumerGroup, and ConsumerGroupTopic: a subscription of a group to a topic."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q

from metadata.models.fields import OwnedModel, enum_field, value_constraint
from metadata.models.topics import Topic
from metadata.rules.groups.delivery import RETRY_DELAYS_S, Delivery, parse_tags
from metadata.rules.groups.filters import header_filter
from metadata.rules.groups.states import GroupMode, Start, SubscriptionState
from metadata.rules.setting_types import read_settings
from metadata.rules.settings import DELIVERY

MIN_SESSION_TIMEOUT_MS = 2_000
MAX_SESSION_TIMEOUT_MS = 300_000


def default_delays() -> list[int]:
    """Return the default pauses before the retries of a subscription, in seconds."""
    return list(RETRY_DELAYS_S)


class ConsumerGroup(OwnedModel):
    """A group. Its row is the lock for everything that belongs to it: members,
    subscriptions, ownership of queues.

    A rebalance is due while `rebalance_wanted` > `rebalance_done`. `generation` counts
    changes of the target assignment.
    """

    mode = enum_field(GroupMode, GroupMode.CLUSTERING, max_length=12)
    stopped = models.BooleanField(default=False)
    session_timeout_ms = models.PositiveIntegerField(default=15_000)
    # addresses and networks; '' = all
    allow_addresses = models.CharField(max_length=2000, blank=True)
    deny_addresses = models.CharField(max_length=2000, blank=True)
    # null: no limit; further members own no queues
    max_active_members = models.PositiveIntegerField(null=True, blank=True)
    # Of a share group. Documented at metadata.rules.settings.ShareSettings.
    lease_ms = models.PositiveIntegerField(default=30_000, db_default=30_000)
    run_messages = models.PositiveIntegerField(default=10, db_default=10)
    max_deliveries = models.PositiveIntegerField(default=5, db_default=5)
    # Lag in a topic that raises an alarm, in messages and by age of the oldest; null: as in
    # the settings.
    alarm_lag = models.PositiveBigIntegerField(null=True, blank=True)
    alarm_lag_s = models.PositiveIntegerField(null=True, blank=True)
    # Created by `catmq consume`, so it raises no alarm while it has no members. It becomes
    # a normal group when a service joins, an operator changes it, or a member expires.
    casual = models.BooleanField(default=False)
    rebalance_wanted = models.BigIntegerField(default=0)
    rebalance_done = models.BigIntegerField(default=0)
    # why a rebalance is due
    rebalance_cause = models.CharField(max_length=300, blank=True)
    generation = models.BigIntegerField(default=0)

    class Meta(OwnedModel.Meta):
        constraints = (
            value_constraint("mode", GroupMode, name="group_mode"),
            models.CheckConstraint(
                condition=Q(
                    session_timeout_ms__gte=MIN_SESSION_TIMEOUT_MS,
                    session_timeout_ms__lte=MAX_SESSION_TIMEOUT_MS,
                ),
                name="group_session_timeout",
            ),
            models.CheckConstraint(
                condition=Q(rebalance_done__lte=F("rebalance_wanted")), name="group_mark"
            ),
        )


class ConsumerGroupTopic(models.Model):
    """A subscription: the group reads the topic.

    `active_at` is the time when a job last found a member or moved offsets, null before its
    first check. `progress` is the sum of all offsets at that time. `lag` (of all queues)
    and `lag_ms` (age of the oldest unread message) are for lists, as a job recorded them at
    `lag_at`, null before.
    """

    group = models.ForeignKey(
        ConsumerGroup, on_delete=models.PROTECT, related_name="subscriptions"
    )
    topic = models.ForeignKey(Topic, on_delete=models.PROTECT, related_name="subscriptions")
    state = enum_field(SubscriptionState, SubscriptionState.CREATING)
    start = enum_field(Start)
    # Readers start at the first message stored at this time (since 1970 UTC) or later. Then
    # `start` is earliest.
    start_at_ms = models.BigIntegerField(null=True, blank=True)
    stopped = models.BooleanField(default=False)
    # ids of paused queues
    stopped_queues = models.JSONField(default=list, blank=True)
    # Delivery settings, documented at metadata.rules.groups.delivery.Delivery.
    ordered = models.BooleanField(default=False)
    retries = models.PositiveIntegerField(default=16)
    retry_delays_s = models.JSONField(default=default_delays)
    dead_days = models.PositiveIntegerField(default=30)
    delay_s = models.PositiveIntegerField(default=0)
    tags = models.CharField(max_length=1000, blank=True)
    # {name: accepted values}
    headers = models.JSONField(default=dict, db_default={}, blank=True)
    handler_timeout_ms = models.PositiveIntegerField(null=True, blank=True)
    breaker_failures = models.PositiveIntegerField(null=True, blank=True)
    breaker_pause_s = models.PositiveIntegerField(default=30)
    threads = models.PositiveIntegerField(null=True, blank=True)
    handler_batch = models.PositiveIntegerField(null=True, blank=True)
    max_poll_records = models.PositiveIntegerField(null=True, blank=True)
    fetch_max_wait_ms = models.PositiveIntegerField(null=True, blank=True)
    trace_percent = models.PositiveIntegerField(default=0, db_default=0)
    progress = models.BigIntegerField(default=0)
    active_at = models.DateTimeField(null=True, blank=True)
    lag = models.BigIntegerField(null=True, blank=True)
    lag_ms = models.BigIntegerField(null=True, blank=True)
    lag_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField()

    class Meta:
        ordering = ("group_id", "topic_id")
        constraints = (
            models.UniqueConstraint(
                fields=("group", "topic"), name="subscription_group_topic"
            ),
            value_constraint("state", SubscriptionState, name="subscription_state"),
            value_constraint("start", Start, name="subscription_start"),
        )

    def __str__(self) -> str:
        return f"subscription {self.pk}"

    @property
    def delivery(self) -> Delivery:
        """The delivery settings."""
        settings = read_settings(DELIVERY, self)
        settings["retry_delays_s"], settings["tags"] = (
            tuple(self.retry_delays_s),
            parse_tags(self.tags),
        )
        settings["headers"] = header_filter(self.headers)
        return Delivery(**settings)
