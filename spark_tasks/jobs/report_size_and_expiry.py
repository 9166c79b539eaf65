"""report_size_and_expiry: what each queue holds, by a scan: messages, bytes of bodies, sizes, times."""

from __future__ import annotations

from pyspark.sql import functions as F

from spark_tasks.jobs.running import Job
from spark_tasks.jobs.scanning import away, known, scanned, topics_of


def run(job: Job) -> None:
    """Adds exact sizes to the server's rows; a queue that cannot be read keeps its row and its problem."""
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
