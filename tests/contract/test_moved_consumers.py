"""Positions move while consumers read: they go on at the new place, and lose nothing behind
it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from catmq_client import Consumer, HttpTransport, Message
from catmq_client.admin.api import Admin
from tests.support.broker import Broker
from tests.support.waiting import until

COUNT = 3_000


class Reading:
    """A consumer in a thread of its own, and the offsets it handled, in order."""

    def __init__(self, broker: Broker, threads: int) -> None:
        self.handled: list[int] = []
        self.epochs: list[int] = []
        self.held = threading.Event()
        self.held.set()
        self._consumer = Consumer(
            broker.url, api_key=broker.api_key, group="moved", topics=["single"]
        )
        run: Callable[..., Any] = self._consumer.run
        self._thread = threading.Thread(
            target=run, args=(self.handle,), kwargs={"threads": threads}
        )
        self._thread.start()

    def handle(self, message: Message) -> None:
        """Notes the message; waits while it is held."""
        self.held.wait(30)
        self.handled.append(message.offset)
        self.epochs.append(message.epoch)

    def close(self) -> None:
        """Ends it."""
        self.held.set()
        self._consumer.stop() if hasattr(self._consumer, "stop") else self._consumer.close()
        self._thread.join(30)
        self._consumer.close()


@pytest.mark.parametrize("threads", [1, 4])
def test_a_consumer_that_is_reading_goes_on_where_it_was_moved(
    broker: Broker, queue: int, threads: int
) -> None:
    admin = Admin(HttpTransport(broker.url, api_key=broker.api_key))
    for first in range(0, COUNT, 1000):
        messages = [
            {"body": str(n), "key": str(n % 50)} for n in range(first, first + 1000)
        ]
        broker.ok("POST", "/topics/single/messages", {"messages": messages})
    reading = Reading(broker, threads)
    try:
        until(lambda: len(reading.handled) > 200)
        reading.held.clear()  # handlers have messages in hand, and more are fetched
        admin.reset_offsets("moved", "single", to="offset", offset=2_500)
        reading.held.set()
        until(lambda: COUNT - 1 in reading.handled)
        until(lambda: admin.lag("moved")["lag"] == 0)
        later = [
            n
            for n, epoch in zip(reading.handled, reading.epochs, strict=True)
            if epoch != reading.epochs[0]
        ]
        assert sorted(later) == [*range(2_500, COUNT)]

        count = len(reading.handled)
        admin.reset_offsets("moved", "single", to="offset", offset=1_000)
        until(lambda: len(reading.handled) - count >= 2_000)
        assert sorted(reading.handled[count:]) == [*range(1_000, COUNT)]
        until(lambda: admin.lag("moved")["lag"] == 0)

        (undone,) = admin.undo_offsets("moved")["moves"]
        assert (undone["to"], undone["repeated"]) == (COUNT, 0)
    finally:
        reading.close()
