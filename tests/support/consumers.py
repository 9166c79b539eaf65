"""Consumers of a SimulatedBroker that give up their pauses and are closed at the end."""

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
    """Makes consumers of group `g` and topic `t`, if the options name no others."""
    made: list[Consumer] = []

    def consumer(**options: Any) -> Consumer:
        made.append(Consumer(transport=broker, **{**QUICK, **options}))
        return made[-1]

    yield consumer
    broker.heal()
    for one in made:
        one.close()
