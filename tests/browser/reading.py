"""A consumer of the client that reads beside a browser."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from catmq_client import Consumer, Message
from tests.support.server import Server

END_S = 60


@contextmanager
def reading(
    server: Server, *, group: str, topic: str, handler: Callable[[Message], object]
) -> Iterator[Consumer]:
    """A member of a group that calls the handler until the block is left."""
    consumer = Consumer(server.url, api_key=server.api_key, group=group, topics=[topic])
    thread = threading.Thread(
        target=consumer.run, args=(handler,), kwargs={"threads": 2}, daemon=True
    )
    thread.start()
    try:
        yield consumer
    finally:
        consumer.stop()
        thread.join(END_S)
