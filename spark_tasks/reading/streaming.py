"""Topics as streams. A stream's progress is {queue: next offset}.

A micro-batch ends at durable log end offsets, and Spark stores them in its checkpoint
before it reads. So a restart reads exactly the same offsets again, and a sink that
recognises repeated batches stores each once.
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
from spark_tasks.reading.ranges import cleaned_error, resolve_offset, select_queues
from spark_tasks.reading.slices import plan_slices, read_slice

Offsets = dict[str, int]  # queue → next offset; names in JSON are strings


class CatmqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads new messages of a topic's queues. The driver holds a reader; executors get
    pickled copies.
    """

    def __init__(self, options: Options, columns: Sequence[Column]) -> None:
        self._options = options
        self._columns = columns
        self._target: Offsets | None = None
        self._plan: Plan | None = None

    def __getstate__(self) -> dict[str, object]:
        """Leave out the plan, which contains passwords."""
        return {**self.__dict__, "_plan": None}

    def initialOffset(self) -> Offsets:
        """Return the offsets where a new stream starts. Raises JobError."""
        queues = select_queues(self._fetch_plan(), self._options)
        starts = {}
        for queue in queues:
            first = resolve_offset(queue, self._options.start)
            if first < queue.low:
                raise cleaned_error(queue, Span(first, queue.low), self._options)
            starts[str(queue.queue)] = first
        return starts

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the offsets at which a run stops by itself."""
        self._target = self._read_heads({})

    def getDefaultReadLimit(self) -> ReadLimit:
        max_offsets = self._options.max_offsets_per_trigger
        return ReadMaxRows(max_offsets) if max_offsets else ReadAllAvailable()

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        """Return the end of the next micro-batch; `start` without new messages. Raises
        JobError.
        """
        self._check_topic(start, self._fetch_plan())
        target = (
            self._read_heads(start) if self._target is None else {**start, **self._target}
        )
        # A queue that is new to the stream begins at its log start offset.
        plan = self._plan or self._fetch_plan()
        begins = {
            queue: start[queue] if queue in start else plan.queue(int(queue)).low
            for queue in target
        }
        max_offsets = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return share_limit(begins, target, max_offsets)

    def reportLatestOffset(self) -> Offsets:
        return self._read_heads({})

    def _check_topic(self, start: Offsets, plan: Plan) -> None:
        """Raise JobError if no queue of a started stream belongs to the topic any more."""
        current_queues = {str(queue.queue) for queue in plan.queues}
        if start and current_queues and not current_queues & start.keys():
            stream_queues = ", ".join(sorted(start, key=int))
            raise JobError(
                f"none of the queues {stream_queues} of the checkpoint is a queue of topic "
                f"{plan.topic}: it was "
                "deleted and created again, or the checkpoint is of another topic. Start "
                "with a new "
                "checkpoint location"
            )

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        plan = self._fetch_plan()
        self._check_topic(start, plan)
        parts: list[InputPartition] = []
        for name, last in end.items():
            # A queue that was removed from the topic keeps its offset and is not in the plan.
            if start.get(name) == last:
                continue
            queue = plan.queue(int(name))
            first = start.get(name, queue.low)
            if first < last and first < queue.low:
                raise cleaned_error(queue, Span(first, min(last, queue.low)), self._options)
            parts += plan_slices(
                queue, Span(first, max(first, last)), rows=self._options.rows_per_partition
            )
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_slice(partition, self._columns, self._options)

    def _fetch_plan(self) -> Plan:
        self._plan = plans.fetch(self._options.topic, url=self._options.url)
        return self._plan

    def _read_heads(self, start: Offsets) -> Offsets:
        """Return the log end offsets; a removed queue keeps its offset."""
        queues = select_queues(self._fetch_plan(), self._options)
        return {**start, **{str(queue.queue): queue.head for queue in queues}}


def share_limit(
    start: Mapping[str, int], target: Mapping[str, int], max_offsets: int | None
) -> Offsets:
    """Return the ends of a micro-batch of at most `max_offsets` offsets.

    Queues share the limit in proportion to their backlogs.

    >>> share_limit({"1": 0, "2": 5}, {"1": 30, "2": 15}, 8)
    {'1': 6, '2': 7}
    >>> share_limit({"1": 0}, {"1": 30}, None), share_limit({"1": 3}, {"1": 3}, 1)
    ({'1': 30}, {'1': 3})
    """
    backlogs = {queue: max(0, end - start[queue]) for queue, end in target.items()}
    total = sum(backlogs.values())
    if max_offsets is None or total <= max_offsets:
        return {queue: start[queue] + backlogs[queue] for queue in target}
    ends = {
        queue: start[queue] + count * max_offsets // total
        for queue, count in backlogs.items()
    }
    # Rounding down left a few offsets: the queues with the largest backlogs get 1 each.
    # They have room for it, because the limit is below the total.
    rest = max_offsets - sum(ends[queue] - start[queue] for queue in ends)
    for queue in sorted(ends, key=lambda queue_id: -backlogs[queue_id])[:rest]:
        ends[queue] += 1
    return ends
