"""Wait for the threads of a consumer, with a limit."""

from __future__ import annotations

from collections.abc import Callable

from catmq_client import Consumer

LIMIT_S = 10.0


def becomes(consumer: Consumer, true: Callable[[], bool]) -> bool:
    """Return True if `true()` becomes true in time. It is called at every change of the
    consumer.
    """
    with consumer._state.changed:
        return consumer._state.changed.wait_for(true, LIMIT_S)


def owns(consumer: Consumer, count: int) -> bool:
    """Return True if the consumer owns exactly `count` queues in time."""
    return becomes(consumer, lambda: len(consumer.assignment()) == count)
