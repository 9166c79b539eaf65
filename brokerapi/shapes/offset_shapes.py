"""The shapes of offsets and rebalances: lag, moving offsets by hand, sharing queues anew."""

from __future__ import annotations

from functools import partial
from typing import Any, get_args

from rest_framework import serializers

from brokerapi.shapes.fields import Flag, Number, Request, Text
from metadata.rules.groups.progress import State

Rate = partial(serializers.FloatField, allow_null=True)


class OffsetsReset(Request):
    """Target of a reset of a group's positions; times are those of the node's clock."""

    topic = Text(required=False, help_text="else all topics that the group reads")
    instance = Text(required=False, help_text="whose, in a broadcasting group")
    queues = serializers.ListField(child=Number(), required=False, allow_empty=False, help_text="else all")
    to = serializers.ChoiceField(choices=["earliest", "latest", "offset", "time"])
    offset = Number(required=False, help_text="the nearest that a queue has, where it has not this one")
    at_ms = Number(required=False)
    ago_ms = Number(required=False)
    dry_run = Flag(default=False)


class OffsetsUndo(Request):
    """Reset to undo; without a name the last one that was not undone."""

    reset = Text(required=False)
    dry_run = Flag(default=False)


class _FromTo(serializers.Serializer[Any]):
    to = Number()

    def get_fields(self) -> dict[str, Any]:
        """The fields; `from` is a word of Python and cannot stand among the others."""
        return {**super().get_fields(), "from": Number()}


class MoveAnswer(_FromTo):
    """A position that moves: forward it skips messages, backward it repeats them."""

    topic = Text()
    queue = Number()
    number = Number()
    skipped = Number()
    repeated = Number()
    asked = Number(allow_null=True, help_text="what was asked for, if `to` is only the nearest there is")


class OffsetsMoved(serializers.Serializer[Any]):
    """Offsets that a reset moved, or with `dry_run` would move."""

    dry_run = Flag()
    reset = Text(allow_null=True, help_text="what it is undone by; null: nothing moved")
    moves = MoveAnswer(many=True)


class PastMoveAnswer(_FromTo):
    """A move of the past; those with the same `reset` were asked for together."""

    id = Number()
    reset = Text()
    topic = Text()
    queue = Number()
    number = Number()
    instance = Text(allow_null=True)
    done = Flag(help_text="false: begun, and perhaps not made")
    undoes = Text(allow_null=True, help_text="the reset that this one undid")
    at_ms = Number()
    actor = Text()


class LagAnswer(serializers.Serializer[Any]):
    """The position of a group, or of a broadcasting one's instance, in a queue; lag = head - committed."""

    topic = Text()
    queue = Number()
    number = Number()
    instance = Text(allow_null=True, help_text="null unless the group broadcasts")
    committed = Number(allow_null=True)
    head = Number(allow_null=True)
    low = Number(allow_null=True)
    lag = Number(allow_null=True)
    lag_ms = Number(allow_null=True, help_text="age of the first unread message")
    owner = Text(allow_null=True)
    epoch = Number()


class ProgressAnswer(serializers.Serializer[Any]):
    """The trend of a group in the topics where it is not paused; rates are of the last minute or two.

    A message counts as handled when a commit moves the position of the group, or of one instance, past it.
    """

    state = serializers.ChoiceField(choices=list(get_args(State)))
    per_s = Rate(help_text="by so many messages a second the lag grows or shrinks; null: it does neither")
    catches_up_in_s = Rate(help_text="s from now; null unless state is catches_up")
    sent_per_s = serializers.FloatField(help_text="to the topics of the group")
    pulled_per_s = serializers.FloatField(help_text="the same messages again, too")
    handled_per_s = Rate(help_text="null where it was not counted")
    lag = Number(allow_null=True)
    lag_before = Number(allow_null=True, help_text="what was unread `between_s` ago")
    between_s = serializers.FloatField(help_text="at most about 600")


class OffsetsAnswer(serializers.Serializer[Any]):
    """The positions of a group; `lag` is the sum, `lag_ms` the worst."""

    group = Text()
    lag = Number(allow_null=True)
    lag_ms = Number(allow_null=True)
    progress = ProgressAnswer(allow_null=True)
    queues = LagAnswer(many=True)


class RebalanceRequest(Request):
    """A wish to share a group's queues anew."""

    dry_run = Flag(default=False)


class _QueueMove(serializers.Serializer[Any]):
    queue = Number()
    topic = Text()
    to = Text(allow_null=True)

    def get_fields(self) -> dict[str, Any]:
        """The fields; `from` is a word of Python and cannot stand among the others."""
        return {**super().get_fields(), "from": Text(allow_null=True)}


class PlannedMove(_QueueMove):
    """A queue that goes from one member to another (null: nobody)."""

    at_once = Flag(help_text="nobody has to give it up first")


class PastMove(_QueueMove):
    """A queue that went from one member to another (null: nobody), and how long it stood still."""

    pause_ms = Number(allow_null=True, help_text="null while it does, or when it moved on before")


class RebalanceMoves(serializers.Serializer[Any]):
    """Moves that a rebalance made, or with `dry_run` would make."""

    dry_run = Flag()
    generation = Number()
    moves = PlannedMove(many=True)


class RebalanceAnswer(serializers.Serializer[Any]):
    """A rebalance of the past; `assignment` maps members to the queues meant for them."""

    id = Number()
    generation = Number()
    cause = Text()
    at_ms = Number()
    assignment = serializers.DictField(child=serializers.ListField(child=Number()))
    moves = PastMove(many=True)
