"""What reports share: the rows that the server made from heads alone, and the messages behind them."""

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
    """The topics that rows name and nothing keeps from being read, by name."""
    return sorted({row["topic"] for row in rows if not row.get("problem")})


def scanned(job: Job, topic: str, columns: str, *, days: int | None = None) -> DataFrame:
    """A topic's messages, only some columns, of the last days or all.

    The driver's clock only chooses where to begin.
    """
    reader = job.spark.read.format("catmq").option("topic", topic).schema(columns)
    if days is not None:
        since = (int(time.time() * 1000) // DAY_MS - days + 1) * DAY_MS
        reader = reader.option("startingTimestamp", since)
    rate = job.number("rows_per_second", 0)
    return (reader.option("maxRowsPerSecond", rate) if rate else reader).load()
