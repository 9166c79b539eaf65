"""Prints orders until none has come for five seconds. CATMQ_URL and CATMQ_API_KEY come from
the environment.

A message is committed once the loop asks for the next one: after a crash, the last may come
again.
"""

from __future__ import annotations

from catmq_client import Consumer

with Consumer(group="billing", topics=["orders"], consumer_timeout_ms=5_000) as consumer:
    for message in consumer:
        print(
            f"{message.key}: {message.json()['item']} (queue {message.queue}, offset "
            f"{message.offset})"
        )
