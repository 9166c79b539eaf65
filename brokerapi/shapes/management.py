"""The shapes of management requests and answers, checked and documented by DRF serializers.

A request refuses fields it does not know and values of another type: DRF alone would ignore the
first, turn "4" into 4 and cut the blanks off a name. Answers are plain dicts of the layer below;
their serializers only document them.
"""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from brokerapi.shapes.fields import Change, Flag, Number, Request, Text
from brokerapi.shapes.subscription_shapes import SubscriptionAnswer


class _People(serializers.Serializer[Any]):
    """People who are responsible."""

    owners = Text(required=False)
    department = Text(required=False)
    alarm_emails = Text(required=False)
    description = Text(required=False)


class _Rates(serializers.Serializer[Any]):
    """Limits on sends in a second, through all brokers; null: any number."""

    max_messages_per_s = Number(required=False, allow_null=True)
    max_bytes_per_s = Number(required=False, allow_null=True, help_text="of bodies")


BYTES_HELP = (
    "null: no limit by size. MySQL and MariaDB drop whole partitions, never the one that is written to: a "
    "queue keeps at least one, which holds 100,000 messages at first"
)


class _TopicSettings(_Rates, _People):
    retention_days = Number(required=False)
    keep_unread_days = Number(required=False, help_text="0: what is unread is dropped like the rest")
    retention_bytes = Number(required=False, allow_null=True, help_text=BYTES_HELP)
    keyed = serializers.ChoiceField(choices=["strict", "available"], required=False)
    on_unknown = serializers.ChoiceField(choices=["fail", "resend"], required=False)


class TopicCreate(Request, _TopicSettings):
    """A new topic."""

    name = Text()
    queues = Number(default=4, min_value=1)
    node = Text(required=False, allow_null=True, help_text="place all queues there; else they are spread")


class TopicChange(Change, _TopicSettings):
    """Changes to a topic."""


class _GroupSettings(_People):
    session_timeout_ms = Number(required=False)
    allow_addresses = Text(required=False, help_text="addresses and networks of members; empty: all")
    deny_addresses = Text(required=False)
    max_active_members = Number(required=False, allow_null=True, help_text="further members stand by")
    alarm_lag = Number(
        required=False,
        allow_null=True,
        help_text="unread messages in a topic that are an alarm; null: as set",
    )
    alarm_lag_s = Number(
        required=False,
        allow_null=True,
        help_text="age of the oldest unread one that is an alarm, s; null: as set",
    )


class GroupCreate(Request, _GroupSettings):
    """A new consumer group."""

    name = Text()
    mode = serializers.ChoiceField(choices=["clustering", "broadcasting"], default="clustering")


class GroupChange(Change, _GroupSettings):
    """Changes to a group."""

    stopped = Flag(required=False)


class NodeCreate(Request):
    """A database to hold message tables. The password is never shown again."""

    name = Text()
    kind = serializers.ChoiceField(choices=["normal", "failure"], default="normal")
    engine = serializers.ChoiceField(choices=["mysql", "sqlite"])
    host = Text(required=False)
    port = Number(required=False)
    database = Text(allow_blank=False, help_text="the schema on mysql, the file's path on sqlite")
    username = Text(required=False)
    password = Text(required=False, write_only=True)
    dedicated = Flag(required=False, help_text="true: used only when named")
    capacity_gb = Number(required=False, allow_null=True)
    unsafe = Flag(required=False, help_text="true: accept settings that lose messages in a crash")


class NodeChange(Change):
    """Changes to a node."""

    state = serializers.ChoiceField(choices=["read_write", "read_only", "offline"], required=False)
    dedicated = Flag(required=False)
    capacity_gb = Number(required=False, allow_null=True)
    replica_host = Text(required=False, allow_blank=True, help_text="serves pulls while the node is away")
    replica_port = Number(required=False, allow_null=True)


class BrokerChange(Request):
    """Changes to a broker."""

    state = serializers.ChoiceField(choices=["in", "out"])


class KeyCreate(Request, _Rates):
    """A new API key: right → name patterns."""

    name = Text()
    rights = serializers.DictField(child=serializers.ListField(child=Text()))


class KeyChange(Change, _Rates):
    """Changes to an API key."""


# Answers -----------------------------------------------------------------------------------------


class QueueAnswer(serializers.Serializer[Any]):
    """A queue of a topic; low and head are null while its node does not answer."""

    queue = Number(help_text="the global id")
    number = Number(help_text="its place in the topic")
    node = Text()
    state = Text()
    low = Number(allow_null=True)
    head = Number(allow_null=True)


class LayoutAnswer(serializers.Serializer[Any]):
    """Slot → queue id; slot = crc32(UTF-8 key) mod 1024."""

    version = Number()
    slots = serializers.ListField(child=Number())


class TopicSummary(_TopicSettings):
    """A topic in a list; `queues` counts."""

    name = Text()
    kind = Text()
    state = Text()
    queues: Any = Number()
    created_at_ms = Number()


class TopicAnswer(TopicSummary):
    """A topic."""

    queues: Any = QueueAnswer(many=True)
    layout = LayoutAnswer()


class MemberAnswer(serializers.Serializer[Any]):
    """A consumer that is in a group now."""

    name = Text()
    instance_id = Text(allow_null=True)
    consumer_id_prefix = Text(help_text="names the consumer in logs, opens nothing")
    generation = Number(help_text="the one it has applied")
    address = Text()
    sdk = Text()
    joined_at_ms = Number()
    heartbeat_age_ms = Number(allow_null=True)
    queues = serializers.ListField(child=Number())
    active = Flag(help_text="false: the group's limits make it stand by")


class GroupSummary(_GroupSettings):
    """A group in a list."""

    name = Text()
    mode = Text()
    stopped = Flag()
    generation = Number()
    rebalancing = Flag(help_text="a new assignment is due")
    created_at_ms = Number()


class GroupAnswer(GroupSummary):
    """A group."""

    subscriptions = SubscriptionAnswer(many=True)
    members = MemberAnswer(many=True)


class NodeAnswer(serializers.Serializer[Any]):
    """A node, without its password."""

    name = Text()
    kind = Text()
    engine = Text()
    host = Text()
    port = Number(allow_null=True)
    database = Text()
    username = Text()
    state = Text()
    dedicated = Flag()
    epoch = Number()
    capacity_gb = Number(allow_null=True)
    replica_host = Text()
    replica_port = Number(allow_null=True)
    reader_username = Text(help_text="with which jobs read it; empty if there is none")
    quarantined = Text(help_text="why no broker serves it; empty if they do")
    disk = Text(help_text="ok, low, or full: it stores nothing more")
    queues = Number()
    created_at_ms = Number()


class BrokerAnswer(serializers.Serializer[Any]):
    """A broker; clients use those that are alive and in."""

    name = Text()
    url = Text()
    state = Text(help_text="in, or out: it takes no work")
    alive = Flag(help_text="seen within 10 s, and it did not say that it stops")
    version = Text()
    started_at_ms = Number()
    last_seen_at_ms = Number()
    stopped_at_ms = Number(allow_null=True, help_text="when it said that it stops")


class KeyAnswer(_Rates):
    """An API key, without its secret."""

    name = Text()
    rights = serializers.DictField(child=serializers.ListField(child=Text()))
    created_at_ms = Number()


class NewKeyAnswer(KeyAnswer):
    """A new API key; `api_key` is shown this once."""

    api_key = Text()


class AboutAnswer(serializers.Serializer[Any]):
    """Version and limits."""

    name = Text()
    version = Text()
    api_version = Number()
    limits = serializers.DictField(child=Number())
