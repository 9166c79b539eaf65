"""POST consumer/publishAndUpdateResultFailMsg: messages whose handler failed, and some that
succeeded.

The client writes out a message that failed, for the topic `<group>_<topic>_fail`. The
broker has it, and takes only its id: it stores the copy with the next attempt, or with the
dead. A message that succeeded at last (`ids`) needs nothing: its queue is committed like
any other.
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


MOST_FAILED = 1_000  # of one report; a client has fewer messages of a queue in hand


class FailMsg(JavaRequest):
    msgs: Annotated[list[FailedMessage | None], Meta(max_length=MOST_FAILED)] | None = None


class FailRequest(JavaRequest):
    queueId: Long | None = None
    failMsg: FailMsg | None = None


class Failures(JavaEndpoint):
    limited = False
    body = Body(FailRequest, most_bytes=MOST_BYTES_OF_MESSAGES)

    def answer_to(self, call: Call, asked: FailRequest) -> dict[str, Any]:
        given = (asked.failMsg.msgs if asked.failMsg is not None else None) or []
        ids = sorted(
            {
                one.id
                for one in given
                if one is not None and one.id is not None and one.id > 0
            }
        )
        if ids:
            _report(call, asked.queueId or 0, ids)
        return {}


def _report(call: Call, queue_id: int, ids: list[int]) -> None:
    """Store copies of messages. Raises Invalid, Forbidden, Conflict(no_failure_topic),
    NodeUnavailable.
    """
    member_id, queue = handles.decode(queue_id)
    consumer = handles.find_consumer(member_id)
    if consumer is None:
        raise Invalid.field(
            "queueId", "is of a client that has expired or left: register again"
        )
    check_right(call, consumer.group_id)
    end = time.monotonic() + TRY_S
    while ids := _unstored(consumer, queue, ids):
        if time.monotonic() > end or not holds.pause(
            f"failure {queue_id}", call.actor, PAUSE_S
        ):
            raise NodeUnavailable(
                f"{len(ids)} failed messages could not be stored for a retry."
            )


def _unstored(consumer: ConsumerId, queue: int, ids: list[int]) -> list[int]:
    """Store copies of messages; return the ids of those for which a node does not answer."""
    try:
        held = node_owners.held(consumer=consumer, queues=[queue]).get(queue)
    except NodeUnavailable:
        return ids
    if held is None:
        return []  # another member owns the queue by now, and gets them
    found = [Failure(queue, held[0], one - 1, ERROR) for one in ids]
    report = failures.report(consumer=consumer, failures=found)
    metrics.FAILURES.labels("retried").inc(len(report.retried))
    metrics.FAILURES.labels("dead").inc(len(report.dead))
    return [one.offset + 1 for one in report.refused if one.state == "unavailable"]
