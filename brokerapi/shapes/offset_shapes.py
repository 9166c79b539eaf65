"""The shapes of offsets and rebalances: lag, moving offsets by hand, sharing queues anew."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, get_args

from rest_framework import serializers

from brokerapi.shapes.fields import Answer, Flag, FromTo, Number, Request, Text, numbers
from messagestore.consume.lag import QueueLag
from messagestore.consume.offset_reset import Move
from metadata.monitoring.progress import GroupProgress
from metadata.rules.groups.progress import State

Rate = partial(serializers.FloatField, allow_null=True)


class OffsetsReset(Request):
    """Target of a reset of a group's positions; times are those of the node's clock."""

    topic = Text(required=False, help_text="else all topics that the group reads")
    instance = Text(required=False, help_text="whose, in a broadcasting group")
    queues = numbers(required=False, allow_empty=False, help_text="else all")
    to = serializers.ChoiceField(choices=["earliest", "latest", "offset", "time"])
    offset = Number(required=False, help_text="the nearest that a queue has, where it has not this one")
    at_ms = Number(required=False)
    ago_ms = Number(required=False)
    dry_run = Flag(default=False)


class OffsetsUndo(Request):
    """Reset to undo; without a name the last one that was not undone."""

    reset = Text(required=False)
    dry_run = Flag(default=False)


class MoveAnswer(FromTo):
    """A position that moves: forward it skips messages, backward it repeats them."""

    topic = Text()
    queue = Number()
    number = Number()
    skipped = Number()
    repeated = Number()
    asked = Number(allow_null=True, help_text="what was asked for, if `to` is only the nearest there is")


class OffsetsMoved(Answer):
    """Offsets that a reset moved, or with `dry_run` would move."""

    dry_run = Flag()
    reset = Text(allow_null=True, help_text="what it is undone by; null: nothing moved")
    moves = MoveAnswer(many=True)


def moved(made: Sequence[Move], *, dry_run: bool) -> dict[str, Any]:
    """Return the offsets that a reset moved, or would move."""
    return OffsetsMoved.of(None, dry_run=dry_run, reset=made[0].reset or None if made else None, moves=made)


class PastMoveAnswer(FromTo):
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


class LagAnswer(Answer):
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


class ProgressAnswer(Answer):
    """The trend of a group in the topics where it is not paused; rates are of the last minute or two.

    A message counts as handled when a commit moves the position of the group, or of one instance, past it.
    """

    state = serializers.ChoiceField(choices=list(get_args(State)), source="said.state")
    per_s = Rate(
        source="said.per_s",
        help_text="by so many messages a second the lag grows or shrinks; null: it does neither",
    )
    catches_up_in_s = Rate(source="said.in_s", help_text="s from now; null unless state is catches_up")
    sent_per_s = serializers.FloatField(source="pace.sent", help_text="to the topics of the group")
    pulled_per_s = serializers.FloatField(source="pace.pulled", help_text="the same messages again, too")
    handled_per_s = Rate(source="pace.handled", help_text="null where it was not counted")
    lag = Number(allow_null=True)
    lag_before = Number(allow_null=True, help_text="what was unread `between_s` ago")
    between_s = serializers.FloatField(help_text="at most about 600")


class OffsetsAnswer(Answer):
    """The positions of a group; `lag` is the sum, `lag_ms` the worst."""

    group = Text()
    lag = Number(allow_null=True)
    lag_ms = Number(allow_null=True)
    progress = ProgressAnswer(allow_null=True)
    queues = LagAnswer(many=True)


def offsets(group: str, lags: Sequence[QueueLag], found: GroupProgress | None) -> dict[str, Any]:
    """Return a group's offsets, sum of lags and worst age, null while one of them is not known."""
    behind = [one.lag for one in lags if one.lag is not None]
    ages = [one.lag_ms for one in lags if one.lag_ms is not None]
    lag = sum(behind) if len(behind) == len(lags) else None
    lag_ms = max(ages, default=0) if len(ages) == len(lags) else None
    return OffsetsAnswer.of(None, group=group, lag=lag, lag_ms=lag_ms, progress=found, queues=lags)


class RebalanceRequest(Request):
    """A wish to share a group's queues anew."""

    dry_run = Flag(default=False)


class _QueueMove(FromTo):
    field = (Text, {"allow_null": True})
    queue = Number()
    topic = Text()


class PlannedMove(_QueueMove):
    """A queue that goes from one member to another (null: nobody)."""

    sources = ("source", "target")
    at_once = Flag(help_text="nobody has to give it up first")


class PastMove(_QueueMove):
    """A queue that went from one member to another (null: nobody), and how long it stood still."""

    sources = ("from_member", "to_member")
    pause_ms = Number(allow_null=True, help_text="null while it does, or when it moved on before")


class RebalanceMoves(Answer):
    """Moves that a rebalance made, or with `dry_run` would make."""

    dry_run = Flag()
    generation = Number()
    moves = PlannedMove(many=True)


class RebalanceAnswer(Answer):
    """A rebalance of the past; `assignment` maps members to the queues meant for them."""

    id = Number()
    generation = Number()
    cause = Text()
    at_ms = Number()
    assignment = serializers.DictField(child=numbers())
    moves = PastMove(many=True)
