"""The rows in the tables of nodes, read from the databases themselves and not through any
broker.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Ask = Callable[[str], Sequence[tuple[Any, ...]]]  # runs a SELECT on one node
# tables that are made when they are first needed
MISSING = ("doesn't exist", "no such table")


class Row(NamedTuple):
    """A message. `number` is what its sender wrote into it, None if it is not one."""

    offset: int
    number: int | None
    body: bytes
    key: str | None
    tag: str | None
    headers: str | None
    trace_id: str | None
    stored_at: Any  # rises; of the engine's own type


class Batch(NamedTuple):
    """The memory of a send."""

    id: bytes
    first: int
    size: int
    digest: bytes

    @property
    def end(self) -> int:
        """The offset behind its last message."""
        return self.first + self.size


class Position(NamedTuple):
    """A reader row."""

    epoch: int
    committed: int


@dataclass
class StoredQueue:
    """A queue's rows, rising."""

    queue: int
    head: int
    low: int
    rows: list[Row]
    batches: list[Batch]
    gaps: list[tuple[int, int]]
    positions: list[Position]


@dataclass
class Stored:
    """All queues that were asked for, and what waits or is dead on their nodes.

    `waiting`: numbers in the tables of delayed messages. `dead`: (queue, offset) that dead
    ones came from.
    """

    queues: dict[int, StoredQueue] = field(default_factory=dict)
    waiting: list[int | None] = field(default_factory=list)
    dead: list[tuple[int, int]] = field(default_factory=list)


def read(nodes: Iterable[tuple[Ask, Sequence[int]]]) -> Stored:
    """Reads some queues of each node, and everything that waits or is dead there."""
    found = Stored()
    for ask, queues in nodes:
        for queue in queues:
            found.queues[queue] = _queue(ask, queue)
        found.waiting += (
            number(body) for (body,) in _perhaps(ask, "SELECT body FROM delayed_message")
        )
        for (origin,) in _perhaps(ask, "SELECT origin FROM dead_message"):
            told = json.loads(origin)
            found.dead.append((told["queue"], told["offset"]))
    return found


def number(body: bytes) -> int | None:
    """Return what a sender of ours wrote into a message.

    >>> number(b"42"), number(b"4x")
    (42, None)
    """
    return int(body) if bytes(body).isdigit() else None


def _queue(ask: Ask, queue: int) -> StoredQueue:
    ((head, low),) = ask(f"SELECT head, low FROM queue_head WHERE queue_id = {queue}")
    columns = "msg_offset, body, msg_key, tag, headers, trace_id, stored_at"
    rows = ask(f"SELECT {columns} FROM message_{queue} ORDER BY msg_offset")
    about = f"WHERE queue_id = {queue}"
    batches = ask(
        f"SELECT batch_id, first_offset, message_count, digest FROM sent_batch {about}"
    )
    gaps = ask(f"SELECT from_offset, to_offset FROM queue_gap {about} ORDER BY from_offset")
    return StoredQueue(
        queue,
        head,
        low,
        [Row(one[0], number(one[1]), bytes(one[1]), *one[2:]) for one in rows],
        sorted((Batch(*one) for one in batches), key=lambda one: (one.first, one.size)),
        [(first, end) for first, end in gaps],
        [Position(*one) for one in ask(f"SELECT epoch, committed FROM reader {about}")],
    )


def _perhaps(ask: Ask, statement: str) -> Sequence[tuple[Any, ...]]:
    try:
        return ask(statement)
    except Exception as error:
        if any(sign in str(error) for sign in MISSING):
            return []
        raise
