"""NATS JetStream with nats-py: a stream for each topic, a durable pull consumer for each
group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import nats
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from benchmarks.peers.clients import WAIT_S, Consumer, Publisher, Reading


class _Connection:
    def __init__(self, connection: Mapping[str, Any]) -> None:
        self._runner = asyncio.Runner()
        self._nats = self._runner.run(
            nats.connect(f"nats://127.0.0.1:{connection['port']}")
        )
        self._stream = self._nats.jetstream()

    def close(self) -> None:
        self._runner.run(self._nats.close())
        self._runner.close()


class NatsPublisher(_Connection, Publisher):
    def __init__(self, connection: Mapping[str, Any], topic: str) -> None:
        super().__init__(connection)
        self._topic = topic

    def send(self, bodies: Sequence[bytes]) -> None:
        self._runner.run(self._send(bodies))

    async def _send(self, bodies: Sequence[bytes]) -> None:
        # Each message has an acknowledgement of its own; all are awaited together.
        await asyncio.gather(*(self._stream.publish(self._topic, body) for body in bodies))


class NatsConsumer(_Connection, Consumer):
    def __init__(self, connection: Mapping[str, Any], reading: Reading) -> None:
        super().__init__(connection)
        self._batch = reading.batch
        self._messages: Sequence[Any] = ()
        config = ConsumerConfig(
            ack_policy=AckPolicy.EXPLICIT,
            deliver_policy=DeliverPolicy.ALL,
            max_ack_pending=10_000,
        )
        self._subscription = self._runner.run(
            self._stream.pull_subscribe(
                reading.topic, durable=reading.group, stream=reading.topic, config=config
            )
        )

    def receive(self) -> Sequence[Any]:
        self._messages = self._runner.run(self._fetch())
        return self._messages

    async def _fetch(self) -> Sequence[Any]:
        try:
            return list(await self._subscription.fetch(self._batch, timeout=WAIT_S))
        except TimeoutError:  # the library's error is a subclass
            return ()

    def acknowledge(self) -> None:
        self._runner.run(self._acknowledge())

    async def _acknowledge(self) -> None:
        for message in self._messages:
            await message.ack()
        await self._nats.flush()

    def body(self, message: Any) -> bytes:
        return bytes(message.data)


publisher = NatsPublisher
consumer = NatsConsumer
