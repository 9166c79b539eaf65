"""Reports that need a scan of messages: they complete rows that the server made from
offsets alone.

If a node was unavailable when the report was started, the setting `away` names its queues.
They are left out, and the rows that lack them have a note in `problem`. If a node fails
while it is read, the job fails and names the node: a partial scan would look complete.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_tasks.jobs.running import Job

DAY_MS = 86_400_000
SKEWED_SHARE = 0.2  # of all messages with the same key: more queues do not help that key
ROW_BYTES = 60  # storage overhead of a row
Row = dict[str, Any]


def topics_of(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    return sorted({row["topic"] for row in rows})


def scan_topic(job: Job, topic: str, columns: str, *, days: int | None = None) -> DataFrame:
    """Return columns of a topic's messages, of the last `days` or all, of the available
    queues.
    """
    queues, unavailable = topic_queues(job, topic), unavailable_queues(job)
    available = [queue for queue in queues if queue not in unavailable]
    if queues and not available:
        return job.spark.createDataFrame([], columns)
    reader = job.spark.read.format("catmq").option("topic", topic).schema(columns)
    if len(available) < len(queues):
        reader = reader.option("queues", ",".join(map(str, available)))
    if days is not None:
        # The driver's clock only chooses where the scan begins; rows carry the nodes'
        # times.
        since = (int(time.time() * 1000) // DAY_MS - days + 1) * DAY_MS
        reader = reader.option("startingTimestamp", since)
    rate = job.number("rows_per_second", 0)
    return (reader.option("maxRowsPerSecond", rate) if rate else reader).load()


def unavailable_queues(job: Job) -> dict[int, str]:
    """Return why a queue cannot be read, by queue id."""
    return {int(queue): reason for queue, reason in job.setting("away", {}).items()}


def topic_queues(job: Job, topic: str) -> list[int]:
    return [int(queue) for queue in job.setting("queues", {}).get(topic, [])]


def describe_missing_queues(job: Job, topic: str) -> str:
    """Return the queues that a topic's figures do not cover, with the reason; '' if none."""
    unavailable = unavailable_queues(job)
    missing = [queue for queue in topic_queues(job, topic) if queue in unavailable]
    if not missing:
        return ""
    return f"not of queues {', '.join(map(str, missing))}: {unavailable[missing[0]]}"


def size_and_expiry(job: Job) -> None:
    """Report messages, body sizes and times of each queue.

    Adds exact sizes to the server's rows. A queue that cannot be read keeps its row, with
    the problem.
    """
    rows, unavailable = job.inputs(), unavailable_queues(job)
    measured = {}
    for topic in topics_of(rows):
        frame = scan_topic(job, topic, "queue bigint, body_bytes bigint")
        grouped = frame.groupBy("queue").agg(
            F.count("*").alias("messages"),
            F.sum("body_bytes").alias("body_bytes"),
            F.max("body_bytes").alias("largest"),
            F.percentile("body_bytes", F.lit(0.99)).alias("p99"),
        )
        with job.run_stage(f"topic {topic}"):
            measured.update({sizes.queue: sizes for sizes in grouped.collect()})
    for row in rows:
        if row["queue"] in unavailable:
            row["problem"] = unavailable[row["queue"]]
        sizes = measured.get(row["queue"])
        if sizes is not None:
            row |= {
                "messages": sizes.messages,
                "body_bytes": sizes.body_bytes,
                "body_largest": sizes.largest,
                "body_p99": sizes.p99,
            }
    job.write_result("report", rows)


def volume(job: Job) -> None:
    """Report messages, bytes and keys by topic, day (UTC) and queue, by a scan of the last
    days.

    A queue that cannot be read has a row with its problem.
    """
    rows, unavailable = job.inputs(), unavailable_queues(job)
    node_of = {row["queue"]: row["node"] for row in rows}
    report: list[Row] = [
        {
            "topic": topic,
            "queue": queue,
            "node": node_of.get(queue, ""),
            "problem": unavailable[queue],
        }
        for topic in topics_of(rows)
        for queue in topic_queues(job, topic)
        if queue in unavailable
    ]
    for topic in topics_of(rows):
        columns = "queue bigint, key string, body_bytes bigint, stored_at timestamp"
        frame = scan_topic(job, topic, columns, days=job.number("days", 7))
        grouped = frame.groupBy(
            "queue", F.date_format("stored_at", "yyyy-MM-dd").alias("day")
        ).agg(
            F.count("*").alias("messages"),
            F.sum("body_bytes").alias("bytes"),
            F.countDistinct("key").alias("keys"),
        )
        with job.run_stage(f"topic {topic}"):
            counted = grouped.orderBy("queue", "day").collect()
        report += [
            {
                "topic": topic,
                "queue": totals.queue,
                "node": node_of.get(totals.queue, ""),
                "day": totals.day,
                "messages": totals.messages,
                "bytes": totals.bytes,
                "keys": totals["keys"],
                "problem": "",
            }
            for totals in counted
        ]
    job.write_result("report", report)


def topics(job: Job) -> None:
    """Report how unevenly keys are used: adds keys, the busiest key and its share to each
    topic.
    """
    rows = job.inputs()
    by_topic = {row["topic"]: row for row in rows}
    for topic in topics_of(rows):
        frame = scan_topic(
            job, topic, "key string, stored_at timestamp", days=job.number("days", 7)
        )
        keys = frame.groupBy("key").count().cache()
        with job.run_stage(f"topic {topic}"):
            total = keys.agg(F.sum("count")).first()
            named = keys.where(F.col("key").isNotNull())
            count, busiest = named.count(), named.orderBy(F.desc("count"), "key").first()
        keys.unpersist()
        sent = (total[0] if total is not None else None) or 0
        share = busiest["count"] / sent if busiest is not None and sent else 0.0
        by_topic[topic] |= {
            "keys": count,
            "busiest_key": busiest["key"] if busiest is not None else None,
            "busiest_share": round(share, 4),
            "skewed": share > SKEWED_SHARE and count > 1,
            "problem": describe_missing_queues(job, topic),
        }
    job.write_result("report", rows)


def capacity(job: Job) -> None:
    """Report the bytes that nodes store per day, and in how many days they are full.

    Replaces the server's estimates by the bytes that were stored in the last days. Nodes
    with unavailable queues keep their estimates.
    """
    rows, days = job.inputs(), job.number("days", 7)
    node_of = {int(queue): node for queue, node in job.setting("nodes", {}).items()}
    stored: dict[str, int] = {}
    for topic in sorted(job.setting("topics", [])):
        frame = scan_topic(
            job, topic, "queue bigint, body_bytes bigint, stored_at timestamp", days=days
        )
        with job.run_stage(f"topic {topic}"):
            sums = (
                frame.groupBy("queue")
                .agg(F.sum(F.col("body_bytes") + ROW_BYTES).alias("bytes"))
                .collect()
            )
        for total in sums:
            node = node_of.get(total.queue, "")
            stored[node] = stored.get(node, 0) + total.bytes
    unavailable = {
        node_of[queue]: reason
        for queue, reason in unavailable_queues(job).items()
        if queue in node_of
    }
    for row in rows:
        row["problem"] = unavailable.get(row["node"], row["problem"])
        if row["problem"]:
            continue
        daily = stored.get(row["node"], 0) / days
        row["bytes_a_day"] = daily
        free = row["free_bytes"]
        row["days_until_full"] = (
            max(0, int(free / daily)) if free is not None and daily else None
        )
    job.write_result("report", rows)


def departments(job: Job) -> None:
    """Report the bytes that departments stored in the last days.

    Replaces the server's estimates. Departments with an unavailable queue keep their
    estimates.
    """
    rows, days = job.inputs(), job.number("days", 7)
    stored: dict[str, int] = {}
    problems: dict[str, str] = {}
    for topic, department in sorted(job.setting("departments", {}).items()):
        frame = scan_topic(job, topic, "body_bytes bigint, stored_at timestamp", days=days)
        with job.run_stage(f"topic {topic}"):
            total = frame.agg(F.sum(F.col("body_bytes") + ROW_BYTES)).first()
        stored[department] = stored.get(department, 0) + (
            (total[0] if total is not None else None) or 0
        )
        if missing := describe_missing_queues(job, topic):
            problems.setdefault(department, f"{topic}: {missing}")
    for row in rows:
        row["problem"] = problems.get(row["department"], row["problem"])
        if not row["problem"]:
            row["bytes"] = stored.get(row["department"], 0)
    job.write_result("report", rows)
