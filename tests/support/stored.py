"""The rows in the tables of nodes, read from the databases directly and not through a
broker.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Ask = Callable[[str], Sequence[tuple[Any, ...]]]  # runs a SELECT on a node
# errors of tables that are created when they are first needed
MISSING = ("doesn't exist", "no such table")


class Row(NamedTuple):
    """A message. `number` is the number that its sender put into the body, None if it is
    not a number.
    """

    offset: int
    number: int | None
    body: bytes
    key: str | None
    tag: str | None
    headers: str | None
    trace_id: str | None
    stored_at: Any  # ascending; in the engine's own type


class Batch(NamedTuple):
    """A row of sent_batch."""

    id: bytes
    first: int
    size: int
    digest: bytes

    @property
    def end(self) -> int:
        """The offset after its last message."""
        return self.first + self.size


class Position(NamedTuple):
    """A reader row."""

    epoch: int
    committed: int


@dataclass
class StoredQueue:
    """The rows of a queue in ascending order."""

    queue: int
    head: int
    low: int
    rows: list[Row]
    batches: list[Batch]
    gaps: list[tuple[int, int]]
    positions: list[Position]


@dataclass
class Stored:
    """The queues that were read, and the delayed and dead messages of their nodes.

    `waiting`: numbers of delayed messages. `dead`: (queue, offset) where dead messages came
    from.
    """

    queues: dict[int, StoredQueue] = field(default_factory=dict)
    waiting: list[int | None] = field(default_factory=list)
    dead: list[tuple[int, int]] = field(default_factory=list)


def read(nodes: Iterable[tuple[Ask, Sequence[int]]]) -> Stored:
    """Read queues of each node, and all its delayed and dead messages."""
    stored_rows = Stored()
    for ask, queues in nodes:
        for queue in queues:
            stored_rows.queues[queue] = _read_queue(ask, queue)
        stored_rows.waiting += (
            number(body)
            for (body,) in _ask_if_exists(ask, "SELECT body FROM delayed_message")
        )
        for (origin,) in _ask_if_exists(ask, "SELECT origin FROM dead_message"):
            origin_fields = json.loads(origin)
            stored_rows.dead.append((origin_fields["queue"], origin_fields["offset"]))
    return stored_rows


def number(body: bytes) -> int | None:
    """Return the number in a body; None if there is none.

    >>> number(b"42"), number(b"4x")
    (42, None)
    """
    return int(body) if bytes(body).isdigit() else None


def _read_queue(ask: Ask, queue: int) -> StoredQueue:
    ((head, low),) = ask(f"SELECT head, low FROM queue_head WHERE queue_id = {queue}")
    columns = "msg_offset, body, msg_key, tag, headers, trace_id, stored_at"
    rows = ask(f"SELECT {columns} FROM message_{queue} ORDER BY msg_offset")
    of_queue = f"WHERE queue_id = {queue}"
    batches = ask(
        f"SELECT batch_id, first_offset, message_count, digest FROM sent_batch {of_queue}"
    )
    gaps = ask(
        f"SELECT from_offset, to_offset FROM queue_gap {of_queue} ORDER BY from_offset"
    )
    return StoredQueue(
        queue,
        head,
        low,
        [Row(row[0], number(row[1]), bytes(row[1]), *row[2:]) for row in rows],
        sorted(
            (Batch(*row) for row in batches), key=lambda batch: (batch.first, batch.size)
        ),
        [(first, end) for first, end in gaps],
        [Position(*row) for row in ask(f"SELECT epoch, committed FROM reader {of_queue}")],
    )


def _ask_if_exists(ask: Ask, statement: str) -> Sequence[tuple[Any, ...]]:
    try:
        return ask(statement)
    except Exception as error:
        if any(sign in str(error) for sign in MISSING):
            return []
        raise
