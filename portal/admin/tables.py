"""Lists of the metadata, by table: columns, filters, and the columns that a search looks at."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.db.models import Model
from django_q.models import Failure, OrmQ, Schedule, Success

from metadata import models
from portal.admin.readonly import ReadOnlyAdmin

Names = tuple[str, ...]

# Django's own pages would change accounts past the audit log, and those of django-q would let a browser name
# any function to be run.
for model in (Group, get_user_model(), Failure, OrmQ, Schedule, Success):
    admin.site.unregister(model)


def show(
    model: type[Model],
    columns: Names,
    *,
    search: Names,
    filters: tuple[Any, ...] = (),
    related: Names = (),
    ordering: Names = (),
) -> None:
    """Give a table its list. `related`: columns of other tables, read in the same query."""
    admin.site.register(
        model,
        ReadOnlyAdmin,
        list_display=columns,
        search_fields=search,
        list_filter=filters,
        list_select_related=related or False,
        ordering=ordering or None,
    )


show(
    models.Topic,
    ("name", "kind", "state", "keyed", "retention_days", "owners", "department", "created_at"),
    filters=("kind", "state"),
    search=("name", "owners", "department", "description"),
)
show(
    models.TopicRouting, ("topic", "until_at", "keyed", "queues"), search=("topic__name",), related=("topic",)
)
show(
    models.Queue,
    ("id", "topic", "number", "node", "state"),
    filters=("state",),
    related=("topic", "node"),
    search=("=id", "topic__name", "node__name"),
)
show(
    models.ConsumerGroup,
    (
        "name",
        "mode",
        "stopped",
        "session_timeout_ms",
        "max_active_members",
        "generation",
        "owners",
        "created_at",
    ),
    filters=("mode", "stopped"),
    search=("name", "owners", "department", "description"),
)
show(
    models.ConsumerGroupTopic,
    ("group", "topic", "state", "start", "stopped", "stopped_queues", "created_at"),
    filters=("state", "stopped"),
    related=("group", "topic"),
    search=("group__name", "topic__name"),
)
show(models.Consumer, ("name", "address", "sdk", "key"), related=("key",), search=("name", "address", "sdk"))
show(
    models.ConsumerGroupConsumer,
    ("identity", "group", "generation", "joined_at"),
    related=("group",),
    search=("identity", "group__name"),
)
show(
    models.BroadcastInstance,
    ("name", "group", "epoch", "last_seen"),
    related=("group",),
    search=("name", "group__name"),
)
show(models.Heartbeat, ("membership", "last_seen"), related=("membership",), search=("membership__identity",))
show(
    models.QueueOffset,
    ("group", "queue", "owner", "target", "epoch", "target_generation", "idle_since"),
    related=("group", "queue", "owner", "target"),
    search=("group__name", "=queue__id", "owner__identity"),
)
show(
    models.RebalanceMove,
    ("rebalance", "queue", "from_member", "to_member", "pause_ms"),
    related=("rebalance", "queue"),
    search=("=queue__id", "from_member", "to_member"),
    ordering=("-id",),
)
show(
    models.DbNode,
    (
        *("name", "kind", "engine", "host", "port", "database", "state", "disk"),
        *("dedicated", "epoch", "quarantined"),
    ),
    filters=("kind", "engine", "state", "disk"),
    search=("name", "host", "database"),
)
show(
    models.NodeSize,
    ("at", "node", "bytes", "tables"),
    filters=("node",),
    search=("node__name",),
    ordering=("-at", "-id"),
)
show(
    models.Broker,
    ("name", "url", "state", "version", "started_at", "last_seen", "stopped_at"),
    filters=("state",),
    search=("name", "url"),
)
show(
    models.BrokerProcess,
    ("name", "broker", "acknowledged", "last_seen"),
    filters=("broker",),
    search=("name", "broker__name"),
)
show(
    models.Alarm,
    ("last_at", "kind", "name", "count", "detail", "since_at", "ended_at", "acknowledged_by"),
    filters=("kind", ("ended_at", admin.EmptyFieldListFilter)),
    search=("name", "detail"),
)
show(models.ClockMark, ("host", "at", "elapsed_s", "boot"), search=("host",))
show(
    models.AlarmMail,
    ("made_at", "what", "alarm", "address", "sent_at", "tries", "error"),
    filters=("what", ("sent_at", admin.EmptyFieldListFilter)),
    search=("address", "alarm__name"),
)
show(
    models.DeadLetterCount,
    ("group_ref", "messages", "last_hour", "newest_at", "counted_at", "seen_at", "seen_by"),
    search=("=group_ref",),
)
show(
    models.AuditLog,
    ("at", "actor_kind", "actor_name", "verb", "kind", "name"),
    filters=("kind", "verb", "actor_kind"),
    search=("name", "actor_name"),
)
show(
    models.JobRun,
    ("name", "state", "started_at", "finished_at", "count"),
    filters=("name", "state"),
    search=("name", "detail"),
)
show(
    models.OffsetMove,
    ("at", "group", "queue", "instance", "from_offset", "to_offset", "actor_name", "reset"),
    search=("group__name", "reset", "actor_name"),
)
show(models.Lease, ("name", "holder", "term", "expires_at"), search=("name", "holder"))
show(models.ChangeCounter, ("n", "incarnation"), search=("incarnation",))
show(models.ChangeLog, ("n", "kind", "row"), filters=("kind",), search=("=n", "=row"))
show(
    models.Redrive,
    ("id", "group", "topic", "to", "state", "total", "redriven", "created_at"),
    filters=("state",),
    search=("topic", "asked_by"),
)
show(
    models.Sample,
    ("at", "step_s", "topic_ref", "group_ref", "messages", "bytes", "errors", "lag", "lag_ms"),
    filters=("step_s",),
    search=("=topic_ref", "=group_ref"),
    ordering=("-at", "-id"),
)
show(
    models.CommitLook,
    ("at", "topic_ref", "group_ref"),
    search=("=topic_ref", "=group_ref"),
    ordering=("-id",),
)
show(
    models.Report,
    ("id", "name", "engine", "made_at", "settings"),
    filters=("name", "engine"),
    search=("name",),
)
show(models.ReportRow, ("report", "number", "values"), search=("report__name",))
show(
    get_user_model(),
    ("username", "email", "is_superuser", "is_active", "last_login"),
    search=("username", "email"),
)
show(models.UserRights, ("name", "rights"), search=("name",))
show(models.ApiKey, ("name", "rights", "created_at"), search=("name",))
show(models.KeyFingerprint, ("purpose", "fingerprint", "noted_at"), search=("fingerprint",))
show(Schedule, ("name", "func", "schedule_type", "minutes", "next_run"), search=("name", "func"))
show(Failure, ("name", "func", "started", "stopped", "success", "attempt_count"), search=("name", "func"))
show(Success, ("name", "func", "started", "stopped", "success", "attempt_count"), search=("name", "func"))
