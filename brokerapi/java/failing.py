"""POST consumer/publishAndUpdateResultFailMsg: messages whose handler failed, or succeeded
after all.

The client sends the whole message, for the topic `<group>_<topic>_fail`. The broker has the
message and uses only its id: it stores a copy for the next attempt, or a dead letter. A
message that succeeded (`ids`) needs nothing: its queue is committed like any other.
"""

from __future__ import annotations

import time
from typing import Annotated, Any

from msgspec import Meta

from brokerapi.endpoint import Call
from brokerapi.http import metrics
from brokerapi.java import handles, holds
from brokerapi.java.endpoint import (
    MOST_BYTES_OF_MESSAGES,
    Body,
    JavaEndpoint,
    JavaRequest,
    Long,
    check_right,
)
from messagestore.consume import node_owners
from messagestore.retries import failures
from messagestore.retries.failures import Failure
from metadata.db.consumer_ids import ConsumerId
from metadata.errors import Invalid, NodeUnavailable

ERROR = "JavaClient: the handler of a Java client failed; its own log says why"
TRY_S = 6.0  # the client asks twice, waits 10 s each time, and then forgets the message
PAUSE_S = 0.5


class FailedMessage(JavaRequest):
    id: Long | None = None


# Messages of a report. A client has fewer messages of a queue in progress.
MOST_FAILED = 1_000


class FailMsg(JavaRequest):
    msgs: Annotated[list[FailedMessage | None], Meta(max_length=MOST_FAILED)] | None = None


class FailRequest(JavaRequest):
    queueId: Long | None = None
    failMsg: FailMsg | None = None


class Failures(JavaEndpoint):
    limited = False
    body = Body(FailRequest, most_bytes=MOST_BYTES_OF_MESSAGES)

    def answer_to(self, call: Call, request: FailRequest) -> dict[str, Any]:
        messages = (request.failMsg.msgs if request.failMsg is not None else None) or []
        ids = sorted(
            {
                message.id
                for message in messages
                if message is not None and message.id is not None and message.id > 0
            }
        )
        if not ids:
            return {}
        queue_id = request.queueId or 0
        member_id, queue = handles.decode(queue_id)
        consumer = handles.find_consumer(member_id)
        if consumer is None:
            raise Invalid.field(
                "queueId", "is of a client that has expired or left: register again"
            )
        check_right(call, consumer.group_id)
        # The client repeats a report once and then forgets the messages, so the broker tries
        # for most of that time.
        end = time.monotonic() + TRY_S
        while ids := _store_retries(consumer, queue, ids):
            key = f"failure {queue_id}"
            if time.monotonic() > end or not holds.pause(key, call.actor, PAUSE_S):
                raise NodeUnavailable(
                    f"{len(ids)} failed messages could not be stored for a retry."
                )
        return {}


def _store_retries(consumer: ConsumerId, queue: int, ids: list[int]) -> list[int]:
    """Store retries of messages. Return the ids of messages whose node does not answer."""
    try:
        ownership = node_owners.held(consumer=consumer, queues=[queue]).get(queue)
    except NodeUnavailable:
        return ids
    if ownership is None:
        return []  # the new owner of the queue reads them
    failed = [Failure(queue, ownership[0], message_id - 1, ERROR) for message_id in ids]
    report = failures.report(consumer=consumer, failures=failed)
    metrics.FAILURES.labels("retried").inc(len(report.retried))
    metrics.FAILURES.labels("dead").inc(len(report.dead))
    return [
        refusal.offset + 1 for refusal in report.refused if refusal.state == "unavailable"
    ]
