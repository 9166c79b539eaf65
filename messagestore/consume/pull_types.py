"""Queue of a pull, as it is asked for and as it is answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from messagestore.engine.messages import StoredMessage, StoredRow, stored_message


class PullQueue(NamedTuple):
    """A queue as the consumer asks for it; `offset` is the next one it wants."""

    queue: int
    epoch: int
    offset: int


class PulledQueue(NamedTuple):
    """A queue of the answer; `head` is None where its node gave none in time, `stale` if a replica did.

    `due_in_ms`: the next message is too young for the subscription's delay, and for how long.
    """

    queue: int
    state: str
    rows: list[StoredRow]
    next_offset: int
    head: int | None = None
    low: int | None = None
    gap: tuple[int, int] | None = None
    stale: bool = False
    origins: Sequence[str | None] = ()  # of a failure topic's messages: where they came from (origins.Origin)
    due_in_ms: int | None = None

    @property
    def messages(self) -> list[StoredMessage]:
        """The rows as messages; answers to clients are made from the rows."""
        return [stored_message(self.queue, row) for row in self.rows]
