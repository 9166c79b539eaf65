"""Shapes of offsets and rebalances: lag, trend, offset resets, moves of queues."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from rest_framework import serializers

from brokerapi.shapes.fields import (
    Answer,
    Flag,
    Number,
    Request,
    Text,
    choice_of,
    numbers,
    views,
)
from messagestore.consume.group_lag import QueueLag
from messagestore.consume.offset_reset import Move
from metadata.membership import rebalance
from metadata.monitoring.lag_trends import GroupProgress
from metadata.rules.groups.lag_trend import TrendState

Rate = partial(serializers.FloatField, allow_null=True)


class OffsetsReset(Request):
    """Target of an offset reset; times are those of the node's clock."""

    topic = Text(
        required=False, help_text="only this topic; by default all topics of the group"
    )
    instance = Text(required=False, help_text="instance of a broadcasting group")
    queues = numbers(
        required=False, allow_empty=False, help_text="only these queues; by default all"
    )
    to = serializers.ChoiceField(choices=["earliest", "latest", "offset", "time", "group"])
    offset = Number(
        required=False, help_text="offset; a queue without it is set to its nearest offset"
    )
    at_ms = Number(required=False)
    ago_ms = Number(required=False)
    source_group = Text(
        required=False,
        help_text="with `group`: take over the offsets that this group has committed in `topic`",
    )
    dry_run = Flag(default=False)


class OffsetsUndo(Request):
    """Reset to undo; without a name the last one that was not undone."""

    reset = Text(required=False)
    dry_run = Flag(default=False)


# Without the reset's id, which OffsetsMoved names once.
class MoveAnswer(Answer):
    """A committed offset that moves. A move forward skips messages, a move backward repeats
    them.
    """

    view = Move
    view_fields = "topic queue number skipped repeated"
    kept = Flag(help_text="true: not moved, as `source_group` has no offset in this queue")
    asked = Number(
        allow_null=True,
        help_text="requested offset, if the queue has only the nearest one (`to`)",
    )

    def get_fields(self) -> dict[str, Any]:
        """Return the fields by name. `from` is a keyword of Python, so it cannot be declared
        like the others.
        """
        ends = {"from": Number(source="from_offset"), "to": Number(source="to_offset")}
        return {**super().get_fields(), **ends}


class OffsetsMoved(Answer):
    """Offsets that a reset moved, or with `dry_run` would move."""

    dry_run = Flag()
    reset = Text(allow_null=True, help_text="id for undoing it; null: nothing moved")
    moves = MoveAnswer(many=True)


def moves_answer(moves: Sequence[Move], *, dry_run: bool) -> dict[str, Any]:
    reset = next((move.reset for move in moves if move.reset), None)
    return OffsetsMoved.from_view(None, dry_run=dry_run, reset=reset, moves=moves)


# Without the times at which the node was read.
class LagAnswer(Answer):
    """The committed offset of a group or instance in a queue; lag = log end offset (`head`)
    - committed.
    """

    view = QueueLag
    view_fields = (
        "topic queue number committed head low lag owner epoch runs in_flight redelivered"
    )
    instance = Text(allow_null=True, help_text="null unless the group is broadcasting")
    lag_ms = Number(allow_null=True, help_text="age of the oldest unread message, ms")
    oldest_lease_ms = Number(
        allow_null=True, help_text="null unless messages are leased in a share group"
    )


# The view has trend and rates as objects, with other names.
class ProgressAnswer(Answer):
    """The trend of a group in the topics where it is not paused; rates are of the last
    minute or two.

    A message counts as handled when a commit moves the position of the group, or of one
    instance, past it.
    """

    state = choice_of(TrendState, source="trend.state")
    per_s = Rate(
        source="trend.per_s",
        help_text="messages per second by which the lag grows or shrinks; null: neither",
    )
    catches_up_in_s = Rate(
        source="trend.in_s",
        help_text="seconds until the lag is 0; null unless state is catches_up",
    )
    sent_per_s = serializers.FloatField(
        source="pace.sent", help_text="messages sent to the topics of the group"
    )
    pulled_per_s = serializers.FloatField(
        source="pace.pulled", help_text="pulled messages, including repeated ones"
    )
    handled_per_s = Rate(
        source="pace.handled", help_text="handled messages; null if not counted"
    )
    lag = Number(allow_null=True)
    lag_before = Number(allow_null=True, help_text="unread messages `between_s` ago")
    between_s = serializers.FloatField(help_text="at most about 600")


class OffsetsAnswer(Answer):
    """The offsets of a group; `lag` is the sum, `lag_ms` the maximum."""

    group = Text()
    lag = Number(allow_null=True)
    lag_ms = Number(allow_null=True)
    progress = ProgressAnswer(allow_null=True)
    queues = LagAnswer(many=True)


def offsets_answer(
    group: str, lags: Sequence[QueueLag], progress: GroupProgress | None
) -> dict[str, Any]:
    """Return the offsets of a group, its total lag and the highest age; null if one of them
    is unknown.
    """
    known_lags = [queue.lag for queue in lags if queue.lag is not None]
    ages = [queue.lag_ms for queue in lags if queue.lag_ms is not None]
    lag = sum(known_lags) if len(known_lags) == len(lags) else None
    lag_ms = max(ages, default=0) if len(ages) == len(lags) else None
    return OffsetsAnswer.from_view(
        None, group=group, lag=lag, lag_ms=lag_ms, progress=progress, queues=lags
    )


class RebalanceRequest(Request):
    """A request to rebalance a group."""

    dry_run = Flag(default=False)


# Without the id of the group.
class RebalanceMoves(Answer):
    """Moves that a rebalance made, or with `dry_run` would make."""

    dry_run = Flag()
    generation = Number()
    moves = views(rebalance.Move)
