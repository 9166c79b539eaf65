"""Output of the commands that change the queues of a topic."""

from __future__ import annotations

from messagestore.topology.drains import Unread
from messagestore.topology.queues import Change
from metadata.topics.topic_rows import QueueView


def report(change: Change, verb: str) -> list[str]:
    """A line for the topic, one for each queue it is about, and one for each group."""
    count = len(change.queues)
    moving = f"{'would go' if change.dry_run else 'go'} to another queue"
    first = f"Topic {change.topic} {verb} {count} queue{'s' if count > 1 else ''}; "
    return [
        f"{first}{100 * change.moved_share:.1f} % of the keys {moving}.",
        *(_queue(one, planned=change.dry_run and one.state == "creating") for one in change.queues),
        *map(_unread, change.unread),
    ]


def _queue(one: QueueView, *, planned: bool) -> str:
    return f"  {'a new queue' if planned else f'queue {one.queue}'} on node {one.node}, number {one.number}"


def _unread(one: Unread) -> str:
    left = "an unknown number of" if one.messages is None else one.messages
    return f"  group {one.group} has {left} messages unread in the queues that keys leave"
