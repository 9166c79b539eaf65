"""Clients of each system, with one interface.

These modules run in client processes, in the environment of the system's library. They
import that library, the standard library and this module only.

A module has two functions, `publisher(connection, topic)` and `consumer(connection, reading)`.
`connection` is the result of connection() of the running server.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

BODY_BYTES = 200
QUEUES = 4  # of a topic, where a system divides topics
WAIT_S = 1.0  # longest wait of a receive() without messages


@dataclass(frozen=True)
class Reading:
    """The topic and group of a consumer, and how it commits.

    `member` counts from 0 to `members` - 1. `commits` is

    each      every batch is acknowledged before the next receive
    pulls     every batch is acknowledged by the request for later messages (CatMQ only)
    defaults  in the background, as the client does by default; a client without such a
              default acknowledges each batch
    """

    topic: str
    group: str
    member: int
    members: int
    batch: int
    commits: str


class Publisher(ABC):
    """Sends messages and waits until the server has confirmed them."""

    @abstractmethod
    def send(self, bodies: Sequence[bytes]) -> None:
        """Send and wait for all confirmations. Raises the first error."""

    def close(self) -> None:  # noqa: B027  not every library needs it
        """Close the connection."""


class Consumer(ABC):
    """Receives messages of a topic as member of a group, from its beginning."""

    def is_ready(self) -> bool:
        """Return True if this member has its share of the topic.

        It is called every few milliseconds until all members are ready, so it also
        takes part in rebalances and heartbeats.
        """
        return True

    def begin(self) -> None:  # noqa: B027  most libraries fetch nothing before a receive
        """Start to fetch messages, if is_ready() keeps the library from it."""

    @abstractmethod
    def receive(self) -> Sequence[Any]:
        """Return the next messages, at most a batch, or none after WAIT_S seconds."""

    @abstractmethod
    def acknowledge(self) -> None:
        """Acknowledge the messages of the last receive(), which had some, unless the client
        commits them later by itself.
        """

    @abstractmethod
    def body(self, message: Any) -> bytes:
        """Return the body of a received message."""

    def close(self) -> None:  # noqa: B027  not every library needs it
        """Leave the group and close the connection."""
