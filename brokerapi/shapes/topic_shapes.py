"""Topics and their queues, growing and shrinking, read plans."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from brokerapi.shapes.fields import Answer, Change, Count, Flag, Number, Request, Text, numbers
from messagestore.topology import queues
from messagestore.topology.topics import TopicState
from metadata.rules.settings import TOPIC


class TopicCreate(Request):
    """A new topic."""

    settings = TOPIC
    name = Text()
    queues = Number(default=4, min_value=1)
    node = Text(required=False, allow_null=True, help_text="place all queues there; else they are spread")


class TopicChange(Change):
    """Changes to a topic."""

    settings = TOPIC


class _PlacedQueue(Answer):
    queue = Number(source="queue.queue", help_text="the global id")
    number = Number(source="queue.number", help_text="its place in the topic")
    node = Text(source="queue.node")
    state = Text(source="queue.state")
    low = Number(allow_null=True)
    head = Number(allow_null=True)


class QueueAnswer(_PlacedQueue):
    """A queue of a topic; low and head are null while its node does not answer."""


class LayoutAnswer(Answer):
    """Slot → queue id; slot = crc32(UTF-8 key) mod 1024."""

    version = Number(source="layout_version")
    slots = numbers(source="layout")


class TopicSummary(Answer):
    """A topic in a list; `queues` counts."""

    settings = TOPIC
    name = Text()
    kind = Text()
    state = Text()
    queues: Any = Count()
    created_at_ms = Number()


class TopicAnswer(TopicSummary):
    """A topic."""

    queues: Any = QueueAnswer(many=True)
    layout = LayoutAnswer()


def topic(state: TopicState) -> dict[str, Any]:
    """Return a topic with its layout and its queues."""
    return TopicAnswer.of(state.topic, queues=state.queues, layout=state.topic)


class ExpandRequest(Request):
    """More queues for a topic."""

    queues = Number(help_text="how many more")
    node = Text(required=False, allow_null=True, help_text="put them there; else they are spread")
    dry_run = Flag(default=False)


class ShrinkRequest(Request):
    """Queues to take out of use: either their ids or how many, the newest first."""

    queues = numbers(required=False)
    count = Number(required=False)
    dry_run = Flag(default=False)


class QueueChange(Request):
    """Changes to a queue."""

    state = serializers.ChoiceField(choices=["read_only", "read_write"])


class UnreadAnswer(Answer):
    """Number of messages that a group has not read; null while a node does not answer."""

    group = Text()
    messages = Number(allow_null=True, help_text="of the slowest instance, if the group broadcasts")


class ChangedQueue(Answer):
    """A queue that was added, or drains."""

    queue = Number(allow_null=True, help_text="the global id; null for one that is not made")
    number = Number(help_text="its place in the topic")
    node = Text()
    state = Text()


class LayoutChangeAnswer(Answer):
    """Changes that an expansion or a shrinking made, or with `dry_run` would make."""

    topic = Text()
    dry_run = Flag()
    layout_version = Number()
    queues = ChangedQueue(many=True)
    moved_slots = Number(help_text="of 1,024")
    moved_share = serializers.FloatField(help_text="the share of keys that go to another queue, 0 to 1")
    unread = UnreadAnswer(many=True, help_text="by group, in the queues that lose slots")


class QueueState(_PlacedQueue):
    """A queue of a topic; low and head are null while its node does not answer."""

    slots = Number(help_text="of 1,024; keys in them come here")
    draining = Flag(help_text="it is read to its end and retired then")
    unread = UnreadAnswer(many=True, help_text="by group")


def change(made: queues.Change) -> dict[str, Any]:
    """Return the changes that an expansion or a shrinking made, or would make."""
    shown = [
        ChangedQueue.of(one, queue=None if made.dry_run and one.state == "creating" else one.queue)
        for one in made.queues
    ]
    return LayoutChangeAnswer.of(made, queues=shown, moved_share=round(made.moved_share, 4))


class PlannedQueueAnswer(Answer):
    """A queue: the offsets low … head - 1 of its table may be read, without those in the gaps."""

    queue = Number(help_text="the global id")
    number = Number(help_text="its place in the topic")
    node = Text()
    table = Text()
    low = Number()
    head = Number(help_text="durable: what is below it stays")
    gaps = serializers.ListField(child=numbers(), help_text="offsets lost with a node: from, to (excluded)")


class PlannedNodeAnswer(Answer):
    """A node; user name and password are empty if it has no reader account, or the key no admin on all."""

    name = Text()
    engine = Text()
    host = Text()
    port = Number()
    database = Text(help_text="the schema on mysql, the file's path on sqlite")
    identity = Text(help_text="tells this node's data from any other's")
    username = Text()
    password = Text()


class ReadPlanAnswer(Answer):
    """Queues and nodes that hold a topic's messages."""

    topic = Text()
    queues = PlannedQueueAnswer(many=True)
    nodes = PlannedNodeAnswer(many=True)
