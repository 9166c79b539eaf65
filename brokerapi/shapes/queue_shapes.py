"""The shapes of queues of a topic and of read plans (see management), and what fills them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rest_framework import serializers

from brokerapi.shapes.fields import Flag, Number, Request, Text
from messagestore.topology.drains import QueueDrain, Unread
from messagestore.topology.queues import Change
from metadata.topics.topic_rows import QueueView

_QUEUE = ("queue", "number", "node", "state")


class ExpandRequest(Request):
    """More queues for a topic."""

    queues = Number(help_text="how many more")
    node = Text(required=False, allow_null=True, help_text="put them there; else they are spread")
    dry_run = Flag(default=False)


class ShrinkRequest(Request):
    """Queues to take out of use: either their ids or how many, the newest first."""

    queues = serializers.ListField(child=Number(), required=False)
    count = Number(required=False)
    dry_run = Flag(default=False)


class QueueChange(Request):
    """Changes to a queue."""

    state = serializers.ChoiceField(choices=["read_only", "read_write"])


class UnreadAnswer(serializers.Serializer[Any]):
    """Number of messages that a group has not read; null while a node does not answer."""

    group = Text()
    messages = Number(allow_null=True, help_text="of the slowest instance, if the group broadcasts")


class ChangedQueue(serializers.Serializer[Any]):
    """A queue that was added, or drains."""

    queue = Number(allow_null=True, help_text="the global id; null for one that is not made")
    number = Number(help_text="its place in the topic")
    node = Text()
    state = Text()


class LayoutChangeAnswer(serializers.Serializer[Any]):
    """Changes that an expansion or a shrinking made, or with `dry_run` would make."""

    topic = Text()
    dry_run = Flag()
    layout_version = Number()
    queues = ChangedQueue(many=True)
    moved_slots = Number(help_text="of 1,024")
    moved_share = serializers.FloatField(help_text="the share of keys that go to another queue, 0 to 1")
    unread = UnreadAnswer(many=True, help_text="by group, in the queues that lose slots")


class QueueState(serializers.Serializer[Any]):
    """A queue of a topic; low and head are null while its node does not answer."""

    queue = Number()
    number = Number()
    node = Text()
    state = Text()
    slots = Number(help_text="of 1,024; keys in them come here")
    draining = Flag(help_text="it is read to its end and retired then")
    low = Number(allow_null=True)
    head = Number(allow_null=True)
    unread = UnreadAnswer(many=True, help_text="by group")


def change(made: Change) -> dict[str, Any]:
    """Return the changes that an expansion or a shrinking made, or would make."""
    return {
        "topic": made.topic,
        "dry_run": made.dry_run,
        "layout_version": made.layout_version,
        "queues": [
            _planned(one) if made.dry_run and one.state == "creating" else _queue(one) for one in made.queues
        ],
        "moved_slots": made.moved_slots,
        "moved_share": round(made.moved_share, 4),
        "unread": _unread(made.unread),
    }


def state(drain: QueueDrain) -> dict[str, Any]:
    """A queue, and what is unread in it."""
    own = {name: getattr(drain, name) for name in ("slots", "draining", "low", "head")}
    return {**_queue(drain.queue), **own, "unread": _unread(drain.unread)}


def _queue(view: QueueView) -> dict[str, Any]:
    return {name: getattr(view, name) for name in _QUEUE}


def _planned(view: QueueView) -> dict[str, Any]:
    return {**_queue(view), "queue": None}


def _unread(unread: Iterable[Unread]) -> list[dict[str, Any]]:
    return [{"group": one.group, "messages": one.messages} for one in unread]


class PlannedQueueAnswer(serializers.Serializer[Any]):
    """A queue: the offsets low … head - 1 of its table may be read, without those in the gaps."""

    queue = Number(help_text="the global id")
    number = Number(help_text="its place in the topic")
    node = Text()
    table = Text()
    low = Number()
    head = Number(help_text="durable: what is below it stays")
    gaps = serializers.ListField(
        child=serializers.ListField(child=Number()),
        help_text="offsets lost with a node: from, to (excluded)",
    )


class PlannedNodeAnswer(serializers.Serializer[Any]):
    """A node; user name and password are empty if it has no reader account, or the key no admin on all."""

    name = Text()
    engine = Text()
    host = Text()
    port = Number()
    database = Text(help_text="the schema on mysql, the file's path on sqlite")
    identity = Text(help_text="tells this node's data from any other's")
    username = Text()
    password = Text()


class ReadPlanAnswer(serializers.Serializer[Any]):
    """Queues and nodes that hold a topic's messages."""

    topic = Text()
    queues = PlannedQueueAnswer(many=True)
    nodes = PlannedNodeAnswer(many=True)
