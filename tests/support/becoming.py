"""Waiting for what a consumer's threads do, with a limit."""

from __future__ import annotations

from collections.abc import Callable

from catmq_client import Consumer

LIMIT_S = 10.0


def becomes(consumer: Consumer, true: Callable[[], bool]) -> bool:
    """Whether `true()`, looked at whenever something changes in the consumer, became true
    in time.
    """
    with consumer._state.changed:
        return consumer._state.changed.wait_for(true, LIMIT_S)


def owns(consumer: Consumer, count: int) -> bool:
    """Whether the consumer came to hold just so many queues in time."""
    return becomes(consumer, lambda: len(consumer.assignment()) == count)
