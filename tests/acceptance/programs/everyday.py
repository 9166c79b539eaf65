"""What most applications do with a client: send in every way, consume, commit, come back.

everyday.py URL API_KEY TOPIC GROUP

Runs with the client of this release and of the previous one. Prints a JSON object: the
version and file of the client, `sent` and `received` (sorted texts), `again` (texts that a
second consumer got), and `refusals`, the requests that the broker refused.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import catmq_client
from catmq_client import CatmqError, Consumer, HttpTransport, NewMessage, Producer

ROUNDS = 6
BATCH = 20
WAIT_S = 30.0
REST_S = 1.0  # for messages that should not come
COMMIT_EVERY_MS = 20  # so that commits are due while the consumer still pulls


class RecordingTransport(HttpTransport):
    """Keeps each request that a broker refuses, whatever the client makes of it."""

    refusals: list[str]

    def request(self, method: str, path: str, **arguments: Any) -> dict[str, Any]:
        try:
            return super().request(method, path, **arguments)
        except CatmqError as error:
            self.refusals.append(f"{method} {path}: {error!r} {arguments.get('body')!r}")
            raise


def send_all(transport: HttpTransport, topic: str) -> list[str]:
    """Send messages in each way that a producer has. Return their texts."""
    texts: list[str] = []

    def text(way: str) -> str:
        texts.append(f"{way}-{len(texts)}")
        return texts[-1]

    with Producer(transport=transport) as producer:
        queue = producer.send(topic, text("single").encode()).queue
        producer.send(topic, text("keyed").encode(), key="k", tag="t", headers={"h": "v"})
        producer.send(topic, text("named").encode(), queue=queue)
        for _ in range(ROUNDS):
            producer.send_batch(
                topic, [NewMessage(text("batch").encode()) for _ in range(BATCH)]
            )
            producer.send_batch(
                topic,
                [NewMessage(text("keys").encode(), key=str(n)) for n in range(BATCH)],
            )
            producer.send_batch(
                topic,
                [NewMessage(text("queue").encode(), queue=queue) for _ in range(BATCH)],
            )
        futures = [producer.send_async(topic, text("async").encode()) for _ in range(BATCH)]
        for future in futures:
            future.result()
    return texts


def consume(transport: HttpTransport, topic: str, group: str, count: int) -> list[str]:
    """Return the texts of `count` messages, or of those that come within a time."""
    texts: list[str] = []
    wait_s = WAIT_S if count else REST_S
    with Consumer(
        transport=transport,
        group=group,
        topics=[topic],
        auto_commit_interval_ms=COMMIT_EVERY_MS,
        max_poll_records=BATCH,
    ) as consumer:
        while len(texts) < max(count, 1):
            messages = consumer.poll(timeout_s=wait_s)
            if not messages:
                break
            texts += [message.text for message in messages]
        if count:
            consumer.commit()
    return texts


def main(url: str, api_key: str, topic: str, group: str) -> None:
    transport = RecordingTransport(url, api_key=api_key)
    transport.refusals = []
    sent = send_all(transport, topic)
    received = consume(transport, topic, group, len(sent))
    again = consume(transport, topic, group, 0)
    result = {
        "version": catmq_client.__version__,
        "file": catmq_client.__file__,
        "sent": sorted(sent),
        "received": sorted(received),
        "again": again,
        "refusals": transport.refusals,
    }
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
