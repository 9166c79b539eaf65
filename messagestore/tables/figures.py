"""Verbs that read a whole node at once, for /metrics; they change nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from messagestore.engine.mysql_session import Session
from messagestore.tables.running import message_table, rows_of, step

_AT_ONCE = 100  # messages whose times are looked up in one round trip


class NodeFigures(NamedTuple):
    """The positions of all groups on a node, at `now_ms` of its clock.

    `readers`: (group, instance, queue, committed); `bounds`: queue → (head, low); `gaps`: queue → declared
    gaps (from, to), rising, `to` exclusive.
    """

    readers: Sequence[tuple[int, str, int, int]]
    bounds: dict[int, tuple[int, int]]
    gaps: dict[int, list[tuple[int, int]]]
    now_ms: int


def read_figures(session: Session) -> NodeFigures:
    """Return where all groups stand on the node, in one round trip."""
    readers, bounds, gaps, now = (result.rows for result in session.run(step(session, "select_figures")))
    found: dict[int, list[tuple[int, int]]] = {}
    for queue, first, end in gaps:
        found.setdefault(queue, []).append((first, end))
    return NodeFigures(
        readers=[(group, instance, queue, committed) for group, instance, queue, committed in readers],
        bounds={queue: (head, low) for queue, head, low in bounds},
        gaps=found,
        now_ms=int(now[0][0]),
    )


def count_delayed_of_queues(session: Session) -> dict[int, int]:
    """{queue: messages that wait for their time}."""
    return {queue: int(count) for queue, count in rows_of(session, "count_delayed_of_queues")}


def stored_at_of(
    session: Session, *, places: Sequence[tuple[int, int]]
) -> Iterator[tuple[tuple[int, int], int | None]]:
    """Of each (queue, offset), when the first message at or above it was stored; None above the last."""
    for first in range(0, len(places), _AT_ONCE):
        chunk = places[first : first + _AT_ONCE]
        results = session.run(
            *(
                step(session, "select_stored_at", table=message_table(queue), first_offset=offset)
                for queue, offset in chunk
            )
        )
        for place, result in zip(chunk, results, strict=True):
            yield place, int(result.rows[0][0]) if result.rows else None
