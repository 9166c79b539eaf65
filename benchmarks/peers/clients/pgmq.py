"""PGMQ: SQL functions of PostgreSQL, called with psycopg."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

from benchmarks.peers.clients import WAIT_S, Consumer, Publisher, Reading

INVISIBLE_S = 30
POLL_MS = 10  # how often the server looks for messages while a read waits


class PgmqPublisher(Publisher):
    def __init__(self, connection: Mapping[str, Any], topic: str) -> None:
        self._connection = psycopg.connect(connection["dsn"], autocommit=True)
        self._topic = topic

    def send(self, bodies: Sequence[bytes]) -> None:
        # Messages are JSON documents; these bodies have no character to be escaped.
        texts = [f'{{"body":"{body.decode()}"}}' for body in bodies]
        if len(texts) == 1:
            statement = "SELECT pgmq.send(%s::text, %s::jsonb)"
            self._connection.execute(statement, (self._topic, texts[0])).fetchall()
            return
        statement = "SELECT pgmq.send_batch(%s::text, %s::jsonb[])"
        self._connection.execute(statement, (self._topic, texts)).fetchall()

    def close(self) -> None:
        self._connection.close()


class PgmqConsumer(Consumer):
    def __init__(self, connection: Mapping[str, Any], reading: Reading) -> None:
        self._connection = psycopg.connect(connection["dsn"], autocommit=True)
        self._reading = reading
        self._ids: list[int] = []

    def receive(self) -> Sequence[Any]:
        messages = self._connection.execute(
            "SELECT msg_id, message FROM pgmq.read_with_poll("
            "%s::text, %s::int, %s::int, %s::int, %s::int)",
            (self._reading.topic, INVISIBLE_S, self._reading.batch, int(WAIT_S), POLL_MS),
        ).fetchall()
        self._ids = [message_id for message_id, _ in messages]
        return messages

    def acknowledge(self) -> None:
        if self._ids:
            self._connection.execute(
                "SELECT pgmq.delete(%s::text, %s::bigint[])",
                (self._reading.topic, self._ids),
            ).fetchall()

    def body(self, message: Any) -> bytes:
        return str(message[1]["body"]).encode()

    def close(self) -> None:
        self._connection.close()


publisher = PgmqPublisher
consumer = PgmqConsumer
