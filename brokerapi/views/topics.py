"""Topics: create, list, show, change, delete; their send tokens, producers and read plans."""

from __future__ import annotations

from django.http import HttpResponse
from msgspec import structs

from brokerapi.endpoint import Call, Endpoint
from brokerapi.schema import list_of, operation, page_of
from brokerapi.shapes import topic_shapes
from brokerapi.shapes.base import ConfirmQuery, PlanQuery, TopicsQuery
from brokerapi.shapes.topic_shapes import (
    NewSendTokenAnswer,
    TopicAnswer,
    TopicChange,
    TopicCreate,
    TopicSummary,
)
from messagestore.inspect import read_plans
from messagestore.topology import key_indexes, topics
from metadata.topics import producers, send_tokens, topic_rows
from metadata.topics.producers import ProducerView
from metadata.topics.send_tokens import SendTokenView


class Topics(Endpoint):
    @operation(
        "listTopics",
        tag="topics",
        query=TopicsQuery,
        answer=page_of("topics", TopicSummary),
    )
    def get(self, call: Call) -> HttpResponse:
        """The topics on which the key has any right, by name."""
        kind = call.query(TopicsQuery).kind
        page = topic_rows.list_topics(
            window=call.window(TopicsQuery), kind=kind, actor=call.actor
        )
        return call.answer(TopicSummary.page("topics", page))

    @operation(
        "createTopic", tag="topics", request=TopicCreate, answer=TopicAnswer, status=201
    )
    def post(self, call: Call) -> HttpResponse:
        """Creates a topic with its queues."""
        fields = call.read_fields(TopicCreate, manages=("topic", ""))
        name, queues, node = (
            fields.pop("name"),
            fields.pop("queues"),
            fields.pop("node", None),
        )
        topic = topics.create(
            name=name, queues=queues, node=node, settings=fields, actor=call.actor
        )
        return call.created(topic_shapes.topic_answer(topic), "topics", name)


class Topic(Endpoint):
    @operation("showTopic", tag="topics", answer=TopicAnswer)
    def get(self, call: Call, topic: str) -> HttpResponse:
        """A topic with its queues and their offsets."""
        return call.answer(
            topic_shapes.topic_answer(topics.describe(name=topic, actor=call.actor))
        )

    @operation("changeTopic", tag="topics", request=TopicChange, answer=TopicSummary)
    def patch(self, call: Call, topic: str) -> HttpResponse:
        """Changes settings of a topic."""
        settings = call.read_fields(TopicChange, manages=("topic", topic))
        topic_view = topic_rows.update(name=topic, settings=settings, actor=call.actor)
        return call.answer(TopicSummary.from_view(topic_view))

    @operation("deleteTopic", tag="topics", query=ConfirmQuery, status=204)
    def delete(self, call: Call, topic: str) -> HttpResponse:
        """Deletes a topic without subscriptions. Its tables are dropped after three days."""
        topics.delete(name=topic, confirm=call.confirmed_name(), actor=call.actor)
        return call.no_content()


class SendTokens(Endpoint):
    @operation("listSendTokens", tag="topics", answer=list_of("tokens", SendTokenView))
    def get(self, call: Call, topic: str) -> HttpResponse:
        """The send tokens of a topic. Java clients must name one of them; without any, none
        is needed.
        """
        tokens = send_tokens.list_tokens(topic=topic, actor=call.actor)
        return call.answer({"tokens": tokens})

    @operation("createSendToken", tag="topics", answer=NewSendTokenAnswer, status=201)
    def post(self, call: Call, topic: str) -> HttpResponse:
        """Creates a send token; a topic has at most two. Only this answer has the token
        itself.
        """
        view, plaintext = send_tokens.create(topic=topic, actor=call.actor)
        answer = NewSendTokenAnswer(**structs.asdict(view), token=plaintext)
        return call.created(answer, "topics", topic, "send-tokens", view.id)


class SendToken(Endpoint):
    @operation("deleteSendToken", tag="topics", query=ConfirmQuery, status=204)
    def delete(self, call: Call, topic: str, token: str) -> HttpResponse:
        """Deletes a send token. Sends of Java clients with it are refused from then on;
        without the last token of a topic, none is needed."""
        send_tokens.delete(
            topic=topic, token=token, confirm=call.confirmed_name(), actor=call.actor
        )
        return call.no_content()


class Producers(Endpoint):
    @operation("listProducers", tag="topics", answer=list_of("producers", ProducerView))
    def get(self, call: Call, topic: str) -> HttpResponse:
        """The producers that sent to a topic in the last seven days, the last one first; at
        most 200.
        """
        topic_producers = producers.list_producers(topic=topic, actor=call.actor)
        return call.answer({"producers": topic_producers})


class KeyIndex(Endpoint):
    @operation("showKeyIndex", tag="topics", answer=key_indexes.KeyIndex)
    def get(self, call: Call, topic: str) -> HttpResponse:
        """Which queues have an index on the keys of their messages. A background job makes
        it what the setting `key_index` says, queue by queue."""
        return call.answer(key_indexes.describe(topic=topic, actor=call.actor))


class ReadPlan(Endpoint):
    @operation("readPlan", tag="topics", query=PlanQuery, answer=read_plans.ReadPlan)
    def get(self, call: Call, topic: str) -> HttpResponse:
        """Tables and offset ranges for jobs that read the nodes directly. Keys with `admin`
        on `*` also get the reader accounts of the nodes, which can read every topic
        there."""
        queues = call.query(PlanQuery).queues
        queue_ids = [int(queue_id) for queue_id in queues.split(",")] if queues else None
        response = call.answer(
            read_plans.read_plan(topic=topic, queues=queue_ids, actor=call.actor)
        )
        response["Cache-Control"] = "no-store"  # it holds passwords
        return response
