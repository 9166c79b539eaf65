"""Lists of the metadata, by table: columns, filters, and the columns that a search looks
at.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.db.models import Model
from django_q.models import Failure, OrmQ, Schedule, Success

from metadata import models
from portal.admin.readonly import ReadOnlyAdmin

# Django's own pages would change accounts past the audit log, and those of django-q would
# let a browser name
# any function to be run.
for model in (Group, get_user_model(), Failure, OrmQ, Schedule, Success):
    admin.site.unregister(model)


def show(
    model: type[Model], columns: str, *, search: str, filters: str = "", ordering: str = ""
) -> None:
    """Give a table its list, of columns with blanks between them; `filters` with a ?:
    whether it is empty.
    """
    foreign = {field.name for field in model._meta.fields if field.is_relation}
    admin.site.register(
        model,
        ReadOnlyAdmin,
        list_display=columns.split(),
        search_fields=search.split(),
        list_filter=[_filter(one) for one in filters.split()],
        list_select_related=[one for one in columns.split() if one in foreign] or False,
        ordering=ordering.split() or None,
    )


def _filter(column: str) -> Any:
    return (column[:-1], admin.EmptyFieldListFilter) if column.endswith("?") else column


show(
    models.Topic,
    "name kind state keyed retention_days owners department created_at",
    search="name owners department description",
    filters="kind state",
)
show(models.TopicRouting, "topic until_at keyed queues", search="topic__name")
show(
    models.HandlingTrace,
    "at group_ref queue_ref message_offset member attempt outcome took_ms",
    search="=group_ref =queue_ref =message_offset member",
    filters="outcome",
    ordering="-id",
)
show(
    models.JavaCaller,
    "address sdk last_seen answered refused limited",
    search="address sdk",
    ordering="-last_seen",
)
show(
    models.TopicProducer,
    "topic_ref name address sdk first_seen last_seen messages",
    search="=topic_ref name address sdk",
    ordering="-last_seen",
)
show(
    models.Queue,
    "id topic number node state",
    search="=id topic__name node__name",
    filters="state",
)
show(
    models.ConsumerGroup,
    "name mode stopped session_timeout_ms max_active_members generation owners created_at",
    search="name owners department description",
    filters="mode stopped",
)
show(
    models.ConsumerGroupTopic,
    "group topic state start stopped stopped_queues created_at",
    search="group__name topic__name",
    filters="state stopped",
)
show(models.Consumer, "name address sdk key", search="name address sdk")
show(
    models.ConsumerGroupConsumer,
    "identity group generation joined_at",
    search="identity group__name",
)
show(models.BroadcastInstance, "name group epoch last_seen", search="name group__name")
show(models.Heartbeat, "membership last_seen", search="membership__identity")
show(
    models.QueueOffset,
    "group queue owner target epoch target_generation idle_since",
    search="group__name =queue__id owner__identity",
)
show(
    models.RebalanceMove,
    "rebalance queue from_member to_member pause_ms",
    search="=queue__id from_member to_member",
    ordering="-id",
)
show(
    models.DbNode,
    "name kind engine host port database state disk dedicated epoch quarantined",
    search="name host database",
    filters="kind engine state disk",
)
show(
    models.NodeSize,
    "at node bytes tables",
    search="node__name",
    filters="node",
    ordering="-at -id",
)
show(
    models.Broker,
    "name url state version started_at last_seen stopped_at",
    search="name url",
    filters="state",
)
show(
    models.BrokerProcess,
    "name broker acknowledged last_seen",
    search="name broker__name",
    filters="broker",
)
show(
    models.Alarm,
    "last_at kind name count detail since_at ended_at acknowledged_by",
    search="name detail",
    filters="kind ended_at?",
)
show(models.ClockMark, "host at elapsed_s boot", search="host")
show(
    models.AlarmMail,
    "made_at what alarm address sent_at tries error",
    search="address alarm__name",
    filters="what sent_at?",
)
show(
    models.DeadLetterCount,
    "group_ref messages last_hour newest_at counted_at seen_at seen_by",
    search="=group_ref",
)
show(
    models.AuditLog,
    "at actor_kind actor_name verb kind name",
    search="name actor_name",
    filters="kind verb actor_kind",
)
show(
    models.JobRun,
    "name state started_at finished_at count",
    search="name detail",
    filters="name state",
)
show(
    models.OffsetMove,
    "at group queue instance from_offset to_offset actor_name reset",
    search="group__name reset actor_name",
)
show(models.Lease, "name holder term expires_at", search="name holder")
show(models.ChangeCounter, "n incarnation", search="incarnation")
show(models.ChangeLog, "n kind row", search="=n =row", filters="kind")
show(
    models.Redrive,
    "id group topic to state total redriven created_at",
    search="topic asked_by",
    filters="state",
)
show(
    models.Sample,
    "at step_s topic_ref group_ref messages bytes errors lag lag_ms",
    search="=topic_ref =group_ref",
    filters="step_s",
    ordering="-at -id",
)
show(
    models.CommitLook,
    "at topic_ref group_ref",
    search="=topic_ref =group_ref",
    ordering="-id",
)
show(models.Report, "id name engine made_at settings", search="name", filters="name engine")
show(models.ReportRow, "report number values", search="report__name")
show(
    get_user_model(),
    "username email is_superuser is_active last_login",
    search="username email",
)
show(models.SavedFilter, "user page name query", search="user name", filters="page")
show(models.UserRights, "name rights", search="name")
show(models.ApiKey, "name rights created_at", search="name")
show(models.KeyFingerprint, "purpose fingerprint noted_at", search="fingerprint")
show(Schedule, "name func schedule_type minutes next_run", search="name func")
show(Failure, "name func started stopped success attempt_count", search="name func")
show(Success, "name func started stopped success attempt_count", search="name func")
show(OrmQ, "id key lock", search="key")
