"""report_latency: how long messages waited from being stored to being committed for the
first time.

A message does not carry the time of its commit, so each one's wait lies between two bounds:
the last look at the group's position that did not show it committed yet, and the first one
that did. The p50, p95 and most of the lower bounds, and of the upper ones, enclose the true
figures. `resolution_ms` is the widest distance of the two: about a minute, more where the
job that looks did not run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from spark_tasks.jobs.reports import known, missing, scanned
from spark_tasks.jobs.running import Job

STEP = "`group` string, queue bigint, last bigint, after_ms bigint, by_ms bigint"
NOBODY_KNOWS = -1  # instead of `after_ms`, of what was committed before anybody looked
# of ranks: p50 is exact among fewer messages, and lies within p49.99 … p50.01 of more
ACCURACY = 10_000
# queue → (first, end, after_ms, by_ms), rising
Steps = Mapping[str, Iterable[Iterable[int | None]]]


def run(job: Job) -> None:
    """Add to the server's rows, which hold the steps of each group, what a scan of the last
    days tells.
    """
    rows = known(job)
    for topic in sorted({row["topic"] for row in rows}):
        mine = {row["group"]: row for row in rows if row["topic"] == topic}
        steps = steps_of(
            job.spark, {group: row.pop("steps") for group, row in mine.items()}
        )
        columns = "queue bigint, offset bigint, stored_at timestamp"
        messages = scanned(job, topic, columns, days=job.number("days", 7))
        with job.watched(f"topic {topic}"):
            found = {
                one["group"]: one
                for one in summed(waits(messages, steps, groups=[*mine])).collect()
            }
        for group, row in mine.items():
            row |= figures(found.get(group))
            row["problem"] = missing(job, topic) or row["problem"]
    job.result("report", rows)


def steps_of(spark: SparkSession, groups: Mapping[str, Steps]) -> DataFrame:
    """The steps of all groups as a table: `last` is the last offset of a step."""
    values = [
        (group, int(queue), end - 1, NOBODY_KNOWS if after is None else after, by)  # type: ignore[operator]
        for group, queues in groups.items()
        for queue, steps in queues.items()
        for _, end, after, by in steps
    ]
    return spark.createDataFrame(values, STEP)


def waits(messages: DataFrame, steps: DataFrame, *, groups: Iterable[str]) -> DataFrame:
    """(group, stored_ms, after_ms, by_ms) of each message for each group; by_ms None: not
    committed yet.

    A message belongs to the first step that ends at or behind it: sorted backwards, to the
    last one seen.
    """
    nothing = F.lit(None).cast("bigint")
    sent = messages.select(
        F.explode(F.array(*map(F.lit, groups))).alias("group"), "queue", "offset",
        nothing.alias("after_ms"), nothing.alias("by_ms"),
        F.unix_millis("stored_at").alias("stored_ms"),
    )  # fmt: skip
    ends = steps.select(
        "group",
        "queue",
        F.col("last").alias("offset"),
        "after_ms",
        "by_ms",
        nothing.alias("stored_ms"),
    )
    backwards = Window.partitionBy("group", "queue").orderBy(
        F.desc("offset"), F.col("stored_ms").asc_nulls_first()
    )
    return (
        sent.unionByName(ends)
        .withColumn("after_ms", F.last("after_ms", ignorenulls=True).over(backwards))
        .withColumn("by_ms", F.last("by_ms", ignorenulls=True).over(backwards))
        .where(F.col("stored_ms").isNotNull())
    )


def summed(waited: DataFrame) -> DataFrame:
    known_at = F.col("after_ms") >= 0
    least = F.when(known_at, F.greatest(F.lit(0), F.col("after_ms") - F.col("stored_ms")))
    most = F.when(known_at, F.greatest(F.lit(0), F.col("by_ms") - F.col("stored_ms")))
    points = F.array(F.lit(0.5), F.lit(0.95))
    return waited.groupBy("group").agg(
        F.count_if(known_at).alias("committed"),
        F.count_if(F.col("by_ms").isNull()).alias("waiting"),
        F.count_if(F.col("after_ms") == NOBODY_KNOWS).alias("not_known"),
        F.percentile_approx(least, points, ACCURACY).alias("least"),
        F.percentile_approx(most, points, ACCURACY).alias("most"),
        F.max(least).alias("longest_least"),
        F.max(most).alias("longest_most"),
        F.max(most - least).alias("resolution"),
    )


def figures(found: Any) -> dict[str, Any]:
    """The columns that a row gets; `found` is None if there are no messages."""
    committed = found["committed"] if found is not None else 0
    least, most = (
        (found["least"], found["most"]) if committed else ((None, None), (None, None))
    )
    return {
        "committed": committed,
        "waiting": found["waiting"] if found is not None else 0,
        "not_known": found["not_known"] if found is not None else 0,
        "p50_from_ms": least[0],
        "p50_to_ms": most[0],
        "p95_from_ms": least[1],
        "p95_to_ms": most[1],
        "most_from_ms": found["longest_least"] if committed else None,
        "most_to_ms": found["longest_most"] if committed else None,
        "resolution_ms": found["resolution"] if committed else None,
        "problem": "" if committed else "no commit was seen",
    }
