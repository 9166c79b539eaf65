"""One request that sends messages: what goes to a broker, and what it says of each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from catmq_client.errors import AnswerLost, InvalidRequest, MessageRefused
from catmq_client.http.transport import Transport, api_path
from catmq_client.sending.receipts import Outcome, Receipt


def send(
    transport: Transport, *, topic: str, messages: Sequence[dict[str, Any]], batch_id: str, timeout_s: float
) -> list[Outcome]:
    """Send messages; return the outcome of each, in order.

    Raises what Transport.request raises; AnswerLost for an answer that does not speak of all of them.
    """
    path, body = api_path("topics", topic, "messages"), {"messages": messages, "batch_id": batch_id}
    try:
        answer = transport.request("POST", path, body={**body, "receipts": "runs"}, timeout_s=timeout_s)
    except InvalidRequest as error:
        if not any(one.field == "receipts" for one in error.errors):
            raise
        # A broker from before there were runs; it has stored nothing.
        answer = transport.request("POST", path, body=body, timeout_s=timeout_s)
    try:
        outcomes = _outcomes(topic, answer)
    except (KeyError, TypeError, ValueError) as error:
        raise AnswerLost(f"the answer to a send cannot be understood: {error!r}") from error
    if len(outcomes) != len(messages):
        raise AnswerLost(f"{len(outcomes)} results for {len(messages)} messages")
    return outcomes


def _outcomes(topic: str, answer: dict[str, Any]) -> list[Outcome]:
    runs = answer.get("runs")
    return _of_runs(topic, runs) if runs is not None else [_outcome(topic, one) for one in answer["results"]]


def _of_runs(topic: str, runs: Sequence[dict[str, Any]]) -> list[Outcome]:
    """A run tells of messages that lie side by side, or has the result of each of them."""
    outcomes: list[Outcome] = []
    for run in runs:
        if "result" in run:
            outcomes += [_outcome(topic, run["result"]) for _ in range(run["count"])]
            continue
        queue, first = run["queue"], run["offset"]
        offsets = range(first, first + run["count"])
        outcomes += [Receipt(topic, queue, offset, f"{queue}-{offset}") for offset in offsets]
    return outcomes


def _outcome(topic: str, result: dict[str, Any]) -> Outcome:
    """A result `{queue, offset, message_id}`, `{message_id, due_at_ms}` or `{error: {…}}`."""
    refusal = result.get("error")
    if refusal is not None:
        retriable = refusal.get("retriable", False)
        return MessageRefused(refusal["detail"], code=refusal["code"], retriable=retriable)
    told = result.get
    return Receipt(topic, told("queue"), told("offset"), result["message_id"], told("due_at_ms"))
