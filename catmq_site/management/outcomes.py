"""Texts that the commands about nodes print."""

from __future__ import annotations

from datetime import UTC, datetime

from messagestore.nodes.preflight import Preflight
from messagestore.nodes.promotion import Outcome
from messagestore.nodes.promotion_plans import Plan
from messagestore.nodes.replica_inspection import Lost, delayed_loss
from metadata.installation import name_programs


def describe_outcome(outcome: Outcome) -> list[str]:
    lines = [
        f"Node {outcome.node} is {outcome.state.replace('_', '-')} under epoch {outcome.epoch}."
    ]
    if outcome.gaps:
        lines.append(
            f"{outcome.gaps} of {outcome.queues} queues have a gap before their next message; "
            "consumers are told when they come to it, and go on behind it."
        )
        lines.append(
            f"At least {outcome.messages} messages are lost, by what brokers had seen."
        )
    else:
        lines.append("Nothing was lost: no queue has a gap.")
    lines += [_describe_loss(loss) for loss in outcome.lost]
    return lines + [name_programs(f"Note: {note}") for note in outcome.notes]


def describe_plan(plan: Plan) -> list[str]:
    lines = [f"Node {plan.node} would be at {plan.target}."]
    if plan.primary_answers:
        lines.append(
            "The old primary answers: it would be closed, and its last messages waited for."
        )
    elif plan.primary_answers is False:
        lines.append(
            f"The old primary does not answer: {plan.brokers} broker processes would have "
            "to let go of it."
        )
    if plan.copies is None:
        lines.append(
            "Whether the new one still copies is not known: the account lacks the right PROCESS."
        )
    if plan.gaps:
        lines.append(f"As it is now, {plan.gaps} of {plan.queues} queues would get a gap.")
        lines.append(f"At least {plan.messages} messages are not there.")
    else:
        lines.append("At present, no messages would be lost.")
    lines += [_describe_loss(loss) for loss in plan.lost]
    if plan.delayed:
        lines.append(f"Note: {delayed_loss(plan.delayed)}")
    return [*lines, "Nothing was changed."]


def describe_findings(preflight: Preflight) -> list[str]:
    signs = {"ok": "ok  ", "warn": "warn", "bad": "BAD "}
    return [
        f"{signs[finding.verdict]} {finding.about}: {finding.detail}"
        for finding in preflight.findings
    ]


def _describe_loss(loss: Lost) -> str:
    queue_text = f"in {loss.topic}, queue {loss.queue}"
    if loss.as_of_ms is None:
        return (
            f"  group {loss.group} may not have read {loss.messages} of them {queue_text}: its "
            "position is not known"
        )
    at = datetime.fromtimestamp(loss.as_of_ms / 1000, UTC)
    return (
        f"  group {loss.group} had not read {loss.messages} of them {queue_text}, as of "
        f"{at:%Y-%m-%d %H:%M:%S} UTC"
    )
