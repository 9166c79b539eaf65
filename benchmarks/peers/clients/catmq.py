"""CatMQ's own client, with its defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import catmq_client
from benchmarks.peers.clients import QUEUES, WAIT_S, Consumer, Publisher, Reading


class CatmqPublisher(Publisher):
    def __init__(self, connection: Mapping[str, Any], topic: str) -> None:
        self._producer = catmq_client.Producer(
            connection["url"], api_key=connection["api_key"]
        )
        self._topic = topic

    def send(self, bodies: Sequence[bytes]) -> None:
        if len(bodies) == 1:
            self._producer.send(self._topic, bodies[0])
            return
        for result in self._producer.send_batch(self._topic, bodies):
            if isinstance(result, Exception):
                raise result

    def close(self) -> None:
        self._producer.close()


class NamedQueuePublisher(CatmqPublisher):
    """Names key and queue of each message."""

    def __init__(self, connection: Mapping[str, Any], topic: str) -> None:
        super().__init__(connection, topic)
        self._queue = connection["queues"][topic][connection["worker"] % QUEUES]

    def send(self, bodies: Sequence[bytes]) -> None:
        messages = [
            catmq_client.NewMessage(body, key=f"key-{number}", queue=self._queue)
            for number, body in enumerate(bodies)
        ]
        for result in self._producer.send_batch(self._topic, messages):
            if isinstance(result, Exception):
                raise result


class CatmqConsumer(Consumer):
    def __init__(self, connection: Mapping[str, Any], reading: Reading) -> None:
        self._reading = reading
        options = {"auto_commit_interval_ms": 0} if reading.commits == "pulls" else {}
        self._consumer = catmq_client.Consumer(
            connection["url"],
            api_key=connection["api_key"],
            group=reading.group,
            topics=[reading.topic],
            **options,
        )

    def is_ready(self) -> bool:
        # A member releases queues only after the messages of its last poll are done. The
        # client fetches at most 500 messages ahead, so that needs no pause().
        self._consumer.poll(1, timeout_s=0.01)
        # The assignment also has queues of the topic for failed messages.
        queues = [
            queue
            for queue in self._consumer.assignment()
            if queue.topic == self._reading.topic
        ]
        return len(queues) == QUEUES // self._reading.members

    def receive(self) -> Sequence[Any]:
        if self._reading.commits == "defaults":
            return self._consumer.poll(timeout_s=WAIT_S)
        return self._consumer.poll(self._reading.batch, timeout_s=WAIT_S)

    def acknowledge(self) -> None:
        if self._reading.commits == "each":
            self._consumer.commit()

    def body(self, message: Any) -> bytes:
        return bytes(message.body)

    def close(self) -> None:
        self._consumer.close()


publisher = CatmqPublisher
named_publisher = NamedQueuePublisher
consumer = CatmqConsumer
