"""An outbox in the test database, a broker in memory, and relays between them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import transaction

from catmq_client.contrib.django_outbox import outbox
from catmq_client.contrib.django_outbox.claims import Claims
from catmq_client.contrib.django_outbox.models import (
    InboxMessage,
    OutboxMessage,
    OutboxRelay,
)
from catmq_client.contrib.django_outbox.relay import PassResult, Relay
from catmq_client.message import Message, Source, make_row
from tests.support.simulated import SimulatedBroker


def forget_all() -> None:
    """Empty the tables. The lanes stay, as after the migration."""
    for model in (OutboxMessage, OutboxRelay, InboxMessage):
        model.objects.all().delete()


def commit(*bodies: str, topic: str = "t", **more: Any) -> None:
    """Send messages in a single transaction."""
    with transaction.atomic():
        for body in bodies:
            outbox.send(topic, body, **more)


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Relays:
    """Relays that work on the same outbox in succession."""

    def __init__(self, broker: SimulatedBroker) -> None:
        self.broker = broker
        self.clock = Clock()

    def new(self, name: str = "first") -> Relay:
        """Return a relay that has just started and holds the lease."""
        relay = Relay(self.broker, Claims(name), clock=self.clock)
        assert relay.claims.acquire() == ""
        return relay

    def drain(self, relay: Relay) -> PassResult:
        """Make failed messages due again, and run passes until nothing is left. Return the
        last pass.
        """
        self.clock.now += 60.0
        while (pass_result := relay.run_once()).advanced:
            pass
        return pass_result


def received(offset: int = 0) -> Message:
    """Return a message of queue 7 of topic t, as a consumer gets it."""
    return Message(
        Source("t", 7, 1),
        make_row({"offset": offset, "body_bytes": b"", "stored_at_ms": 0}),
    )


@contextmanager
def lost_lease(relay: Relay) -> Iterator[Relay]:
    """During the block another relay, which is yielded, holds the lease."""
    relay.claims.release()
    other = Relay(relay._transport, Claims("the other"), clock=relay._clock)
    assert other.claims.acquire() == ""
    yield other
    other.claims.release()


def bodies(broker: SimulatedBroker, topic: str = "t", key: str | None = None) -> list[str]:
    """Return the bodies in the topic's queues, each queue in order; with a key, only its
    messages.
    """
    return [
        message.body.decode()
        for queue in broker.topics.find(topic).queues
        for message in queue.messages
        if key is None or message.key == key
    ]
