"""The reports that complete the server's rows, made from heads alone, by a scan of the
messages.

A node that was away when the report was asked for does not fail it: the setting `away`
names its queues, they are left out, and the rows that lack them say so in `problem`. A node
that goes while it is read fails the job, by name: what it had given before would be taken
for all there is.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_tasks.jobs.running import Job

DAY_MS = 86_400_000
SKEWED = 0.2  # of all messages under one key: no number of queues helps that key
ROW_BYTES = 60  # what a row costs beside what it holds
Row = dict[str, Any]


def known(job: Job) -> list[Row]:
    """The server's rows, which the job completes."""
    return [dict(row) for row in job.inputs()]


def topics_of(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    return sorted({row["topic"] for row in rows})


def scanned(job: Job, topic: str, columns: str, *, days: int | None = None) -> DataFrame:
    """A topic's messages, only some columns, of the last days or all; without the queues
    that are away.

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
    return [int(queue) for queue in job.setting("queues", {}).get(topic, [])]


def missing(job: Job, topic: str) -> str:
    """Return the reason why a topic's figures are not of all its queues; '' if they are."""
    gone = away(job)
    mine = [queue for queue in queues_of(job, topic) if queue in gone]
    if not mine:
        return ""
    return f"not of queues {', '.join(map(str, mine))}: {gone[mine[0]]}"


def size_and_expiry(job: Job) -> None:
    """Report what each queue holds: messages, bytes of bodies, sizes, times.

    Adds exact sizes to the server's rows; a queue that cannot be read keeps its row and its
    problem.
    """
    rows, gone = known(job), away(job)
    measured = {}
    for topic in topics_of(rows):
        frame = scanned(job, topic, "queue bigint, body_bytes bigint")
        grouped = frame.groupBy("queue").agg(
            F.count("*").alias("messages"),
            F.sum("body_bytes").alias("body_bytes"),
            F.max("body_bytes").alias("largest"),
            F.percentile("body_bytes", F.lit(0.99)).alias("p99"),
        )
        with job.watched(f"topic {topic}"):
            measured.update({one.queue: one for one in grouped.collect()})
    for row in rows:
        if row["queue"] in gone:
            row["problem"] = gone[row["queue"]]
        one = measured.get(row["queue"])
        if one is not None:
            row |= {"messages": one.messages, "body_bytes": one.body_bytes}
            row |= {"body_largest": one.largest, "body_p99": one.p99}
    job.result("report", rows)


def volume(job: Job) -> None:
    """Report messages, bytes and keys by topic, day (UTC) and queue.

    Adds what a scan of the last days tells; a queue that cannot be read stands with its
    problem.
    """
    rows, gone = known(job), away(job)
    node_of = {row["queue"]: row["node"] for row in rows}
    found: list[Row] = [
        {
            "topic": topic,
            "queue": queue,
            "node": node_of.get(queue, ""),
            "problem": gone[queue],
        }
        for topic in topics_of(rows)
        for queue in queues_of(job, topic)
        if queue in gone
    ]
    for topic in topics_of(rows):
        columns = "queue bigint, key string, body_bytes bigint, stored_at timestamp"
        frame = scanned(job, topic, columns, days=job.number("days", 7))
        grouped = frame.groupBy(
            "queue", F.date_format("stored_at", "yyyy-MM-dd").alias("day")
        ).agg(
            F.count("*").alias("messages"),
            F.sum("body_bytes").alias("bytes"),
            F.countDistinct("key").alias("keys"),
        )
        with job.watched(f"topic {topic}"):
            counted = grouped.orderBy("queue", "day").collect()
        found += [
            {
                "topic": topic,
                "queue": one.queue,
                "node": node_of.get(one.queue, ""),
                "day": one.day,
            }
            | {
                "messages": one.messages,
                "bytes": one.bytes,
                "keys": one["keys"],
                "problem": "",
            }
            for one in counted
        ]
    job.result("report", found)


def topics(job: Job) -> None:
    """Report how unevenly the keys of topics are used, beside the verdicts on them.

    Adds to each topic how many keys it has, the busiest, and its share of the last days'
    messages.
    """
    rows = known(job)
    by_topic = {row["topic"]: row for row in rows}
    for topic in topics_of(rows):
        frame = scanned(
            job, topic, "key string, stored_at timestamp", days=job.number("days", 7)
        )
        keys = frame.groupBy("key").count().cache()
        with job.watched(f"topic {topic}"):
            total = keys.agg(F.sum("count")).first()
            named = keys.where(F.col("key").isNotNull())
            count, top = named.count(), named.orderBy(F.desc("count"), "key").first()
        keys.unpersist()
        sent = (total[0] if total is not None else None) or 0
        share = top["count"] / sent if top is not None and sent else 0.0
        by_topic[topic] |= {
            "keys": count,
            "busiest_key": top["key"] if top is not None else None,
        }
        by_topic[topic] |= {
            "busiest_share": round(share, 4),
            "skewed": share > SKEWED and count > 1,
        }
        by_topic[topic]["problem"] = missing(job, topic)
    job.result("report", rows)


def capacity(job: Job) -> None:
    """Report what nodes get a day, and after how many days they are full.

    Replaces estimates of bytes a day by what was stored in the last days; not of nodes that
    are away.
    """
    rows, days = known(job), job.number("days", 7)
    node_of = {int(queue): node for queue, node in job.setting("nodes", {}).items()}
    stored: dict[str, int] = {}
    for topic in sorted(job.setting("topics", [])):
        frame = scanned(
            job, topic, "queue bigint, body_bytes bigint, stored_at timestamp", days=days
        )
        with job.watched(f"topic {topic}"):
            sums = (
                frame.groupBy("queue")
                .agg(F.sum(F.col("body_bytes") + ROW_BYTES).alias("bytes"))
                .collect()
            )
        for one in sums:
            node = node_of.get(one.queue, "")
            stored[node] = stored.get(node, 0) + one.bytes
    gone = {node_of[queue]: why for queue, why in away(job).items() if queue in node_of}
    for row in rows:
        row["problem"] = gone.get(row["node"], row["problem"])
        if row["problem"]:
            continue
        daily = stored.get(row["node"], 0) / days
        row["bytes_a_day"] = daily
        free = row["free_bytes"]
        row["days_until_full"] = (
            max(0, int(free / daily)) if free is not None and daily else None
        )
    job.result("report", rows)


def departments(job: Job) -> None:
    """Report what departments got in the last days.

    Replaces estimates of bytes by what was stored; not of departments with a queue that is
    away.
    """
    rows, days = known(job), job.number("days", 7)
    stored: dict[str, int] = {}
    gone: dict[str, str] = {}
    for topic, department in sorted(job.setting("departments", {}).items()):
        frame = scanned(job, topic, "body_bytes bigint, stored_at timestamp", days=days)
        with job.watched(f"topic {topic}"):
            total = frame.agg(F.sum(F.col("body_bytes") + ROW_BYTES)).first()
        stored[department] = stored.get(department, 0) + (
            (total[0] if total is not None else None) or 0
        )
        if why := missing(job, topic):
            gone.setdefault(department, f"{topic}: {why}")
    for row in rows:
        row["problem"] = gone.get(row["department"], row["problem"])
        if not row["problem"]:
            row["bytes"] = stored.get(row["department"], 0)
    job.result("report", rows)
