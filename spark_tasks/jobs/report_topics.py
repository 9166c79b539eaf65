"""report_topics: the verdicts on topics, and how unevenly their keys are used."""

from __future__ import annotations

from pyspark.sql import functions as F

from spark_tasks.jobs.running import Job
from spark_tasks.jobs.scanning import known, missing, scanned, topics_of

SKEWED = 0.2  # of all messages under one key: no number of queues helps that key


def run(job: Job) -> None:
    """Adds to each topic how many keys it has, the busiest, and its share of the last days' messages."""
    rows = known(job)
    by_topic = {row["topic"]: row for row in rows}
    for topic in topics_of(rows):
        frame = scanned(job, topic, "key string, stored_at timestamp", days=job.number("days", 7))
        keys = frame.groupBy("key").count().cache()
        with job.watched(f"topic {topic}"):
            total = keys.agg(F.sum("count")).first()
            named = keys.where(F.col("key").isNotNull())
            count, top = named.count(), named.orderBy(F.desc("count"), "key").first()
        keys.unpersist()
        sent = (total[0] if total is not None else None) or 0
        share = top["count"] / sent if top is not None and sent else 0.0
        by_topic[topic] |= {"keys": count, "busiest_key": top["key"] if top is not None else None}
        by_topic[topic] |= {"busiest_share": round(share, 4), "skewed": share > SKEWED and count > 1}
        by_topic[topic]["problem"] = missing(job, topic)
    job.result("report", rows)
