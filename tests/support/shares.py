"""A share group on a FakeBroker, and members with short pauses that are closed at the end
of a test.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from catmq_client import NewMessage, Producer, ShareConsumer, ShareMessage
from catmq_client.testing import FakeBroker

QUICK = {"group": "g", "topics": ["t"], "retry_backoff_ms": 1, "retry_backoff_max_ms": 20}
LIMIT_S = 10.0
Make = Callable[..., ShareConsumer]


def shared_topic() -> FakeBroker:
    """Return a broker with topic `t` of a single queue, which share group `g` reads."""
    broker = FakeBroker()
    broker.create_topic("t", queues=1)
    broker.subscribe("g", "t", mode="share")
    return broker


def committed(broker: FakeBroker) -> int:
    """Return the sum of the group's committed offsets."""
    return sum(broker.committed("g").values())


@contextmanager
def sharing(broker: FakeBroker) -> Iterator[Make]:
    """Yield a function that creates members, of group `g` and topic `t` unless options name
    others.
    """
    consumers: list[ShareConsumer] = []

    def consumer(**options: Any) -> ShareConsumer:
        consumers.append(ShareConsumer(transport=broker, **{**QUICK, **options}))
        return consumers[-1]

    yield consumer
    broker.heal()
    for open_consumer in consumers:
        open_consumer.close(timeout_s=LIMIT_S)


def send(broker: FakeBroker, count: int, *, topic: str = "t", **more: Any) -> None:
    """Send messages whose bodies are 0, 1, …."""
    with Producer(transport=broker) as producer:
        producer.send_batch(topic, [NewMessage(b"%d" % n, **more) for n in range(count)])


def numbers(messages: list[ShareMessage]) -> list[int]:
    """Return the numbers in the bodies of messages."""
    return [int(message.body) for message in messages]


class Running:
    """A member in run(), in a thread of its own. Its handlers collect messages in `got`."""

    def __init__(
        self, consumer: ShareConsumer, handler: Callable[[Any], object], **options: Any
    ) -> None:
        self.consumer = consumer
        self.got: list[ShareMessage] = []
        self.raised: list[BaseException] = []
        self._handler = handler
        self._thread = threading.Thread(target=self._run, kwargs=options)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.consumer.stop()
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()

    def _run(self, **options: Any) -> None:
        try:
            self.consumer.run(self._handle, **options)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.raised.append(error)

    def _handle(self, message: ShareMessage) -> None:
        self.got.append(message)
        self._handler(message)
