"""ConsumerGroup and ConsumerGroupTopic: who reads, and what."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q

from metadata.models.fields import OwnedModel, value_constraint
from metadata.models.topics import Topic
from metadata.rules.groups.delivery import RETRY_DELAYS_S, Delivery, parse_tags
from metadata.rules.groups.filters import header_filter
from metadata.rules.setting_types import read_settings
from metadata.rules.settings import DELIVERY

MIN_SESSION_TIMEOUT_MS = 2_000
MAX_SESSION_TIMEOUT_MS = 300_000


def default_delays() -> list[int]:
    """The pauses before the retries of a subscription that names none, in seconds."""
    return list(RETRY_DELAYS_S)


class ConsumerGroup(OwnedModel):
    """A group. Its row is the lock of everything about it: members, subscriptions, owners.

    A rebalance is due while `rebalance_wanted` > `rebalance_done`. `generation` counts
    changes of the target assignment.
    """

    class Mode(models.TextChoices):
        """Clustering gives each queue to one member, broadcasting all to each; share leases
        messages.
        """

        CLUSTERING = "clustering"
        BROADCASTING = "broadcasting"
        SHARE = "share"

    mode = models.CharField(max_length=12, choices=Mode.choices, default=Mode.CLUSTERING)
    stopped = models.BooleanField(default=False)
    session_timeout_ms = models.PositiveIntegerField(default=15_000)
    # addresses and networks; '' = all
    allow_addresses = models.CharField(max_length=2000, blank=True)
    deny_addresses = models.CharField(max_length=2000, blank=True)
    # the others stand by
    max_active_members = models.PositiveIntegerField(null=True, blank=True)
    # Of a share group; their meaning stands at metadata.rules.settings.ShareSettings.
    lease_ms = models.PositiveIntegerField(default=30_000, db_default=30_000)
    run_messages = models.PositiveIntegerField(default=10, db_default=10)
    max_deliveries = models.PositiveIntegerField(default=5, db_default=5)
    # The lag in a topic that is an alarm, in messages and in age of the oldest; null: as
    # settings say.
    alarm_lag = models.PositiveBigIntegerField(null=True, blank=True)
    alarm_lag_s = models.PositiveIntegerField(null=True, blank=True)
    # Made by a command for a look: no alarm while nobody is in it. A service that joins, an
    # operator who
    # changes it, and a member that dies make it a group like others.
    casual = models.BooleanField(default=False)
    rebalance_wanted = models.BigIntegerField(default=0)
    rebalance_done = models.BigIntegerField(default=0)
    # of the mark, while it is set
    rebalance_cause = models.CharField(max_length=300, blank=True)
    generation = models.BigIntegerField(default=0)

    class Meta(OwnedModel.Meta):
        constraints = (
            value_constraint(
                "mode", "clustering", "broadcasting", "share", name="group_mode"
            ),
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

    `active_at`: when a look at it last found a member, or that its positions had moved;
    `progress` is the sum
    of all its positions at that look. Null: not looked at yet. `lag`, `lag_ms`: of all its
    queues together and of the oldest unread message, as a job saw them at `lag_at`; for
    lists, null while not known.
    """

    class State(models.TextChoices):
        """Rows first, then reader rows on the nodes, then ready; backwards when it goes."""

        CREATING = "creating"
        READY = "ready"
        DELETING = "deleting"

    class Start(models.TextChoices):
        EARLIEST = "earliest"
        LATEST = "latest"

    group = models.ForeignKey(
        ConsumerGroup, on_delete=models.PROTECT, related_name="subscriptions"
    )
    topic = models.ForeignKey(Topic, on_delete=models.PROTECT, related_name="subscriptions")
    state = models.CharField(max_length=10, choices=State.choices, default=State.CREATING)
    start = models.CharField(max_length=10, choices=Start.choices)
    # Since 1970 UTC: readers start at the first message stored then or later; start is
    # earliest.
    start_at_ms = models.BigIntegerField(null=True, blank=True)
    stopped = models.BooleanField(default=False)
    # ids of queues that are not read for now
    stopped_queues = models.JSONField(default=list, blank=True)
    # How messages come; the meaning of each stands at
    # metadata.rules.groups.delivery.Delivery.
    ordered = models.BooleanField(default=False)
    retries = models.PositiveIntegerField(default=16)
    retry_delays_s = models.JSONField(default=default_delays)
    dead_days = models.PositiveIntegerField(default=30)
    delay_s = models.PositiveIntegerField(default=0)
    tags = models.CharField(max_length=1000, blank=True)
    # {name: the values that are taken}
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
            value_constraint(
                "state", "creating", "ready", "deleting", name="subscription_state"
            ),
            value_constraint("start", "earliest", "latest", name="subscription_start"),
        )

    def __str__(self) -> str:
        return f"subscription {self.pk}"

    @property
    def delivery(self) -> Delivery:
        """Its settings of how messages come."""
        found = read_settings(DELIVERY, self)
        found["retry_delays_s"], found["tags"] = (
            tuple(self.retry_delays_s),
            parse_tags(self.tags),
        )
        found["headers"] = header_filter(self.headers)
        return Delivery(**found)
