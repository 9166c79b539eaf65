"""Consumer groups and their members."""

from __future__ import annotations

from brokerapi.shapes.fields import (
    Answer,
    Change,
    Flag,
    Number,
    Request,
    Text,
    choice_of,
    numbers,
)
from brokerapi.shapes.subscription_shapes import SubscriptionAnswer
from metadata.groups.groups import GroupView, MemberView
from metadata.rules.groups.states import GroupMode
from metadata.rules.membership.process_report import ProcessReport, SlowHandler
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


class SlowHandlerAnswer(Answer):
    """The handler call of a process that runs for the longest time, and the first message
    of it.
    """

    view = SlowHandler
    view_fields = "queue offset"
    running_ms = Number(help_text="for how long it ran when the process reported it")


class ProcessAnswer(Answer):
    """Report of a member's process about itself."""

    view = ProcessReport
    threads = Number(help_text="threads for handlers")
    busy = Number(help_text="threads in which a handler is at work")
    buffered = Number(help_text="messages in memory that no handler has begun")
    buffered_bytes = Number(help_text="bytes of their bodies")
    handled = Number(help_text="messages handled since the process started")
    failed = Number(help_text="attempts that failed since then")
    slowest = SlowHandlerAnswer(
        allow_null=True, help_text="null while no handler is at work"
    )


class MemberAnswer(Answer):
    """A member of a group."""

    view = MemberView
    view_fields = "name instance_id address sdk joined_at_ms heartbeat_age_ms"
    consumer_id_prefix = Text(
        help_text="beginning of the consumer id, as in logs; not valid as an id"
    )
    generation = Number(help_text="generation that it has applied")
    queues = numbers()
    active = Flag(help_text="false: it stands by because of the group's limits")
    process = ProcessAnswer(allow_null=True, help_text="null: its client reports nothing")
    process_age_ms = Number(allow_null=True, help_text="time since that report")


class GroupSummary(Answer):
    """A group in a list."""

    settings = _AT_START
    view = GroupView
    view_fields = "name mode stopped generation created_at_ms"
    rebalancing = Flag(help_text="a new assignment is due")


class GroupAnswer(GroupSummary):
    """A group."""

    subscriptions = SubscriptionAnswer(many=True)
    members = MemberAnswer(many=True)
