"""Topics and their queues, growing and shrinking, read plans."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from brokerapi.shapes.fields import (
    Answer,
    Change,
    Count,
    Flag,
    Number,
    Request,
    Text,
    choice_of,
    numbers,
)
from messagestore.inspect.read_plans import PlannedNode, PlannedQueue
from messagestore.topology import queues
from messagestore.topology.topics import TopicBounds
from metadata.groups.handling_traces import TraceView
from metadata.rules.settings import TOPIC
from metadata.rules.topics import states
from metadata.rules.topics.states import READABLE_STATES
from metadata.topics.producers import ProducerView
from metadata.topics.send_tokens import SendTokenView
from metadata.topics.topic_rows import TopicView


class TopicCreate(Request):
    """A new topic."""

    settings = TOPIC
    name = Text()
    queues = Number(default=4, min_value=1)
    node = Text(
        required=False,
        allow_null=True,
        help_text="node of all queues; by default they are spread",
    )


class TopicChange(Change):
    """Changes to a topic."""

    settings = TOPIC


class _PlacedQueue(Answer):
    queue = Number(source="queue.queue", help_text="id of the queue")
    number = Number(source="queue.number", help_text="its number within the topic")
    node = Text(source="queue.node")
    state = Text(source="queue.state")
    low = Number(allow_null=True)
    head = Number(allow_null=True)


class QueueAnswer(_PlacedQueue):
    """A queue; `low` (log start offset) and `head` (log end offset) are null while its node
    is down.
    """


class LayoutAnswer(Answer):
    """Slot → queue id; slot = crc32(UTF-8 key) mod 1024."""

    version = Number(source="layout_version")
    slots = numbers(source="layout")


class TopicSummary(Answer):
    """A topic in a list; `queues` counts."""

    settings = TOPIC
    view = TopicView
    view_fields = "name kind state created_at_ms"
    queues: Any = Count()


class TopicAnswer(TopicSummary):
    """A topic."""

    queues: Any = QueueAnswer(many=True)
    layout = LayoutAnswer()


class SendTokenAnswer(Answer):
    """A send token of a topic, which Java clients must name; the token itself is not
    stored.
    """

    view = SendTokenView
    view_fields = "id created_at_ms"


class NewSendTokenAnswer(SendTokenAnswer):
    """A new send token; only this answer has `token`."""

    token = Text(help_text="what Java clients give as the token of their producer")


def topic_answer(state: TopicBounds) -> dict[str, Any]:
    return TopicAnswer.from_view(state.topic, queues=state.queues, layout=state.topic)


class ProducerAnswer(Answer):
    """A producer of a topic: an API key at an address, with a client."""

    view = ProducerView
    name = Text(help_text="name of the API key; java for Java clients without one")
    address = Text(
        help_text="address it sent from; of a Java client, the one that it gives itself"
    )
    sdk = Text(help_text="name and version of the client, by its User-Agent")
    first_seen_at_ms = Number(help_text="time of its first message, ms since 1970 UTC")
    last_seen_at_ms = Number(
        help_text="time of its last message, to about 20 s, ms since 1970 UTC"
    )
    messages_last_hour = Number(
        help_text="estimated number of messages that it sent in the last hour"
    )


class TraceAnswer(Answer):
    """An attempt at a message that was in the sample of a group."""

    view = TraceView
    view_fields = "group"
    member = Text(help_text="name of the member, or its instance")
    attempt = Number(help_text="failed attempts before this one")
    outcome = Text(help_text="handled, failed, or delivered if nothing else is known")
    at_ms = Number(help_text="time when it began, ms since 1970 UTC")
    took_ms = Number(
        allow_null=True, help_text="how long it took; null if that is not known"
    )


class ExpandRequest(Request):
    """More queues for a topic."""

    queues = Number(help_text="queues to add")
    node = Text(
        required=False,
        allow_null=True,
        help_text="node of the new queues; by default they are spread",
    )
    dry_run = Flag(default=False)


class ShrinkRequest(Request):
    """Queues to take out of use: either their ids or how many, the newest first."""

    queues = numbers(required=False)
    count = Number(required=False)
    dry_run = Flag(default=False)


class QueueChange(Request):
    """Changes to a queue."""

    state = choice_of(READABLE_STATES)


class UnreadAnswer(Answer):
    """Number of messages that a group has not read; null while a node does not answer."""

    group = Text()
    messages = Number(
        allow_null=True,
        help_text="unread messages; of the slowest instance in a broadcasting group",
    )


class ChangedQueue(Answer):
    """A queue that was added, or drains."""

    queue = Number(allow_null=True, help_text="id of the queue; null if it is only planned")
    number = Number(help_text="its number within the topic")
    node = Text()
    state = Text()


class LayoutChangeAnswer(Answer):
    """Changes that an expand or shrink made, or with `dry_run` would make."""

    topic = Text()
    dry_run = Flag()
    layout_version = Number()
    queues = ChangedQueue(many=True)
    moved_slots = Number(help_text="of 1,024")
    moved_share = serializers.FloatField(
        help_text="share of the keys that move to another queue, 0 to 1"
    )
    unread = UnreadAnswer(
        many=True, help_text="unread messages by group, in the queues that lose slots"
    )


class QueueState(_PlacedQueue):
    """A queue; `low` (log start offset) and `head` (log end offset) are null while its node
    is down.
    """

    slots = Number(help_text="slots of 1,024 that the queue serves")
    draining = Flag(
        help_text="it is closed, and will be retired when all groups have read it"
    )
    unread = UnreadAnswer(many=True, help_text="by group")


def layout_change_answer(change: queues.Change) -> dict[str, Any]:
    queue_answers = [
        ChangedQueue.from_view(
            queue,
            queue=None
            if change.dry_run and queue.state == states.QueueState.CREATING
            else queue.queue,
        )
        for queue in change.queues
    ]
    return LayoutChangeAnswer.from_view(
        change, queues=queue_answers, moved_share=round(change.moved_share, 4)
    )


class PlannedQueueAnswer(Answer):
    """A queue. Readable are the offsets from `low` (log start) to `head` - 1 (log end),
    without gaps.
    """

    queue = Number(help_text="id of the queue")
    number = Number(help_text="its number within the topic")
    view = PlannedQueue
    view_fields = "node table low"
    head = Number(help_text="durable log end offset")
    gaps = serializers.ListField(
        child=numbers(), help_text="lost offsets: from, to (excluded)"
    )


class PlannedNodeAnswer(Answer):
    """A node; user name and password are empty without a reader account, or without `admin`
    on `*`.
    """

    view = PlannedNode
    view_fields = "name engine host port username password tls tls_ca"
    database = Text(help_text="the schema on mysql, the file's path on sqlite")
    identity = Text(help_text="identity of the node's data")
    min_release = Text(
        help_text="oldest release of CatMQ whose jobs can read its tables; empty: any"
    )


class ReadPlanAnswer(Answer):
    """Queues and nodes of a topic's messages."""

    topic = Text()
    queues = PlannedQueueAnswer(many=True)
    nodes = PlannedNodeAnswer(many=True)
