"""A group whose handlers are slower than the sender, and a count of the messages pulled for
it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from catmq_client import Consumer, Message
from catmq_client.http.transport import Transport

THREADS = 2
NO_PULL_S = 1.0


class CountingTransport:
    """A transport that counts pulls and the messages in their answers."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._changed = threading.Condition()
        self.messages = self.pulls = 0

    def request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        """See Transport."""
        answer = self._transport.request(method, path, **more)
        if path.endswith("/pull"):
            with self._changed:
                self.messages += sum(_count(queue) for queue in answer["queues"])
                self.pulls += 1
                self._changed.notify_all()
        return answer

    def await_pulls(self, count: int) -> None:
        """Wait until `count` more pulls were answered, or none came for a while."""
        with self._changed:
            goal = self.pulls + count
            self._changed.wait_for(lambda: self.pulls >= goal, NO_PULL_S)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run. `held` is the size of a buffer."""

    handled: int
    pulled: int
    held: int

    def check(self) -> None:
        """Check that the broker delivered each message about once."""
        assert self.pulled <= 1.2 * self.handled + self.held, self


def play(
    transport: Transport,
    *,
    group: str,
    topic: str,
    slow: Callable[[CountingTransport], object],
    is_over: Callable[[int], bool],
    **options: Any,
) -> Outcome:
    """Handle messages in THREADS threads, each after `slow(counted)`, until
    `is_over(handled)`.
    """
    counted = CountingTransport(transport)
    consumer = Consumer(transport=counted, group=group, topics=[topic], **options)
    guard = threading.Lock()
    handled = 0

    def handler(_message: Message) -> None:
        nonlocal handled
        slow(counted)
        with guard:
            handled += 1
            if is_over(handled):
                consumer.stop()

    consumer.run(handler, threads=THREADS, order="none")
    return Outcome(handled, counted.messages, consumer.options.max_poll_records)


def _count(queue: dict[str, Any]) -> int:
    return len(queue["rows"] if "rows" in queue else queue.get("messages", ()))
