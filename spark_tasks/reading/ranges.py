"""Offsets of each queue that a read covers: what its options ask for, within what the plan
says is there.
"""

from __future__ import annotations

from spark_tasks.archives import coverage
from spark_tasks.errors import OptionError, RangeError
from spark_tasks.nodes.connection import connection, first_at
from spark_tasks.nodes.plans import Plan, PlannedQueue, Span
from spark_tasks.reading.options import Options, Where


def ranges(plan: Plan, options: Options) -> dict[int, Span]:
    """{queue: offsets} of a batch read. Raises OptionError, RangeError, NodeError."""
    chosen = chosen_queues(plan, options)
    for where in (options.start, options.end):
        for queue in where if isinstance(where, dict) else ():
            plan.queue(queue)
    return {one.queue: _range(one, options) for one in chosen}


def chosen_queues(plan: Plan, options: Options) -> list[PlannedQueue]:
    """The queues that the options name, or all. Raises OptionError."""
    return (
        [plan.queue(queue) for queue in options.queues]
        if options.queues
        else list(plan.queues)
    )


def _range(queue: PlannedQueue, options: Options) -> Span:
    first, end = offset_in(queue, options.start), offset_in(queue, options.end)
    if first < queue.low:
        raise gone(queue, Span(first, min(end, queue.low)), options)
    if max(first, end) > queue.head:
        raise RangeError(
            f"queue {queue.queue} of topic {options.topic}: offset {max(first, end):,} is "
            "not stored yet; "
            f"its log end offset is {queue.head:,}"
        )
    span = Span(first, max(first, end))
    return by_time(queue, span, _us(options.start_ms), _us(options.end_ms))


def offset_in(queue: PlannedQueue, where: Where) -> int:
    """The offset that earliest, latest or {queue: offset} stands for; a queue not named:
    its low.
    """
    if where == "earliest":
        return queue.low
    if where == "latest":
        return queue.head
    if isinstance(where, dict):
        return where.get(queue.queue, queue.low)
    raise OptionError(f"{where} stands for no offset")


def by_time(
    queue: PlannedQueue, span: Span, since_us: int | None, before_us: int | None
) -> Span:
    """Return the offsets of a span stored within times, µs since 1970. Raises NodeError."""
    if since_us is None and before_us is None:
        return span
    with connection(queue.node) as node:
        first = (
            span.first if since_us is None else first_at(node, queue.table, span, since_us)
        )
        end = (
            span.end if before_us is None else first_at(node, queue.table, span, before_us)
        )
    return Span(first, max(first, end))


def _us(at_ms: int | None) -> int | None:
    return None if at_ms is None else at_ms * 1000


def gone(queue: PlannedQueue, span: Span, options: Options) -> RangeError:
    """The error that a span below what is kept deserves."""
    text = (
        f"queue {queue.queue} of topic {options.topic}: offsets {span.first:,} … "
        f"{span.end - 1:,} are no "
        f"longer on node {queue.node.name}, which keeps it from {queue.low:,} on"
    )
    if options.archive is None:
        return RangeError(
            f"{text}; with option archive this says which of them an archive holds"
        )
    kept = coverage(options.archive, options.topic, queue.queue, span)
    if not kept:
        return RangeError(f"{text}; the archive {options.archive} holds none of them")
    parts = ", ".join(f"{first:,} … {end - 1:,} ({day})" for day, (first, end) in kept)
    return RangeError(f"{text}; the archive {options.archive} holds {parts}")
