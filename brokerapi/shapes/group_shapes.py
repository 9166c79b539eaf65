"""Consumer groups and their members."""

from __future__ import annotations

from rest_framework import serializers

from brokerapi.shapes.fields import Answer, Change, Flag, Number, Request, Text, numbers
from brokerapi.shapes.subscription_shapes import SubscriptionAnswer
from metadata.rules.settings import GROUP

_AT_START = {name: one for name, one in GROUP.items() if name != "stopped"}  # no group begins paused


class GroupCreate(Request):
    """A new consumer group."""

    settings = _AT_START
    name = Text()
    mode = serializers.ChoiceField(choices=["clustering", "broadcasting"], default="clustering")


class GroupChange(Change):
    """Changes to a group."""

    settings = GROUP


class MemberAnswer(Answer):
    """A consumer that is in a group now."""

    name = Text()
    instance_id = Text(allow_null=True)
    consumer_id_prefix = Text(help_text="names the consumer in logs, opens nothing")
    generation = Number(help_text="the one it has applied")
    address = Text()
    sdk = Text()
    joined_at_ms = Number()
    heartbeat_age_ms = Number(allow_null=True)
    queues = numbers()
    active = Flag(help_text="false: the group's limits make it stand by")


class GroupSummary(Answer):
    """A group in a list."""

    settings = _AT_START
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
