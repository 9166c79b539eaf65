"""The shapes of rebalances: asking for one, its plan, the history."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from brokerapi.shapes.fields import Flag, Number, Request, Text


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
