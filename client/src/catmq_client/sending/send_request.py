"""A request that sends messages, the outcome of each message, and the rule after a failure.

All senders follow `after_failure`: the producer (delivery.py), the relay of the outbox, and
the writer of Spark. A request is repeated under the same batch_id to the same queue, so
that it is stored once. Only messages that are certainly not stored are sent to another
queue, or in parts, under another batch_id.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from typing import Any

from catmq_client.errors import (
    AnswerLost,
    CatmqError,
    InvalidRequest,
    MessageRefused,
    OptionError,
    ServerFailed,
)
from catmq_client.http.transport import Transport, api_path
from catmq_client.sending.receipts import Outcome, Receipt
from catmq_client.sending.routing import Kind

# A broker refuses with these codes before it stores anything. QUEUE_CLOSED concerns a
# single queue, NODE_AWAY all queues of its node.
QUEUE_CLOSED = ("queue_not_writable", "queue_not_found")
NODE_AWAY = ("node_unavailable", "node_full")
# An internal error of the broker may recur at every try, so tries after it are limited.
TRIES_OF_A_BUG = 3
_INDEX = re.compile(r"messages\[(\d+)\]")


class NextStep(Enum):
    """Next step for a batch after a failed try."""

    REPEAT = "repeat"  # the same batch again, after a delay
    MOVE = "move"  # to another queue, under another id
    SPLIT = "split"  # without the messages that the error names, or in halves
    FAIL = "fail"


def after_failure(
    error: CatmqError,
    *,
    kind: Kind,
    messages: int,
    tries: int = 1,
    unknown: bool = False,
    resend_unknown: bool = False,
) -> NextStep:
    """Choose the next step for a batch of `messages` messages after a failed try. Pure.

    `tries` counts the tries so far, including the failed try. `unknown` is True if any of
    them may have stored the batch. Then it stays in its queue, unless the topic prefers
    duplicates to lost messages (`resend_unknown`).
    """
    # Parts have new batch_ids, so a part of a batch that may be stored would be a duplicate.
    if isinstance(error, InvalidRequest | OptionError) and messages > 1 and not unknown:
        return NextStep.SPLIT
    if isinstance(error, ServerFailed):
        return NextStep.REPEAT if tries < TRIES_OF_A_BUG else NextStep.FAIL
    if error.code in QUEUE_CLOSED + NODE_AWAY:
        if unknown and not resend_unknown:
            return NextStep.REPEAT
        if kind != Kind.NAMED:
            return NextStep.MOVE
    return NextStep.REPEAT if error.retriable or error.outcome_unknown else NextStep.FAIL


def errors_by_index(error: CatmqError, messages: int) -> dict[int, str]:
    """Return the error text for each message of the batch that an error names, by index."""
    matches = ((_INDEX.match(field.field), field.message) for field in error.errors)
    return {
        int(match[1]): text for match, text in matches if match and int(match[1]) < messages
    }


def send(
    transport: Transport,
    *,
    topic: str,
    messages: Sequence[dict[str, Any]],
    batch_id: str,
    timeout_s: float,
) -> list[Outcome]:
    """Send messages in a single request. Return the outcome of each message, in order.

    Raises what Transport.request raises, and AnswerLost if the answer cannot be read or
    does not cover all messages.
    """
    path = api_path("topics", topic, "messages")
    body = {"messages": messages, "batch_id": batch_id}
    try:
        answer = transport.request(
            "POST", path, body={**body, "receipts": "runs"}, timeout_s=timeout_s
        )
    except InvalidRequest as error:
        if not any(field.field == "receipts" for field in error.errors):
            raise
        # The broker is of a release that has no runs in answers. It has stored nothing.
        answer = transport.request("POST", path, body=body, timeout_s=timeout_s)
    try:
        runs = answer.get("runs")
        if runs is None:
            runs = [{"count": 1, "result": result} for result in answer["results"]]
        outcomes: list[Outcome] = []
        new_tuple = tuple.__new__
        # A run covers `count` messages: at successive offsets from `offset` of its queue,
        # or with a `result` that all of them share.
        for run in runs:
            if "result" in run:
                outcomes += [_outcome(topic, run["result"]) for _ in range(run["count"])]
                continue
            queue, first = run["queue"], run["offset"]
            # tuple.__new__ takes half as long as the constructor of a NamedTuple.
            outcomes += [
                new_tuple(Receipt, (topic, queue, offset, f"{queue}-{offset}", None))
                for offset in range(first, first + run["count"])
            ]
    except (KeyError, TypeError, ValueError) as error:
        raise AnswerLost(f"the response to a send cannot be read: {error!r}") from error
    if len(outcomes) != len(messages):
        raise AnswerLost(f"{len(outcomes)} results for {len(messages)} messages")
    return outcomes


def _outcome(topic: str, result: dict[str, Any]) -> Outcome:
    """Return the receipt or error of a result.

    A result is `{queue, offset, message_id}`, `{message_id, due_at_ms}` or `{error: {…}}`.
    """
    refusal = result.get("error")
    if refusal is not None:
        retriable = refusal.get("retriable", False)
        return MessageRefused(refusal["detail"], code=refusal["code"], retriable=retriable)
    field = result.get
    return Receipt(
        topic, field("queue"), field("offset"), result["message_id"], field("due_at_ms")
    )
