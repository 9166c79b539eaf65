"""The offsets of each queue that a read covers, fixed before the first message is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple, Protocol, TypeAlias

from catmq_client.errors import OptionError
from catmq_client.frames.missing import MissingOffsets, warn_of_missing

# "earliest", "latest", an aware time, or {queue: offset}.
Position: TypeAlias = Literal["earliest", "latest"] | datetime | Mapping[int, int]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FORMS = "write 'earliest', 'latest', an aware datetime, or offsets as {queue: offset}"


class QueueBounds(NamedTuple):
    """A queue with its log start offset and log end offset, None if its node does not
    answer.
    """

    queue: int
    low: int | None
    head: int | None


class QueueRange(NamedTuple):
    """The offsets first … end - 1 of a queue."""

    queue: int
    first: int
    end: int


class Topic(Protocol):
    """What planning needs to ask about a topic; see TopicReader."""

    topic: str

    def bounds(self) -> list[QueueBounds]: ...
    def wait_for_bounds(self, queues: Sequence[int]) -> list[QueueBounds]: ...
    def first_stored_at(self, queue: int, at_ms: int) -> int | None: ...
    def report_missing(self, missing: MissingOffsets) -> None: ...


def plan_ranges(
    topic: Topic, *, queues: Iterable[int] | None, start: Position, end: Position
) -> list[QueueRange]:
    """Return the range of each queue, by queue id. An empty range has `first` = `end`.

    Raises OptionError for a queue that is not the topic's, a wrong position, or an offset
    that is not stored yet; OffsetsMissing if `start` names a deleted offset.
    """
    check_position("start", start)
    check_position("end", end)
    selected = None if queues is None else set(queues)
    all_bounds = topic.bounds()
    ids = {queue.queue for queue in all_bounds}
    named = {
        queue
        for position in (start, end)
        if isinstance(position, Mapping)
        for queue in position
    }
    for queue in sorted(((selected or set()) | named) - ids, key=str):
        own_queues = ", ".join(map(str, sorted(ids)))
        raise OptionError(
            f"{queue!r} is not a queue of topic {topic.topic}; its queues are {own_queues}"
        )
    read_queues = sorted(ids if selected is None else selected)
    if any(q.head is None for q in all_bounds if q.queue in read_queues):
        all_bounds = topic.wait_for_bounds(read_queues)
    bounds = {queue.queue: queue for queue in all_bounds}
    return [plan_queue(topic, bounds[queue], start, end) for queue in read_queues]


def plan_queue(
    topic: Topic, bounds: QueueBounds, start: Position, end: Position
) -> QueueRange:
    queue, low, head = bounds.queue, bounds.low or 0, bounds.head or 0
    first = resolve(topic, bounds, start, default=low)
    last = resolve(topic, bounds, end, default=head)
    for name, offset in (("start", first), ("end", last)):
        if offset > head:
            raise OptionError(
                f"{name}: offset {offset:,} of queue {queue} is not stored yet; the log end "
                f"offset of the queue is {head:,}"
            )
    if first < low and first < last:
        topic.report_missing(MissingOffsets(queue, first, min(low, last), "expired"))
    elif isinstance(start, datetime) and first == low > 0:
        # The age of deleted messages is not recorded, so this cannot be an error:
        # every read of "the last 30 days" would fail on a topic that keeps seven.
        warn_of_missing(
            f"{topic.topic}, queue {queue}: offsets below {low:,} were deleted by "
            f"retention, and some of their messages may have been stored after {start}"
        )
    first = max(first, low)
    return QueueRange(queue, first, max(first, last))


def resolve(topic: Topic, bounds: QueueBounds, position: Position, *, default: int) -> int:
    """Return the offset that a position stands for in a queue.

    `default` is for queues that {queue: offset} does not name.
    """
    if isinstance(position, datetime):
        # Rounded up: messages are stored with whole ms, and an earlier one is not wanted.
        at_ms = -((EPOCH - position) // timedelta(milliseconds=1))
        offset = topic.first_stored_at(bounds.queue, at_ms)
        head = bounds.head or 0
        # Messages may have been stored since the log end offset was read.
        return head if offset is None else min(offset, head)
    if isinstance(position, Mapping):
        return position.get(bounds.queue, default)
    return (bounds.low if position == "earliest" else bounds.head) or 0


def check_position(name: str, position: object) -> None:
    """Raise OptionError unless `position` is one of the forms of Position."""
    if isinstance(position, datetime):
        if position.utcoffset() is None:
            raise OptionError(
                f"{name}={position!r} has no time zone: write "
                "datetime(…, tzinfo=timezone.utc)"
            )
    elif isinstance(position, Mapping):
        for queue, offset in position.items():
            # bool is a subclass of int in Python.
            if type(offset) is not int or offset < 0:
                raise OptionError(
                    f"{name}: {offset!r} is not an offset of queue {queue!r}: write a whole "
                    "number, at least 0"
                )
    elif position not in ("earliest", "latest"):
        raise OptionError(f"{name}={position!r}: {FORMS}")
