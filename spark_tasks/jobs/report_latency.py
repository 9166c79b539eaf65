"""report_latency: how long messages waited between being stored and their first commit.

A message does not record when it was committed. The server samples the committed offset of
each group, so the wait of a message has two bounds: the last sample before its commit, and
the first sample after it. The p50, p95 and maximum of the lower bounds and those of the
upper bounds enclose the true figures. `resolution_ms` is the widest distance between the
two bounds of a message: about a minute, more where the sampling job did not run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from spark_tasks.jobs.reports import describe_missing_queues, scan_topic, topics_of
from spark_tasks.jobs.running import Job

STEP_SCHEMA = "`group` string, queue bigint, last bigint, after_ms bigint, by_ms bigint"
NEVER_OBSERVED = -1  # as `after_ms`: committed before the first sample
# Accuracy of percentiles: exact for up to 10,000 messages; above, p50 is within p49.99 … p50.01.
ACCURACY = 10_000
# queue → (first, end, after_ms, by_ms) of each sampled step, ascending
Steps = Mapping[str, Iterable[Iterable[int | None]]]


def run(job: Job) -> None:
    """Complete the server's rows, which hold the steps of each group, by a scan of the last
    days.
    """
    rows = job.inputs()
    for topic in topics_of(rows):
        rows_by_group = {row["group"]: row for row in rows if row["topic"] == topic}
        steps = build_steps(
            job.spark, {group: row.pop("steps") for group, row in rows_by_group.items()}
        )
        columns = "queue bigint, offset bigint, stored_at timestamp"
        messages = scan_topic(job, topic, columns, days=job.number("days", 7))
        with job.run_stage(f"topic {topic}"):
            totals = {
                total["group"]: total
                for total in aggregate_waits(
                    compute_waits(messages, steps, groups=[*rows_by_group])
                ).collect()
            }
        for group, row in rows_by_group.items():
            row |= report_columns(totals.get(group))
            row["problem"] = describe_missing_queues(job, topic) or row["problem"]
    job.write_result("report", rows)


def build_steps(spark: SparkSession, groups: Mapping[str, Steps]) -> DataFrame:
    """Return the steps of all groups as a table. `last` is the last offset of a step."""
    values = [
        (group, int(queue), end - 1, NEVER_OBSERVED if after is None else after, by)  # type: ignore[operator]
        for group, queues in groups.items()
        for queue, steps in queues.items()
        for _, end, after, by in steps
    ]
    return spark.createDataFrame(values, STEP_SCHEMA)


def compute_waits(
    messages: DataFrame, steps: DataFrame, *, groups: Iterable[str]
) -> DataFrame:
    """Return (group, stored_ms, after_ms, by_ms) of each message for each group.

    `by_ms` is NULL if the message is not committed yet.
    """
    # A message belongs to the first step that ends at its offset or above. Messages and
    # step ends are united and sorted by descending offset; each message then takes the
    # bounds of the last step end before it. A window avoids a join on ranges.
    null = F.lit(None).cast("bigint")
    message_rows = messages.select(
        F.explode(F.array(*map(F.lit, groups))).alias("group"), "queue", "offset",
        null.alias("after_ms"), null.alias("by_ms"),
        F.unix_millis("stored_at").alias("stored_ms"),
    )  # fmt: skip
    step_rows = steps.select(
        "group",
        "queue",
        F.col("last").alias("offset"),
        "after_ms",
        "by_ms",
        null.alias("stored_ms"),
    )
    by_descending_offset = Window.partitionBy("group", "queue").orderBy(
        F.desc("offset"), F.col("stored_ms").asc_nulls_first()
    )
    return (
        message_rows.unionByName(step_rows)
        .withColumn(
            "after_ms", F.last("after_ms", ignorenulls=True).over(by_descending_offset)
        )
        .withColumn("by_ms", F.last("by_ms", ignorenulls=True).over(by_descending_offset))
        .where(F.col("stored_ms").isNotNull())
    )


def aggregate_waits(waits: DataFrame) -> DataFrame:
    """Return counts, percentiles and maxima of the lower and upper bounds of each group."""
    is_bounded = F.col("after_ms") >= 0
    lower = F.when(is_bounded, F.greatest(F.lit(0), F.col("after_ms") - F.col("stored_ms")))
    upper = F.when(is_bounded, F.greatest(F.lit(0), F.col("by_ms") - F.col("stored_ms")))
    ranks = F.array(F.lit(0.5), F.lit(0.95))
    return waits.groupBy("group").agg(
        F.count_if(is_bounded).alias("committed"),
        F.count_if(F.col("by_ms").isNull()).alias("waiting"),
        F.count_if(F.col("after_ms") == NEVER_OBSERVED).alias("not_known"),
        F.percentile_approx(lower, ranks, ACCURACY).alias("least"),
        F.percentile_approx(upper, ranks, ACCURACY).alias("most"),
        F.max(lower).alias("longest_least"),
        F.max(upper).alias("longest_most"),
        F.max(upper - lower).alias("resolution"),
    )


def report_columns(totals: Any) -> dict[str, Any]:
    """Return the columns to add to a row. `totals` is None if there are no messages."""
    committed = totals["committed"] if totals is not None else 0
    lower, upper = (
        (totals["least"], totals["most"]) if committed else ((None, None), (None, None))
    )
    return {
        "committed": committed,
        "waiting": totals["waiting"] if totals is not None else 0,
        "not_known": totals["not_known"] if totals is not None else 0,
        "p50_from_ms": lower[0],
        "p50_to_ms": upper[0],
        "p95_from_ms": lower[1],
        "p95_to_ms": upper[1],
        "most_from_ms": totals["longest_least"] if committed else None,
        "most_to_ms": totals["longest_most"] if committed else None,
        "resolution_ms": totals["resolution"] if committed else None,
        "problem": "" if committed else "no commit was seen",
    }
