"""Messages of a topic: send, browse, trace, recall."""

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
from messagestore.inspect import browse, search
from messagestore.produce import delayed_admin, publish
from metadata.errors import Invalid
from metadata.groups import handling_traces
from metadata.groups.handling_traces import TraceView


class Messages(Endpoint):
    @operation("sendMessages", tag="messages", request=SendRequest, answer=SendAnswer)
    def post(self, call: Call, topic: str) -> HttpResponse:
        """Stores messages, each exactly once per `batch_id`. Answers when they are durable."""
        # The right is checked before the body is read: a body may have megabytes.
        publish.check_may_send(topic=topic, actor=call.actor)
        request = call.read(SEND)
        # After the body: a broker that begins to drain while it arrives refuses it, too.
        draining.check()
        messages = message_shapes.new_messages(request)
        with metrics.SEND_SECONDS.time():
            runs = publish.send(
                topic=topic, messages=messages, batch_id=request.batch_id, actor=call.actor
            )
        user_agent = call.request.META.get("HTTP_USER_AGENT", "")
        sender = metrics.Sender(call.actor, call.actor.address, user_agent)
        size = sum([len(message.body) for message in messages])
        metrics.count_sent(topic, runs, bytes=size, sender=sender)
        return call.answer(message_shapes.send_answer(runs, request.receipts))

    @operation("browseMessages", tag="messages", query=BrowseQuery, answer=MessagesAnswer)
    def get(self, call: Call, topic: str) -> HttpResponse:
        """Shows stored messages without a group: from an offset of a queue on, a message by its
        id, or the messages that have a key, tag, trace id or text, or were stored within a time.
        A request of a search reads a part of the topic: continue with `next`
        as `after`."""
        query = call.query(BrowseQuery)
        if query.is_search():
            return call.answer(
                message_shapes.messages_answer(_search(call, topic, query), call.kind)
            )
        if isinstance(query.message_id, str):
            page = browse.read_message(
                topic=topic, message_id=query.message_id, actor=call.actor
            )
        elif isinstance(query.queue, int):
            page = longpoll.browse_or_wait(
                topic=topic,
                position=(query.queue, query.offset),
                limit=query.limit,
                wait_ms=query.wait_ms,
                actor=call.actor,
                as_rows=query.form == "rows" and call.kind.rows,
            )
            # The key may have been deleted while the request waited.
            call.check_key()
        else:
            raise Invalid.field(
                "queue",
                "is missing: give queue (and offset), message_id, or search conditions",
            )
        return call.answer(message_shapes.messages_answer(page, call.kind))


class Traces(Endpoint):
    @operation(
        "listTraces",
        tag="messages",
        query=TracesQuery,
        answer=list_of("traces", TraceView),
    )
    def get(self, call: Call, topic: str) -> HttpResponse:
        """Members that handled a message, when and for how long, if it is in the sample of
        their group.
        """
        (message,) = browse.read_message(
            topic=topic, message_id=call.query(TracesQuery).message_id, actor=call.actor
        ).messages
        traces = handling_traces.traces_of_message(
            queue=message.queue, offset=message.offset, actor=call.actor
        )
        return call.answer({"traces": traces})


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
        query = call.query(DelayedQuery)
        after = query.after if isinstance(query.after, str) else None
        page = delayed_admin.of_topic(
            topic=topic, after=after, limit=query.limit, actor=call.actor
        )
        return call.answer(delayed_shapes.delayed_answer(page, call.kind))


def _search(call: Call, topic: str, query: BrowseQuery) -> search.SearchResult:
    if isinstance(query.message_id, str):
        raise Invalid.field(
            "message_id", "names one message: leave out the search conditions"
        )
    return search.search_messages(
        topic=topic,
        wanted=query.search_conditions(),
        times=query.time_range(),
        queue=query.queue if isinstance(query.queue, int) else None,
        limit=query.limit,
        after=query.after if isinstance(query.after, str) else None,
        actor=call.actor,
    )
