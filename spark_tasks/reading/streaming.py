"""Topics as streams: progress is {queue: the next offset}.

Ends of micro-batches are durable heads, and Spark writes them into its checkpoint before it
reads. So a restart reads exactly the same offsets again, and a sink that knows its batches
holds each once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from spark_tasks.errors import JobError
from spark_tasks.nodes import plans
from spark_tasks.nodes.columns import Column
from spark_tasks.nodes.plans import Plan, Span
from spark_tasks.reading.options import Options
from spark_tasks.reading.ranges import chosen_queues, gone, offset_in
from spark_tasks.reading.slices import read, slices

Offsets = dict[str, int]  # queue → the next offset; JSON has no whole numbers as names


class CatmqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what queues get. The driver holds one, executors copies that hold no account."""

    def __init__(self, options: Options, columns: Sequence[Column]) -> None:
        self._options = options
        self._columns = columns
        self._target: Offsets | None = None
        self._plan: Plan | None = None

    def __getstate__(self) -> dict[str, object]:
        """Without the plan, which holds passwords."""
        return {**self.__dict__, "_plan": None}

    def initialOffset(self) -> Offsets:
        """Return the offsets where a new stream starts. Raises JobError."""
        queues = chosen_queues(self._planned(), self._options)
        starts = {}
        for queue in queues:
            first = offset_in(queue, self._options.start)
            if first < queue.low:
                raise gone(queue, Span(first, queue.low), self._options)
            starts[str(queue.queue)] = first
        return starts

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of a run that stops by itself."""
        self._target = self._heads({})

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.max_offsets_per_trigger
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        """Return the end of the next micro-batch; `start` if there is nothing new. Raises
        JobError.
        """
        self._check_same(start, self._planned())
        target = self._heads(start) if self._target is None else {**start, **self._target}
        begin = {
            queue: start[queue] if queue in start else self._low(queue) for queue in target
        }
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return shared(begin, target, most)

    def reportLatestOffset(self) -> Offsets:
        return self._heads({})

    def _check_same(self, start: Offsets, plan: Plan) -> None:
        """Raise JobError if a stream that has begun has none of the topic's queues of now."""
        now = {str(queue.queue) for queue in plan.queues}
        if start and now and not now & start.keys():
            before = ", ".join(sorted(start, key=int))
            raise JobError(
                f"none of the queues {before} of the checkpoint is a queue of topic "
                f"{plan.topic}: it was "
                "deleted and created again, or the checkpoint is of another topic. Start "
                "with a new "
                "checkpoint location"
            )

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        plan = self._planned()
        self._check_same(start, plan)
        found: list[InputPartition] = []
        for name, last in end.items():
            if start.get(name) == last:
                continue  # a queue that the topic has lost stays where it is
            queue = plan.queue(int(name))
            first = start.get(name, queue.low)
            if first < last and first < queue.low:
                raise gone(queue, Span(first, min(last, queue.low)), self._options)
            found += slices(
                queue, Span(first, max(first, last)), rows=self._options.rows_per_partition
            )
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(partition, self._columns, self._options)

    def _planned(self) -> Plan:
        self._plan = plans.fetch(self._options.topic, url=self._options.url)
        return self._plan

    def _heads(self, start: Offsets) -> Offsets:
        """The heads; a queue that has gone stays where it is."""
        queues = chosen_queues(self._planned(), self._options)
        return {**start, **{str(queue.queue): queue.head for queue in queues}}

    def _low(self, queue: str) -> int:
        """Return the offset where a queue that is new to the stream begins."""
        return (self._plan or self._planned()).queue(int(queue)).low


def shared(
    start: Mapping[str, int], target: Mapping[str, int], most: int | None
) -> Offsets:
    """Ends of a micro-batch of at most so many offsets: each queue's part is as its share
    of what waits.

    >>> shared({"1": 0, "2": 5}, {"1": 30, "2": 15}, 8)
    {'1': 6, '2': 7}
    >>> shared({"1": 0}, {"1": 30}, None), shared({"1": 3}, {"1": 3}, 1)
    ({'1': 30}, {'1': 3})
    """
    waiting = {queue: max(0, end - start[queue]) for queue, end in target.items()}
    total = sum(waiting.values())
    if most is None or total <= most:
        return {queue: start[queue] + waiting[queue] for queue in target}
    ends = {queue: start[queue] + count * most // total for queue, count in waiting.items()}
    left = most - sum(ends[queue] - start[queue] for queue in ends)
    for queue in sorted(ends, key=lambda one: -waiting[one]):
        room = min(left, start[queue] + waiting[queue] - ends[queue])
        ends[queue] += min(room, 1)
        left -= min(room, 1)
    return ends
