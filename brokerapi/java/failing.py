"""POST consumer/publishAndUpdateResultFailMsg: messages whose handler failed, and some that succeeded.

The client writes out a message that failed, for the topic `<group>_<topic>_fail`. The broker has it, and
takes only its id: it stores the copy with the next attempt, or with the dead. A message that succeeded at
last (`ids`) needs nothing: its queue is committed like any other.
"""

from __future__ import annotations

import time
from typing import Any

from brokerapi.endpoint import Call
from brokerapi.http import metrics
from brokerapi.java import handles, holds
from brokerapi.java.endpoint import Body, JavaEndpoint, JavaRequest, Long
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


class FailMsg(JavaRequest):
    msgs: list[FailedMessage | None] | None = None


class FailRequest(JavaRequest):
    queueId: Long | None = None
    failMsg: FailMsg | None = None


class Failures(JavaEndpoint):
    limited = False
    body = Body(FailRequest)

    def answer_to(self, call: Call, asked: FailRequest) -> dict[str, Any]:
        given = (asked.failMsg.msgs if asked.failMsg is not None else None) or []
        ids = sorted({one.id for one in given if one is not None and one.id is not None and one.id > 0})
        if ids:
            _report(asked.queueId or 0, ids)
        return {}


def _report(queue_id: int, ids: list[int]) -> None:
    """Store copies of messages. Raises Invalid, Conflict(no_failure_topic), NodeUnavailable."""
    member_id, queue = handles.parts(queue_id)
    consumer = handles.consumer_of(member_id)
    if consumer is None:
        raise Invalid.field("queueId", "is of a client that has expired or left: register again")
    end = time.monotonic() + TRY_S
    while ids := _unstored(consumer, queue, ids):
        if time.monotonic() > end or not holds.pause(f"failure {queue_id}", PAUSE_S):
            raise NodeUnavailable(f"{len(ids)} failed messages could not be stored for a retry.")


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
