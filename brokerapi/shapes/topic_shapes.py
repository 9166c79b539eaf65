"""Topics and their queues, growing and shrinking, read plans."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta
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
    views,
)
from messagestore.topology import queues
from messagestore.topology.drains import Unread
from messagestore.topology.topics import TopicBounds
from metadata.rules.settings import TOPIC
from metadata.rules.topics import states
from metadata.rules.topics.states import READABLE_STATES
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


# The views have the queue as an object, with its node's id.
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


# The settings have the form that requests give them; ids and the layout are left out.
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


class NewSendTokenAnswer(SendTokenView, frozen=True, kw_only=True):
    """A new send token; only this answer has `token`."""

    token: Annotated[
        str, Meta(description="what Java clients give as the token of their producer")
    ]


def topic_answer(state: TopicBounds) -> dict[str, Any]:
    return TopicAnswer.from_view(state.topic, queues=state.queues, layout=state.topic)


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


# Without the node's id and the size; the id of a planned queue is void.
class ChangedQueue(Answer):
    """A queue that was added, or drains."""

    queue = Number(allow_null=True, help_text="id of the queue; null if it is only planned")
    number = Number(help_text="its number within the topic")
    node = Text()
    state = Text()


# `moved_share` is computed.
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
    unread = views(
        Unread, help_text="unread messages by group, in the queues that lose slots"
    )


class QueueState(_PlacedQueue):
    """A queue; `low` (log start offset) and `head` (log end offset) are null while its node
    is down.
    """

    slots = Number(help_text="slots of 1,024 that the queue serves")
    draining = Flag(
        help_text="it is closed, and will be retired when all groups have read it"
    )
    unread = views(Unread, help_text="by group")


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
