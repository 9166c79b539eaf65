"""Handles orders in eight threads until Ctrl-C or SIGTERM, those of one customer one after
the other.

What a handler came back from is committed; whatever it did not finish, the next worker gets
again.
"""

from __future__ import annotations

import signal

from catmq_client import Consumer, Message


def handle(message: Message) -> None:
    """Does the work for one order; it may be called twice for the same message_id."""
    print(
        f"{message.message_id}: {message.json()['item']} for {message.key}\n",
        end="",
        flush=True,
    )


with Consumer(group="workers", topics=["orders"]) as consumer:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: consumer.stop())
    consumer.run(handle, threads=8)
