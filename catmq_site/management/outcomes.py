"""What the commands for a lost node print."""

from __future__ import annotations

from messagestore.promotion import Outcome


def report(done: Outcome) -> list[str]:
    """The outcome as lines."""
    lines = [f"Node {done.node} is {done.state.replace('_', '-')} under epoch {done.epoch}."]
    if done.gaps:
        lines.append(
            f"{done.gaps} of {done.queues} queues have a gap before their next message; consumers are "
            "told when they come to it, and go on behind it."
        )
        lines.append(f"At least {done.messages} messages are lost, by what brokers had seen.")
    else:
        lines.append("Nothing was lost: no queue has a gap.")
    lines += [
        f"  group {one.group} had not read {one.messages} of them in {one.topic}, queue {one.queue}"
        for one in done.lost
    ]
    return lines + [f"Note: {note}" for note in done.notes]
