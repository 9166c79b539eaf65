"""POST consumer/publish: messages of a Java client.

`bizId` becomes the key, `head` the headers. `partitionInfo` names the queue; without
`strictMode` another queue will do. A `token` may be an API key, whose rights and quota then
apply. A topic that has send tokens accepts only messages with such a token, or with an API
key.
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


# Messages of a request. They are stored in batches of CATMQ_MAX_MESSAGES.
MOST_MESSAGES = 10_000


class PublishRequest(JavaRequest):
    topicName: str | None = None
    token: str | None = None
    msgs: Annotated[list[NewJavaMessage | None], Meta(max_length=MOST_MESSAGES)] | None = (
        None
    )


class Publish(JavaEndpoint):
    body = Body(PublishRequest, most_bytes=MOST_BYTES_OF_MESSAGES)

    def answer_to(self, call: Call, request: PublishRequest) -> dict[str, Any]:
        draining.check()
        if not request.topicName:
            raise Invalid.field("topicName", "is missing")
        actor = actor_with_token(call.actor, request.token)
        publish.check_may_send(topic=request.topicName, actor=actor)
        # An API key as token has rights of its own, so it needs no send token.
        if actor is call.actor:
            _check_send_token(request.topicName, request.token)
        messages = [
            _new_message(request.topicName, message)
            for message in request.msgs or ()
            if message is not None
        ]
        # The client repeats requests without a batch id of its own: resends.py detects
        # repeats.
        key = resends.request_key(actor.address, json.encode(request))
        attempt = resends.begin(key, call.has_hung_up)
        # The address that the client reports: a proxy hides the real address.
        address = (request.clientIp or "").strip()
        if not addresses.is_address(address):
            address = actor.address
        version = (request.sdkVersion or "").strip()
        user_agent = call.request.META.get("HTTP_USER_AGENT", "")
        sdk = client_name("", version) if version else user_agent
        sender = metrics.Sender(actor, address, sdk)
        try:
            _store(request.topicName, messages, attempt.batch_id, sender)
        except BaseException as error:
            # Invalid is a final answer: a repeat of this request is a new send.
            resends.end(key, attempt, failed=not isinstance(error, Invalid))
            raise
        resends.end(key, attempt, failed=False)
        return {"sleepTime": 0}

    def refused(self, call: Call, error: Exception) -> HttpResponse:
        if not isinstance(error, RateLimited):
            return refusal(call, error, sleepTime=0)
        answer = refusal(call, error, sleepTime=error.retry_after_ms or 1000)
        # 200, not 429: the client reads `sleepTime` only from answers that succeeded.
        answer.status_code = 200
        return answer


def _check_send_token(topic: str, token: str | None) -> None:
    info = snapshot.current().topic(topic)
    if info is None or not info.send_tokens:
        return
    if not token:
        raise Forbidden(
            f"Topic {topic} takes messages with a send token only: set the token of the producer."
        )
    if api_keys.digest(token) not in info.send_tokens:
        raise Forbidden(
            f"The token is no send token of topic {topic}: ask its owners for one."
        )


def _store(
    topic: str, messages: list[NewMessage], batch_id: UUID, sender: metrics.Sender
) -> None:
    """Store all messages. Raise the error of the first message that was not stored; the
    stored messages stay.
    """
    if not messages:
        raise Invalid.field("msgs", "is empty: send at least one message")
    # A request may have more messages than a batch of the store.
    for number, chunk in enumerate(chunks(messages, config.max_messages)):
        chunk_batch_id = derived_batch_id(batch_id, number) if number else batch_id
        with metrics.SEND_SECONDS.time():
            runs = publish.send(
                topic=topic, messages=chunk, batch_id=chunk_batch_id, actor=sender.actor
            )
        metrics.count_sent(
            topic, runs, bytes=sum(len(message.body) for message in chunk), sender=sender
        )
        errors = [run.fate for run in runs if isinstance(run.fate, CatmqError)]
        if errors:
            # Unavailable first: after 503 the client repeats the request with the same
            # batch id.
            raise next(
                (error for error in errors if isinstance(error, Unavailable)), errors[0]
            )


def _new_message(topic: str, message: NewJavaMessage) -> NewMessage:
    queue = _find_queue(topic, message.partitionInfo)
    return NewMessage(
        body=(message.body or "").encode(),
        key=message.bizId or None,
        tag=message.tag or None,
        trace_id=message.traceId or None,
        headers={
            name: value for name, value in (message.head or {}).items() if value is not None
        }
        or None,
        queue=queue,
        queue_strict=queue is None
        or message.partitionInfo is None
        or bool(message.partitionInfo.strictMode),
    )


def _find_queue(topic: str, partition: PartitionInfo | None) -> int | None:
    """Return the queue for a message, None if any will do. A preferred queue must belong to
    the topic.
    """
    if partition is None or not partition.queueId:
        return None
    _, queue = handles.decode(partition.queueId)
    info = snapshot.current().queues.get(queue)
    topic_info = snapshot.current().topic(topic)
    is_of_topic = (
        info is not None and topic_info is not None and info.topic_id == topic_info.id
    )
    return queue if partition.strictMode or is_of_topic else None
