"""Consumer groups and their members."""

from __future__ import annotations

from brokerapi.shapes.fields import Answer, Change, Flag, Request, Text, choice_of, views
from brokerapi.shapes.subscription_shapes import SubscriptionAnswer
from metadata.groups.groups import GroupView, MemberView
from metadata.rules.groups.states import GroupMode
from metadata.rules.settings import GROUP

# no group begins paused
_AT_START = {name: setting for name, setting in GROUP.items() if name != "stopped"}


class GroupCreate(Request):
    """A new consumer group."""

    settings = _AT_START
    name = Text()
    mode = choice_of(GroupMode, default=GroupMode.CLUSTERING)


class GroupChange(Change):
    """Changes to a group."""

    settings = GROUP


# The settings have the form that requests give them; the id and `casual` are left out.
class GroupSummary(Answer):
    """A group in a list."""

    settings = _AT_START
    view = GroupView
    view_fields = "name mode stopped generation created_at_ms"
    rebalancing = Flag(help_text="a new assignment is due")


class GroupAnswer(GroupSummary):
    """A group."""

    subscriptions = SubscriptionAnswer(many=True)
    members = views(MemberView)
