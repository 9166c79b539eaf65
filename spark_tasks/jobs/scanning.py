"""Parts that reports share: the rows that the server made from heads alone, and the messages behind them.

A node that was away when the report was asked for does not fail it: the setting `away` names its queues, they
are left out, and the rows that lack them say so in `problem`. A node that goes while it is read fails the
job, by name: what it had given before would be taken for all there is.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import DataFrame

from spark_tasks.jobs.running import Job

DAY_MS = 86_400_000
Row = dict[str, Any]


def known(job: Job) -> list[Row]:
    """The server's rows, which the job completes."""
    return [dict(row) for row in job.inputs()]


def topics_of(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The topics that rows name, by name."""
    return sorted({row["topic"] for row in rows})


def scanned(job: Job, topic: str, columns: str, *, days: int | None = None) -> DataFrame:
    """A topic's messages, only some columns, of the last days or all; without the queues that are away.

    The driver's clock only chooses where to begin.
    """
    queues, gone = queues_of(job, topic), away(job)
    there = [queue for queue in queues if queue not in gone]
    if queues and not there:
        return job.spark.createDataFrame([], columns)
    reader = job.spark.read.format("catmq").option("topic", topic).schema(columns)
    if len(there) < len(queues):
        reader = reader.option("queues", ",".join(map(str, there)))
    if days is not None:
        since = (int(time.time() * 1000) // DAY_MS - days + 1) * DAY_MS
        reader = reader.option("startingTimestamp", since)
    rate = job.number("rows_per_second", 0)
    return (reader.option("maxRowsPerSecond", rate) if rate else reader).load()


def away(job: Job) -> dict[int, str]:
    """{queue: why it cannot be read}."""
    return {int(queue): why for queue, why in job.setting("away", {}).items()}


def queues_of(job: Job, topic: str) -> list[int]:
    """The queues of a topic, as the server names them."""
    return [int(queue) for queue in job.setting("queues", {}).get(topic, [])]


def missing(job: Job, topic: str) -> str:
    """Return the reason why a topic's figures are not of all its queues; '' if they are."""
    gone = away(job)
    mine = [queue for queue in queues_of(job, topic) if queue in gone]
    if not mine:
        return ""
    return f"not of queues {', '.join(map(str, mine))}: {gone[mine[0]]}"
