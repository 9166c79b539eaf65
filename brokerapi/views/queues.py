"""The queues of a topic: more of them, fewer, one closed or opened, and how far they are read."""

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
    """/topics/{topic}/expand"""

    @operation("expandTopic", tag="topics", request=ExpandRequest, answer=LayoutChangeAnswer)
    def post(self, call: Call, topic: str) -> HttpResponse:
        """Adds queues to a topic, which get their share of the keys; or says what that would do."""
        asked = call.fields(ExpandRequest, manages=("topic", topic))
        return call.answer(topic_shapes.change(queues.expand(topic=topic, actor=call.actor, **asked)))


class Shrink(Endpoint):
    """/topics/{topic}/shrink"""

    @operation("shrinkTopic", tag="topics", request=ShrinkRequest, answer=LayoutChangeAnswer)
    def post(self, call: Call, topic: str) -> HttpResponse:
        """Closes queues, which are read to their end and then retired; or says what that would do."""
        asked = call.fields(ShrinkRequest, manages=("topic", topic))
        return call.answer(topic_shapes.change(queues.shrink(topic=topic, actor=call.actor, **asked)))


class Queues(Endpoint):
    """/topics/{topic}/queues"""

    @operation("listQueues", tag="topics", answer=list_of("queues", QueueState))
    def get(self, call: Call, topic: str) -> HttpResponse:
        """The queues of a topic, and what each group has still to read in them."""
        found = drains.describe(topic=topic, actor=call.actor)
        return call.answer({"queues": [QueueState.of(one) for one in found]})


class Queue(Endpoint):
    """/topics/{topic}/queues/{queue}"""

    @operation("showQueue", tag="topics", answer=QueueState)
    def get(self, call: Call, topic: str, queue: int) -> HttpResponse:
        """A queue of a topic, and what each group has still to read in it."""
        (found,) = drains.describe(topic=topic, queue=queue, actor=call.actor)
        return call.answer(QueueState.of(found))

    @operation("changeQueue", tag="topics", request=QueueChange, answer=QueueState)
    def patch(self, call: Call, topic: str, queue: int) -> HttpResponse:
        """Closes a queue for sends, or opens it."""
        asked = call.fields(QueueChange, manages=("topic", topic))
        changed = queues.set_state(topic=topic, queue=queue, state=asked["state"], actor=call.actor)
        return call.answer(QueueState.of(changed))
