"""The queues of a topic: list, add, close, open."""

from __future__ import annotations

from django.http import HttpResponse

from brokerapi.endpoint import Call, Endpoint
from brokerapi.schema import list_of, operation
from brokerapi.shapes import topic_shapes
from brokerapi.shapes.topic_shapes import (
    ExpandRequest,
    LayoutChangeAnswer,
    QueueChange,
    QueueState,
    ShrinkRequest,
)
from messagestore.topology import drains, queues


class Expand(Endpoint):
    @operation(
        "expandTopic", tag="topics", request=ExpandRequest, answer=LayoutChangeAnswer
    )
    def post(self, call: Call, topic: str) -> HttpResponse:
        """Adds queues to a topic, which get a share of the keys. `dry_run` changes nothing."""
        fields = call.read_fields(ExpandRequest, manages=("topic", topic))
        return call.answer(
            topic_shapes.layout_change_answer(
                queues.expand(topic=topic, actor=call.actor, **fields)
            )
        )


class Shrink(Endpoint):
    @operation(
        "shrinkTopic", tag="topics", request=ShrinkRequest, answer=LayoutChangeAnswer
    )
    def post(self, call: Call, topic: str) -> HttpResponse:
        """Closes queues. They are retired when all groups have read them. `dry_run` changes
        nothing.
        """
        fields = call.read_fields(ShrinkRequest, manages=("topic", topic))
        return call.answer(
            topic_shapes.layout_change_answer(
                queues.shrink(topic=topic, actor=call.actor, **fields)
            )
        )


class Queues(Endpoint):
    @operation("listQueues", tag="topics", answer=list_of("queues", QueueState))
    def get(self, call: Call, topic: str) -> HttpResponse:
        """The queues of a topic, with the unread messages of each group."""
        queue_views = drains.describe(topic=topic, actor=call.actor)
        return call.answer(QueueState.listed("queues", queue_views))


class Queue(Endpoint):
    @operation("showQueue", tag="topics", answer=QueueState)
    def get(self, call: Call, topic: str, queue: int) -> HttpResponse:
        """A queue of a topic, with the unread messages of each group."""
        (queue_view,) = drains.describe(topic=topic, queue=queue, actor=call.actor)
        return call.answer(QueueState.from_view(queue_view))

    @operation("changeQueue", tag="topics", request=QueueChange, answer=QueueState)
    def patch(self, call: Call, topic: str, queue: int) -> HttpResponse:
        """Closes a queue for sends, or opens it."""
        fields = call.read_fields(QueueChange, manages=("topic", topic))
        queue_view = queues.set_state(
            topic=topic, queue=queue, state=fields["state"], actor=call.actor
        )
        return call.answer(QueueState.from_view(queue_view))
