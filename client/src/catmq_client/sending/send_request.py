"""One request that sends messages, what a broker says of each of them, and what follows a
failed try.

`after_failure` is the rule of all who send: the producer (delivery.py), the relay of the
outbox, the writer of Spark. A request is repeated under the same batch_id to the same
queue, so that it is stored once; only what is certainly not stored moves to another queue,
or goes again in parts, under another id.
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

# Refusals of a queue, before anything was stored; the latter two are its whole node's.
QUEUE_CLOSED = ("queue_not_writable", "queue_not_found")
NODE_AWAY = ("node_unavailable", "node_full")
# A bug at the broker may be met by every try: only so many.
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
    """Choose the next step for a batch of so many messages. Pure.

    `tries`: those made, with the failed one. `unknown`: one of them may have stored the
    batch, which then stays in its queue, unless the topic wants it twice rather than not at
    all (`resend_unknown`).
    """
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
    """The messages of a batch, by place, that an error names, and what is wrong with each."""
    found = ((_INDEX.match(one.field), one.message) for one in error.errors)
    return {
        int(place[1]): text for place, text in found if place and int(place[1]) < messages
    }


def send(
    transport: Transport,
    *,
    topic: str,
    messages: Sequence[dict[str, Any]],
    batch_id: str,
    timeout_s: float,
) -> list[Outcome]:
    """Send messages; return the outcome of each, in order.

    Raises what Transport.request raises; AnswerLost for an answer that does not speak of
    all of them.
    """
    path, body = (
        api_path("topics", topic, "messages"),
        {"messages": messages, "batch_id": batch_id},
    )
    try:
        answer = transport.request(
            "POST", path, body={**body, "receipts": "runs"}, timeout_s=timeout_s
        )
    except InvalidRequest as error:
        if not any(one.field == "receipts" for one in error.errors):
            raise
        # A broker from before there were runs; it has stored nothing.
        answer = transport.request("POST", path, body=body, timeout_s=timeout_s)
    try:
        runs = answer.get("runs")
        outcomes = (
            _of_runs(topic, runs)
            if runs is not None
            else [_outcome(topic, r) for r in answer["results"]]
        )
    except (KeyError, TypeError, ValueError) as error:
        raise AnswerLost(f"the response to a send cannot be read: {error!r}") from error
    if len(outcomes) != len(messages):
        raise AnswerLost(f"{len(outcomes)} results for {len(messages)} messages")
    return outcomes


def _of_runs(topic: str, runs: Sequence[dict[str, Any]]) -> list[Outcome]:
    """A run tells of messages that lie side by side, or has the result of each of them."""
    outcomes: list[Outcome] = []
    for run in runs:
        if "result" in run:
            outcomes += [_outcome(topic, run["result"]) for _ in range(run["count"])]
            continue
        queue, first = run["queue"], run["offset"]
        offsets = range(first, first + run["count"])
        outcomes += [
            Receipt(topic, queue, offset, f"{queue}-{offset}") for offset in offsets
        ]
    return outcomes


def _outcome(topic: str, result: dict[str, Any]) -> Outcome:
    """A result `{queue, offset, message_id}`, `{message_id, due_at_ms}` or `{error: {…}}`."""
    refusal = result.get("error")
    if refusal is not None:
        retriable = refusal.get("retriable", False)
        return MessageRefused(refusal["detail"], code=refusal["code"], retriable=retriable)
    told = result.get
    return Receipt(
        topic, told("queue"), told("offset"), result["message_id"], told("due_at_ms")
    )
