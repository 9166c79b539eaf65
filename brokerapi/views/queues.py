"""The queues of a topic: more of them, fewer, one closed or opened, and how far they are read."""

from __future__ import annotations

from django.http import HttpResponse

from brokerapi.endpoint import Call, Endpoint
from brokerapi.schema import list_of, operation
from brokerapi.shapes import topic_shapes
from messagestore.topology import drains, queues


class Expand(Endpoint):
    """/topics/{topic}/expand"""

    @operation(
        "expandTopic",
        tag="topics",
        request=topic_shapes.ExpandRequest,
        answer=topic_shapes.LayoutChangeAnswer,
    )
    def post(self, call: Call, topic: str) -> HttpResponse:
        """Adds queues to a topic, which get their share of the keys; or says what that would do."""
        asked = call.fields(topic_shapes.ExpandRequest, manages=("topic", topic))
        return call.answer(topic_shapes.change(queues.expand(topic=topic, actor=call.actor, **asked)))


class Shrink(Endpoint):
    """/topics/{topic}/shrink"""

    @operation(
        "shrinkTopic",
        tag="topics",
        request=topic_shapes.ShrinkRequest,
        answer=topic_shapes.LayoutChangeAnswer,
    )
    def post(self, call: Call, topic: str) -> HttpResponse:
        """Closes queues, which are read to their end and then retired; or says what that would do."""
        asked = call.fields(topic_shapes.ShrinkRequest, manages=("topic", topic))
        return call.answer(topic_shapes.change(queues.shrink(topic=topic, actor=call.actor, **asked)))


class Queues(Endpoint):
    """/topics/{topic}/queues"""

    @operation("listQueues", tag="topics", answer=list_of("queues", topic_shapes.QueueState))
    def get(self, call: Call, topic: str) -> HttpResponse:
        """The queues of a topic, and what each group has still to read in them."""
        found = drains.describe(topic=topic, actor=call.actor)
        return call.answer({"queues": [topic_shapes.QueueState.of(one) for one in found]})


class Queue(Endpoint):
    """/topics/{topic}/queues/{queue}"""

    @operation("showQueue", tag="topics", answer=topic_shapes.QueueState)
    def get(self, call: Call, topic: str, queue: int) -> HttpResponse:
        """A queue of a topic, and what each group has still to read in it."""
        (found,) = drains.describe(topic=topic, queue=queue, actor=call.actor)
        return call.answer(topic_shapes.QueueState.of(found))

    @operation("changeQueue", tag="topics", request=topic_shapes.QueueChange, answer=topic_shapes.QueueState)
    def patch(self, call: Call, topic: str, queue: int) -> HttpResponse:
        """Closes a queue for sends, or opens it."""
        asked = call.fields(topic_shapes.QueueChange, manages=("topic", topic))
        changed = queues.set_state(topic=topic, queue=queue, state=asked["state"], actor=call.actor)
        return call.answer(topic_shapes.QueueState.of(changed))
