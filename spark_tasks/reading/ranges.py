"""The offsets of each queue that a batch read covers: its options, checked against the read
plan.
"""

from __future__ import annotations

from spark_tasks.archives import find_coverage
from spark_tasks.errors import OptionError, RangeError
from spark_tasks.nodes.connection import connected_node, find_first_at
from spark_tasks.nodes.plans import Plan, PlannedQueue, Span
from spark_tasks.reading.options import OffsetOption, Options


def plan_ranges(plan: Plan, options: Options) -> dict[int, Span]:
    """Return the offsets to read, by queue. Raises OptionError, RangeError, NodeError."""
    selected = select_queues(plan, options)
    # A queue of another topic in the options is an error, also if it is not selected.
    for offsets in (options.start, options.end):
        for queue in offsets if isinstance(offsets, dict) else ():
            plan.queue(queue)
    spans = {}
    for planned in selected:
        first = resolve_offset(planned, options.start)
        end = resolve_offset(planned, options.end)
        if first < planned.low:
            raise cleaned_error(planned, Span(first, min(end, planned.low)), options)
        if max(first, end) > planned.head:
            raise RangeError(
                f"queue {planned.queue} of topic {options.topic}: offset "
                f"{max(first, end):,} is not stored yet; its log end offset is "
                f"{planned.head:,}"
            )
        since_us, before_us = _to_us(options.start_ms), _to_us(options.end_ms)
        span = Span(first, max(first, end))
        spans[planned.queue] = narrow_by_time(planned, span, since_us, before_us)
    return spans


def select_queues(plan: Plan, options: Options) -> list[PlannedQueue]:
    """Return the queues that the options name, or all. Raises OptionError."""
    return (
        [plan.queue(queue) for queue in options.queues]
        if options.queues
        else list(plan.queues)
    )


def resolve_offset(queue: PlannedQueue, offsets: OffsetOption) -> int:
    """Return the offset that earliest, latest or {queue: offset} means for a queue.

    A queue that the mapping does not name begins at its log start offset.
    """
    if offsets == "earliest":
        return queue.low
    if offsets == "latest":
        return queue.head
    if isinstance(offsets, dict):
        return offsets.get(queue.queue, queue.low)
    raise OptionError(f"{offsets} stands for no offset")


def narrow_by_time(
    queue: PlannedQueue, span: Span, since_us: int | None, before_us: int | None
) -> Span:
    """Return the offsets of a span stored within times in µs since 1970. Raises NodeError."""
    if since_us is None and before_us is None:
        return span
    with connected_node(queue.node) as node:
        first = (
            span.first
            if since_us is None
            else find_first_at(node, queue.table, span, since_us)
        )
        end = (
            span.end
            if before_us is None
            else find_first_at(node, queue.table, span, before_us)
        )
    return Span(first, max(first, end))


def _to_us(at_ms: int | None) -> int | None:
    return None if at_ms is None else at_ms * 1000


def cleaned_error(queue: PlannedQueue, span: Span, options: Options) -> RangeError:
    """Return the error for a span below the log start offset.

    If an archive is configured, the text states which of the offsets it contains.
    """
    text = (
        f"queue {queue.queue} of topic {options.topic}: offsets {span.first:,} … "
        f"{span.end - 1:,} are no "
        f"longer on node {queue.node.name}, which keeps it from {queue.low:,} on"
    )
    if options.archive is None:
        return RangeError(
            f"{text}; with option archive this says which of them an archive holds"
        )
    archived = find_coverage(options.archive, options.topic, queue.queue, span)
    if not archived:
        return RangeError(f"{text}; the archive {options.archive} holds none of them")
    archived_texts = ", ".join(
        f"{first:,} … {end - 1:,} ({day})" for day, (first, end) in archived
    )
    return RangeError(f"{text}; the archive {options.archive} holds {archived_texts}")
