"""Lists of the metadata tables: their columns, filters and searched columns."""

from __future__ import annotations

from django.contrib import admin
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.db.models import Model
from django_q.models import Failure, OrmQ, Schedule, Success

from metadata import models
from portal.admin.readonly import ReadOnlyAdmin

# Django's own pages would change accounts without an audit row. Those of django-q would let a
# browser run any function.
for model in (Group, get_user_model(), Failure, OrmQ, Schedule, Success):
    admin.site.unregister(model)


def register(
    model: type[Model], columns: str, *, search: str, filters: str = "", ordering: str = ""
) -> None:
    """Register the list of a table.

    `columns`, `search`, `filters` and `ordering` are names, separated by blanks. A filter
    with a trailing ? asks whether the column is empty.
    """
    # Joined, so that a list needs a single query.
    foreign_keys = {field.name for field in model._meta.fields if field.is_relation}
    admin.site.register(
        model,
        ReadOnlyAdmin,
        list_display=columns.split(),
        search_fields=search.split(),
        list_filter=[
            ((name[:-1], admin.EmptyFieldListFilter) if name.endswith("?") else name)
            for name in filters.split()
        ],
        list_select_related=[name for name in columns.split() if name in foreign_keys]
        or False,
        ordering=ordering.split() or None,
    )


register(
    models.Topic,
    "name kind state keyed retention_days owners department created_at",
    search="name owners department description",
    filters="kind state",
)
register(models.TopicRouting, "topic until_at keyed queues", search="topic__name")
register(
    models.HandlingTrace,
    "at group_ref queue_ref message_offset member attempt outcome took_ms",
    search="=group_ref =queue_ref =message_offset member",
    filters="outcome",
    ordering="-id",
)
register(
    models.JavaCaller,
    "address sdk last_seen answered refused limited",
    search="address sdk",
    ordering="-last_seen",
)
register(
    models.TopicProducer,
    "topic_ref name address sdk first_seen last_seen messages",
    search="=topic_ref name address sdk",
    ordering="-last_seen",
)
register(
    models.Queue,
    "id topic number node state",
    search="=id topic__name node__name",
    filters="state",
)
register(
    models.ConsumerGroup,
    "name mode stopped session_timeout_ms max_active_members generation owners created_at",
    search="name owners department description",
    filters="mode stopped",
)
register(
    models.ConsumerGroupTopic,
    "group topic state start stopped stopped_queues created_at",
    search="group__name topic__name",
    filters="state stopped",
)
register(models.Consumer, "name address sdk key", search="name address sdk")
register(
    models.ConsumerGroupConsumer,
    "identity group generation joined_at",
    search="identity group__name",
)
register(models.BroadcastInstance, "name group epoch last_seen", search="name group__name")
register(models.Heartbeat, "membership last_seen", search="membership__identity")
register(
    models.QueueOffset,
    "group queue owner target epoch target_generation idle_since",
    search="group__name =queue__id owner__identity",
)
register(
    models.RebalanceMove,
    "rebalance queue from_member to_member pause_ms",
    search="=queue__id from_member to_member",
    ordering="-id",
)
register(
    models.DbNode,
    "name kind engine host port database state disk dedicated epoch quarantined",
    search="name host database",
    filters="kind engine state disk",
)
register(
    models.NodeSize,
    "at node bytes tables",
    search="node__name",
    filters="node",
    ordering="-at -id",
)
register(
    models.Broker,
    "name url state version started_at last_seen stopped_at",
    search="name url",
    filters="state",
)
register(
    models.BrokerProcess,
    "name broker acknowledged last_seen",
    search="name broker__name",
    filters="broker",
)
register(
    models.Alarm,
    "last_at kind name count detail since_at ended_at acknowledged_by",
    search="name detail",
    filters="kind ended_at?",
)
register(models.ClockMark, "host at elapsed_s boot", search="host")
register(
    models.AlarmMail,
    "made_at what alarm address sent_at tries error",
    search="address alarm__name",
    filters="what sent_at?",
)
register(
    models.DeadLetterCount,
    "group_ref messages last_hour newest_at counted_at seen_at seen_by",
    search="=group_ref",
)
register(
    models.AuditLog,
    "at actor_kind actor_name verb kind name",
    search="name actor_name",
    filters="kind verb actor_kind",
)
register(
    models.JobRun,
    "name state started_at finished_at count",
    search="name detail",
    filters="name state",
)
register(
    models.OffsetMove,
    "at group queue instance from_offset to_offset actor_name reset",
    search="group__name reset actor_name",
)
register(models.Lease, "name holder term expires_at", search="name holder")
register(models.ChangeCounter, "n incarnation", search="incarnation")
register(models.ChangeLog, "n kind row", search="=n =row", filters="kind")
register(
    models.Redrive,
    "id group topic to state total redriven created_at",
    search="topic asked_by",
    filters="state",
)
register(
    models.Sample,
    "at step_s topic_ref group_ref messages bytes errors lag lag_ms",
    search="=topic_ref =group_ref",
    filters="step_s",
    ordering="-at -id",
)
register(
    models.CommitLook,
    "at topic_ref group_ref",
    search="=topic_ref =group_ref",
    ordering="-id",
)
register(
    models.Report, "id name engine made_at settings", search="name", filters="name engine"
)
register(models.ReportRow, "report number values", search="report__name")
register(
    get_user_model(),
    "username email is_superuser is_active last_login",
    search="username email",
)
register(models.SavedFilter, "user page name query", search="user name", filters="page")
register(models.UserRights, "name rights", search="name")
register(models.ApiKey, "name rights created_at", search="name")
register(models.KeyFingerprint, "purpose fingerprint noted_at", search="fingerprint")
register(Schedule, "name func schedule_type minutes next_run", search="name func")
register(Failure, "name func started stopped success attempt_count", search="name func")
register(Success, "name func started stopped success attempt_count", search="name func")
register(OrmQ, "id key lock", search="key")
