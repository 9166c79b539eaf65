"""Redis Streams with redis-py: XADD, and a consumer group with XREADGROUP and XACK."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import redis

from benchmarks.peers.clients import WAIT_S, Consumer, Publisher, Reading


class RedisPublisher(Publisher):
    def __init__(self, connection: Mapping[str, Any], topic: str) -> None:
        self._redis = redis.Redis(port=connection["port"])
        self._topic = topic

    def send(self, bodies: Sequence[bytes]) -> None:
        if len(bodies) == 1:
            self._redis.xadd(self._topic, {b"body": bodies[0]})
            return
        # One round trip for the batch. Redis syncs its log once for all commands that it
        # has read together.
        pipeline = self._redis.pipeline(transaction=False)
        for body in bodies:
            pipeline.xadd(self._topic, {b"body": body})
        pipeline.execute()


class RedisConsumer(Consumer):
    def __init__(self, connection: Mapping[str, Any], reading: Reading) -> None:
        self._redis = redis.Redis(port=connection["port"])
        self._reading = reading
        self._ids: list[bytes] = []
        # Another member may have created the group already.
        with suppress(redis.ResponseError):
            self._redis.xgroup_create(reading.topic, reading.group, id="0", mkstream=True)

    def receive(self) -> Sequence[Any]:
        streams = self._redis.xreadgroup(
            self._reading.group,
            f"member-{self._reading.member}",
            {self._reading.topic: ">"},
            count=self._reading.batch,
            block=round(1000 * WAIT_S),
        )
        # A list of pairs in protocol 2, a mapping in protocol 3.
        pairs = streams.items() if isinstance(streams, dict) else streams or ()
        messages: list[Any] = []
        for _, batches in pairs:
            entries = batches[0] if isinstance(streams, dict) else batches
            messages += entries
        self._ids = [entry_id for entry_id, _ in messages]
        return messages

    def acknowledge(self) -> None:
        if self._ids:
            self._redis.xack(self._reading.topic, self._reading.group, *self._ids)

    def body(self, message: Any) -> bytes:
        return bytes(message[1][b"body"])


publisher = RedisPublisher
consumer = RedisConsumer
