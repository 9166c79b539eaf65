"""Handles orders in 32 threads until Ctrl-C or SIGTERM. Start as many such processes as
there is work for.

The members of a share group get messages of every queue, so there may be more of them than
queues. A message is done when its handler returns; if the process dies, another one gets it
when the lease has run out.
"""

from __future__ import annotations

import signal

from catmq_client import ShareConsumer, ShareMessage


def handle(message: ShareMessage) -> None:
    """Does the work for one order; an exception lets it come again after the subscription's
    next delay.
    """
    order = message.json()
    if "item" not in order:
        message.reject("an order without an item")  # a dead letter: no retry would help
        return
    # a worker that had it died, or gave it back: it may have been half done
    if message.deliveries > 1:
        print(f"again: {message.message_id}\n", end="", flush=True)
    print(f"{message.message_id}: {order['item']} for {message.key}\n", end="", flush=True)


with ShareConsumer(group="shared-workers", topics=["orders"]) as consumer:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: consumer.stop())
    consumer.run(handle, threads=32)
