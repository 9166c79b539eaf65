"""POST consumer/publish: messages of a Java client.

`bizId` becomes the key, `head` the headers. `partitionInfo` names the queue; without
`strictMode` another one
will do. A `token` may be an API key, whose rights and quota then count. A topic that has
send tokens takes only messages that name one of them, or an API key.
"""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from django.http import HttpResponse
from msgspec import Meta, json

from brokerapi.endpoint import Call
from brokerapi.http import draining, metrics
from brokerapi.java import handles, resends
from brokerapi.java.endpoint import (
    MOST_BYTES_OF_MESSAGES,
    Body,
    JavaEndpoint,
    JavaRequest,
    Long,
    actor_with_token,
    client_name,
    refusal,
)
from messagestore.engine.messages import NewMessage
from messagestore.produce import publish
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.config import config
from metadata.errors import CatmqError, Forbidden, Invalid, RateLimited, Unavailable
from metadata.grouping import chunks
from metadata.rules.membership import addresses
from metadata.rules.topics.routing_rules import derived_batch_id
from metadata.users import api_keys


class PartitionInfo(JavaRequest):
    queueId: Long | None = None
    strictMode: Long | None = None


class NewJavaMessage(JavaRequest):
    body: str | None = None
    bizId: str | None = None
    tag: str | None = None
    traceId: str | None = None
    head: dict[str, str | None] | None = None
    partitionInfo: PartitionInfo | None = None


MOST_MESSAGES = 10_000  # of one request; they are stored in parts of CATMQ_MAX_MESSAGES


class PublishRequest(JavaRequest):
    topicName: str | None = None
    token: str | None = None
    msgs: Annotated[list[NewJavaMessage | None], Meta(max_length=MOST_MESSAGES)] | None = (
        None
    )


class Publish(JavaEndpoint):
    body = Body(PublishRequest, most_bytes=MOST_BYTES_OF_MESSAGES)

    def answer_to(self, call: Call, asked: PublishRequest) -> dict[str, Any]:
        draining.check()
        if not asked.topicName:
            raise Invalid.field("topicName", "is missing")
        actor = actor_with_token(call.actor, asked.token)
        publish.check_may_send(topic=asked.topicName, actor=actor)
        if actor is call.actor:
            _check_token(asked.topicName, asked.token)
        messages = [
            _message(asked.topicName, message)
            for message in asked.msgs or ()
            if message is not None
        ]
        key = resends.request_key(actor.address, json.encode(asked))
        mine = resends.begin(key, call.has_hung_up)
        failed = True
        try:
            _send(asked.topicName, messages, mine.batch_id, _sender(call, asked, actor))
            failed = False
        except Invalid:
            failed = False
            raise
        finally:
            resends.end(key, mine, failed=failed)
        return {"sleepTime": 0}

    def refused(self, call: Call, error: Exception) -> HttpResponse:
        """Return the answer; who is too fast waits for `sleepTime` ms and sends it again."""
        if not isinstance(error, RateLimited):
            return refusal(call, error, sleepTime=0)
        answer = refusal(call, error, sleepTime=error.retry_after_ms or 1000)
        answer.status_code = 200
        return answer


def _check_token(topic: str, token: str | None) -> None:
    """Raise Forbidden unless a topic takes messages with this token."""
    known = snapshot.current().topic(topic)
    if known is None or not known.send_tokens:
        return
    if not token:
        raise Forbidden(
            f"Topic {topic} takes messages with a send token only: set the token of the producer."
        )
    if api_keys.digest(token) not in known.send_tokens:
        raise Forbidden(
            f"The token is no send token of topic {topic}: ask its owners for one."
        )


def _sender(call: Call, asked: PublishRequest, actor: Actor) -> metrics.Sender:
    """Return who sends. The address is what the client says, because a proxy hides the one
    it has.
    """
    address, version = (asked.clientIp or "").strip(), (asked.sdkVersion or "").strip()
    sdk = (
        client_name("", version)
        if version
        else call.request.META.get("HTTP_USER_AGENT", "")
    )
    return metrics.Sender(
        actor, address if addresses.is_address(address) else actor.address, sdk
    )


def _send(
    topic: str, messages: list[NewMessage], batch_id: UUID, sender: metrics.Sender
) -> None:
    """Store all messages, or raise the error of the first that was not stored; what was
    stored stays.
    """
    if not messages:
        raise Invalid.field("msgs", "is empty: send at least one message")
    for number, some in enumerate(chunks(messages, config.max_messages)):
        one_id = derived_batch_id(batch_id, number) if number else batch_id
        runs = publish.send(topic=topic, messages=some, batch_id=one_id, actor=sender.actor)
        metrics.count_sent(
            topic, runs, bytes=sum(len(one.body) for one in some), sender=sender
        )
        wrong = [run.fate for run in runs if isinstance(run.fate, CatmqError)]
        if wrong:
            raise next((one for one in wrong if isinstance(one, Unavailable)), wrong[0])


def _message(topic: str, one: NewJavaMessage) -> NewMessage:
    queue = _queue(topic, one.partitionInfo)
    return NewMessage(
        body=(one.body or "").encode(),
        key=one.bizId or None,
        tag=one.tag or None,
        trace_id=one.traceId or None,
        headers={
            name: value for name, value in (one.head or {}).items() if value is not None
        }
        or None,
        queue=queue,
        queue_strict=queue is None
        or one.partitionInfo is None
        or bool(one.partitionInfo.strictMode),
    )


def _queue(topic: str, wanted: PartitionInfo | None) -> int | None:
    """Return the queue that a message is to go to. One that is only wished for must be of
    the topic.
    """
    if wanted is None or not wanted.queueId:
        return None
    _, queue = handles.decode(wanted.queueId)
    known = snapshot.current().queues.get(queue)
    named = snapshot.current().topic(topic)
    belongs = known is not None and named is not None and known.topic_id == named.id
    return queue if wanted.strictMode or belongs else None
