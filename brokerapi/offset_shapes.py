"""The shapes of moving offsets by hand; see serializers."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from brokerapi.fields import Flag, Number, Request, Text


class OffsetsReset(Request):
    """Where to move a group's positions; times are those of the node's clock."""

    topic = Text(required=False, help_text="else all topics that the group reads")
    instance = Text(required=False, help_text="whose, in a broadcasting group")
    queues = serializers.ListField(child=Number(), required=False, allow_empty=False, help_text="else all")
    to = serializers.ChoiceField(choices=["earliest", "latest", "offset", "time"])
    offset = Number(required=False, help_text="the nearest that a queue has, where it has not this one")
    at_ms = Number(required=False)
    ago_ms = Number(required=False)
    dry_run = Flag(default=False)


class OffsetsUndo(Request):
    """Which reset to undo; without a name the last one that was not undone."""

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
    """What a reset moved, or with `dry_run` would move."""

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
