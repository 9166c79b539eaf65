"""Consumer groups and their members."""

from __future__ import annotations

from rest_framework import serializers

from brokerapi.shapes.fields import Answer, Change, Flag, Number, Request, Text, numbers
from brokerapi.shapes.subscription_shapes import SubscriptionAnswer
from metadata.groups.groups import GroupView, MemberView
from metadata.rules.settings import GROUP

_AT_START = {name: one for name, one in GROUP.items() if name != "stopped"}  # no group begins paused


class GroupCreate(Request):
    """A new consumer group."""

    settings = _AT_START
    name = Text()
    mode = serializers.ChoiceField(choices=["clustering", "broadcasting", "share"], default="clustering")


class GroupChange(Change):
    """Changes to a group."""

    settings = GROUP


class MemberAnswer(Answer):
    """A member of a group."""

    view = MemberView
    shown = "name instance_id address sdk joined_at_ms heartbeat_age_ms"
    consumer_id_prefix = Text(help_text="beginning of the consumer id, as in logs; not valid as an id")
    generation = Number(help_text="generation that it has applied")
    queues = numbers()
    active = Flag(help_text="false: it stands by because of the group's limits")


class GroupSummary(Answer):
    """A group in a list."""

    settings = _AT_START
    view = GroupView
    shown = "name mode stopped generation created_at_ms"
    rebalancing = Flag(help_text="a new assignment is due")


class GroupAnswer(GroupSummary):
    """A group."""

    subscriptions = SubscriptionAnswer(many=True)
    members = MemberAnswer(many=True)
