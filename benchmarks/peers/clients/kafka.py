"""Kafka with confluent-kafka, which is librdkafka: acks=all, and a consumer group."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import confluent_kafka

from benchmarks.peers.clients import QUEUES, WAIT_S, Consumer, Publisher, Reading

# The library waits this long for a full batch. A short wait, or the end of the topic would
# cost a reader seconds that are not its own.
GATHER_S = 0.01


class KafkaPublisher(Publisher):
    def __init__(self, connection: Mapping[str, Any], topic: str) -> None:
        # linger.ms is 5 by default, which would be the time of each single send.
        options = {
            "bootstrap.servers": connection["address"],
            "acks": "all",
            "linger.ms": 0,
        }
        self._producer = confluent_kafka.Producer(options)
        self._topic = topic
        self._errors: list[Any] = []

    def send(self, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            self._producer.produce(self._topic, body, on_delivery=self._delivered)
        self._producer.flush()
        if self._errors:
            raise confluent_kafka.KafkaException(self._errors[0])

    def _delivered(self, error: Any, _message: Any) -> None:
        if error is not None:
            self._errors.append(error)


class KafkaConsumer(Consumer):
    def __init__(self, connection: Mapping[str, Any], reading: Reading) -> None:
        self._reading = reading
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": connection["address"],
                "group.id": reading.group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": reading.commits == "defaults",
            }
        )
        self._consumer.subscribe([reading.topic], on_assign=self._assign_paused)

    @staticmethod
    def _assign_paused(consumer: Any, partitions: Any) -> None:
        # The library fetches up to 100,000 messages of each partition ahead. Fetched before
        # the clock starts, they would be a quarter of the backlog for nothing.
        consumer.assign(partitions)
        consumer.pause(partitions)

    def begin(self) -> None:
        self._consumer.resume(self._consumer.assignment())

    def is_ready(self) -> bool:
        self._consumer.consume(1, 0.01)
        return len(self._consumer.assignment()) == QUEUES // self._reading.members

    def receive(self) -> Sequence[Any]:
        give_up_at = time.monotonic() + WAIT_S
        messages: Sequence[Any] = ()
        while not messages and time.monotonic() < give_up_at:
            messages = self._consumer.consume(self._reading.batch, GATHER_S)
        for message in messages:
            if message.error() is not None:
                raise confluent_kafka.KafkaException(message.error())
        return messages

    def acknowledge(self) -> None:
        if self._reading.commits == "each":
            self._consumer.commit(asynchronous=False)

    def body(self, message: Any) -> bytes:
        return bytes(message.value())

    def close(self) -> None:
        self._consumer.close()


publisher = KafkaPublisher
consumer = KafkaConsumer
