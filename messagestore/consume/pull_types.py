"""A queue of a pull in the request and in the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from messagestore.engine.messages import StoredMessage, StoredRow, stored_message


class PullQueue(NamedTuple):
    """A queue in a pull request. `offset` is the first offset to read."""

    queue: int
    epoch: int
    offset: int


class PulledQueue(NamedTuple):
    """A queue in the answer to a pull. States are listed in pull.py.

    `head` is None if the node did not answer in time. `stale` is True if a replica
    answered.
    `due_in_ms` is the time until the next message is due, if the subscription's delay holds
    it back.
    """

    queue: int
    state: str
    rows: list[StoredRow]
    next_offset: int
    head: int | None = None
    low: int | None = None
    gap: tuple[int, int] | None = None
    stale: bool = False
    # Only of a retry topic: the origin of each row's message (origins.Origin), in order of
    # `rows`.
    origins: Sequence[str | None] = ()
    due_in_ms: int | None = None

    @property
    def messages(self) -> list[StoredMessage]:
        """Return the rows as messages. Answers to clients are encoded from the rows
        instead.
        """
        return [stored_message(self.queue, row) for row in self.rows]
