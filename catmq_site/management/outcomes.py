"""Output of the commands about nodes."""

from __future__ import annotations

from datetime import UTC, datetime

from messagestore.nodes.preflight import Preflight
from messagestore.nodes.promotion import Outcome
from messagestore.nodes.promotion_plans import Plan
from messagestore.nodes.replica_inspection import Lost, delayed_loss


def report(done: Outcome) -> list[str]:
    lines = [
        f"Node {done.node} is {done.state.replace('_', '-')} under epoch {done.epoch}."
    ]
    if done.gaps:
        lines.append(
            f"{done.gaps} of {done.queues} queues have a gap before their next message; "
            "consumers are "
            "told when they come to it, and go on behind it."
        )
        lines.append(
            f"At least {done.messages} messages are lost, by what brokers had seen."
        )
    else:
        lines.append("Nothing was lost: no queue has a gap.")
    lines += [_lost(one) for one in done.lost]
    return lines + [f"Note: {note}" for note in done.notes]


def foretell(plan: Plan) -> list[str]:
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
    lines += [_lost(delayed) for delayed in plan.lost]
    if plan.delayed:
        lines.append(f"Note: {delayed_loss(plan.delayed)}")
    return [*lines, "Nothing was changed."]


def findings(found: Preflight) -> list[str]:
    signs = {"ok": "ok  ", "warn": "warn", "bad": "BAD "}
    return [f"{signs[one.verdict]} {one.about}: {one.detail}" for one in found.findings]


def _lost(one: Lost) -> str:
    where = f"in {one.topic}, queue {one.queue}"
    if one.as_of_ms is None:
        return (
            f"  group {one.group} may not have read {one.messages} of them {where}: its "
            "position is not known"
        )
    at = datetime.fromtimestamp(one.as_of_ms / 1000, UTC)
    return (
        f"  group {one.group} had not read {one.messages} of them {where}, as of "
        f"{at:%Y-%m-%d %H:%M:%S} UTC"
    )
