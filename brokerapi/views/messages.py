"""Messages of a topic: send and look at."""

from __future__ import annotations

from django.http import HttpResponse

from brokerapi.endpoint import Call, Endpoint
from brokerapi.http import draining, longpoll, metrics
from brokerapi.schema import list_of, operation
from brokerapi.shapes import delayed_shapes, message_shapes
from brokerapi.shapes.delayed_shapes import DelayedAnswer, DelayedQuery
from brokerapi.shapes.message_shapes import (
    SEND,
    BrowseQuery,
    MessagesAnswer,
    SendAnswer,
    SendRequest,
    TracesQuery,
)
from brokerapi.shapes.topic_shapes import TraceAnswer
from messagestore.inspect import browse, search
from messagestore.produce import delayed_admin, publish
from metadata.errors import Invalid
from metadata.groups import handling_traces


class Messages(Endpoint):
    @operation("sendMessages", tag="messages", request=SendRequest, answer=SendAnswer)
    def post(self, call: Call, topic: str) -> HttpResponse:
        """Stores messages, each exactly once per `batch_id`. Answers when they are durable."""
        publish.check_may_send(topic=topic, actor=call.actor)
        asked = call.read(SEND)
        draining.check()
        messages = message_shapes.new_messages(asked)
        runs = publish.send(
            topic=topic, messages=messages, batch_id=asked.batch_id, actor=call.actor
        )
        size = sum([len(message.body) for message in messages])
        metrics.count_sent(topic, runs, bytes=size, sender=_sender(call))
        return call.answer(message_shapes.send_answer(runs, asked.receipts))

    @operation("browseMessages", tag="messages", query=BrowseQuery, answer=MessagesAnswer)
    def get(self, call: Call, topic: str) -> HttpResponse:
        """Shows stored messages without a group: from an offset of a queue on, one by its
        id, or those that carry a key, tag, trace id or text, or were stored within a time.
        One request of a search looks at a part of the topic: go on with `next` as
        `after`."""
        asked = call.query(BrowseQuery)
        if asked.is_search():
            return call.answer(
                message_shapes.messages_answer(_searched(call, topic, asked), call.kind)
            )
        if isinstance(asked.message_id, str):
            found = browse.read_message(
                topic=topic, message_id=asked.message_id, actor=call.actor
            )
        elif isinstance(asked.queue, int):
            found = longpoll.browse_or_wait(
                topic=topic,
                place=(asked.queue, asked.offset),
                limit=asked.limit,
                wait_ms=asked.wait_ms,
                actor=call.actor,
            )
            call.check_key()
        else:
            raise Invalid.field(
                "queue",
                "is missing: give queue (and offset), message_id, or search conditions",
            )
        return call.answer(message_shapes.messages_answer(found, call.kind))


class Traces(Endpoint):
    @operation(
        "listTraces",
        tag="messages",
        query=TracesQuery,
        answer=list_of("traces", TraceAnswer),
    )
    def get(self, call: Call, topic: str) -> HttpResponse:
        """Members that handled a message, when and for how long, if it is in the sample of
        their group.
        """
        (one,) = browse.read_message(
            topic=topic, message_id=call.query(TracesQuery).message_id, actor=call.actor
        ).messages
        found = handling_traces.traces_of_message(
            queue=one.queue, offset=one.offset, actor=call.actor
        )
        return call.answer({"traces": [TraceAnswer.from_view(trace) for trace in found]})


class Message(Endpoint):
    @operation("recallMessage", tag="messages", status=204)
    def delete(self, call: Call, message_id: str) -> HttpResponse:
        """Recalls a delayed message before it is due; 409 `already_delivered` when it is in
        its queue.
        """
        delayed_admin.recall(message_id=message_id, actor=call.actor)
        return call.no_content()


class Delayed(Endpoint):
    @operation("listDelayed", tag="messages", query=DelayedQuery, answer=DelayedAnswer)
    def get(self, call: Call, topic: str) -> HttpResponse:
        """Delayed messages that are not due yet, ordered by id, and their number."""
        asked = call.query(DelayedQuery)
        after = asked.after if isinstance(asked.after, str) else None
        found = delayed_admin.of_topic(
            topic=topic, after=after, limit=asked.limit, actor=call.actor
        )
        return call.answer(delayed_shapes.delayed_answer(found, call.kind))


def _sender(call: Call) -> metrics.Sender:
    return metrics.Sender(
        call.actor, call.actor.address, call.request.META.get("HTTP_USER_AGENT", "")
    )


def _searched(call: Call, topic: str, asked: BrowseQuery) -> search.SearchResult:
    if isinstance(asked.message_id, str):
        raise Invalid.field(
            "message_id", "names one message: leave out the search conditions"
        )
    return search.search_messages(
        topic=topic,
        wanted=asked.search_conditions(),
        times=asked.time_range(),
        queue=asked.queue if isinstance(asked.queue, int) else None,
        limit=asked.limit,
        after=asked.after if isinstance(asked.after, str) else None,
        actor=call.actor,
    )
