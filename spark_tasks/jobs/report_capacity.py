"""report_capacity: what nodes get a day by a scan, and after how many days they are full."""

from __future__ import annotations

from pyspark.sql import functions as F

from spark_tasks.jobs.running import Job
from spark_tasks.jobs.scanning import away, known, scanned

ROW_BYTES = 60  # what a row costs beside what it holds


def run(job: Job) -> None:
    """Replaces estimates of bytes a day by what was stored in the last days; not of nodes that are away."""
    rows, days = known(job), job.number("days", 7)
    node_of = {int(queue): node for queue, node in job.setting("nodes", {}).items()}
    stored: dict[str, int] = {}
    for topic in sorted(job.setting("topics", [])):
        frame = scanned(job, topic, "queue bigint, body_bytes bigint, stored_at timestamp", days=days)
        with job.watched(f"topic {topic}"):
            sums = frame.groupBy("queue").agg(F.sum(F.col("body_bytes") + ROW_BYTES).alias("bytes")).collect()
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
        row["days_until_full"] = max(0, int(free / daily)) if free is not None and daily else None
    job.result("report", rows)
