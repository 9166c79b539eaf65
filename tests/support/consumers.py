"""Consumers of a SimulatedBroker with short pauses, closed at the end of a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from catmq_client import Consumer
from tests.support.simulated import SimulatedBroker

Make = Callable[..., Consumer]
QUICK = {"group": "g", "topics": ["t"], "retry_backoff_ms": 1, "retry_backoff_max_ms": 20}


@contextmanager
def making(broker: SimulatedBroker) -> Iterator[Make]:
    """Yield a function that creates consumers, of group `g` and topic `t` unless options
    name others.
    """
    consumers: list[Consumer] = []

    def consumer(**options: Any) -> Consumer:
        consumers.append(Consumer(transport=broker, **{**QUICK, **options}))
        return consumers[-1]

    yield consumer
    broker.heal()
    for open_consumer in consumers:
        open_consumer.close()
