"""report_volume: messages, bytes and keys by topic, day (UTC) and queue."""

from __future__ import annotations

from pyspark.sql import functions as F

from spark_tasks.jobs.running import Job
from spark_tasks.jobs.scanning import Row, away, known, queues_of, scanned, topics_of


def run(job: Job) -> None:
    """Adds what a scan of the last days tells; a queue that cannot be read stands with its problem."""
    rows, gone = known(job), away(job)
    node_of = {row["queue"]: row["node"] for row in rows}
    found: list[Row] = [
        {"topic": topic, "queue": queue, "node": node_of.get(queue, ""), "problem": gone[queue]}
        for topic in topics_of(rows)
        for queue in queues_of(job, topic)
        if queue in gone
    ]
    for topic in topics_of(rows):
        columns = "queue bigint, key string, body_bytes bigint, stored_at timestamp"
        frame = scanned(job, topic, columns, days=job.number("days", 7))
        grouped = frame.groupBy("queue", F.date_format("stored_at", "yyyy-MM-dd").alias("day")).agg(
            F.count("*").alias("messages"),
            F.sum("body_bytes").alias("bytes"),
            F.countDistinct("key").alias("keys"),
        )
        with job.watched(f"topic {topic}"):
            counted = grouped.orderBy("queue", "day").collect()
        found += [
            {"topic": topic, "queue": one.queue, "node": node_of.get(one.queue, ""), "day": one.day}
            | {"messages": one.messages, "bytes": one.bytes, "keys": one["keys"], "problem": ""}
            for one in counted
        ]
    job.result("report", found)
