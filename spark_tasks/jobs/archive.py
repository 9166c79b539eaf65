"""archive: copies whole days of a topic into Parquet files, and publishes a day only once
it is proven.

Settings: topic, archive (a directory), through (the last day, 2026-11-22; default
yesterday, UTC) or up_to_now, rows_per_second (for each task; 0: no limit),
rows_per_partition.

A day is a range of offsets of each queue, because times never fall within a queue. A run
goes on behind what is archived already, so days may come in several parts. Each part is
written into a draft, read back, and compared with the source, which is read again: rows and
two checksums per queue. Only then is it published.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from catmq_client.sending.ids import uuid7
from spark_tasks import archives
from spark_tasks.archives import ArchivedRange, Part
from spark_tasks.errors import ArchiveError, OptionError
from spark_tasks.jobs.running import Job
from spark_tasks.nodes import plans
from spark_tasks.nodes.columns import SCHEMA
from spark_tasks.nodes.connection import Node, connection, first_at, now_us, stored_at
from spark_tasks.nodes.plans import Plan, PlannedQueue, Span

DAY = timedelta(days=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Days = dict[str, dict[int, Span]]  # day → queue → offsets
Sums = dict[int, tuple[int, int, int]]  # queue → rows, xor and sum of their hashes


def run(job: Job) -> None:
    """Archive what is due. Raises JobError."""
    topic, archive = str(job.setting("topic")), str(job.setting("archive"))
    made = []
    with archives.locked(archive, topic):
        plan = plans.fetch(topic)
        clear_drafts(archive, topic)
        due, notes = days_due(job, plan, archive)
        for number, (day, spans) in enumerate(sorted(due.items())):
            job.tell(f"day {day}", number, len(due))
            part = archived(job, plan, day, spans)
            rows = sum(one.rows for one in part.ranges)
            size = sum(one.bytes for one in part.files)
            made.append({"day": day, "part": part.directory, "rows": rows, "bytes": size})
    job.result("days", made)
    job.result("notes", [{"note": note} for note in notes])


def clear_drafts(archive: str, topic: str) -> None:
    """Remove what runs left that died: drafts, and parts that no manifest names."""
    directory = archives.topic_directory(archive, topic)
    for draft in directory.glob(".draft-*"):
        shutil.rmtree(draft)
    for found in directory.glob("day=*"):
        known = {
            part.directory
            for part in archives.parts(archive, topic, found.name.removeprefix("day="))
        }
        for part in found.glob("part-*"):
            if part.name not in known:
                shutil.rmtree(part)


def days_due(job: Job, plan: Plan, archive: str) -> tuple[Days, list[str]]:
    """Return the days to archive, and notes on what can no longer be archived. Raises
    JobError.
    """
    due: Days = {}
    notes = []
    for queue in plan.queues:
        start = archived_to(archive, plan.topic, queue)
        if start < queue.low:
            notes.append(
                f"queue {queue.queue}: offsets {start:,} … {queue.low - 1:,} were cleaned "
                "before they were "
                "archived"
            )
        left = Span(max(start, queue.low), queue.head)
        for day, span in days_of(job, queue, left).items():
            due.setdefault(day, {})[queue.queue] = span
    return due, notes


def archived_to(archive: str, topic: str, queue: PlannedQueue) -> int:
    """The offset behind all that is archived of a queue; 0 if nothing is. Raises
    ArchiveError.
    """
    ends = [0]
    for day in archives.days(archive, topic):
        for one in (
            one for part in archives.parts(archive, topic, day) for one in part.ranges
        ):
            if one.queue == queue.queue and one.identity != queue.node.identity:
                raise ArchiveError(
                    f"the archive {archive} holds queue {queue.queue} of another installation; "
                    "give each its own directory"
                )
            ends += [one.end] if one.queue == queue.queue else []
    return max(ends)


def days_of(job: Job, queue: PlannedQueue, left: Span) -> dict[str, Span]:
    """A queue's offsets by day, up to the last day that is asked for. Raises JobError."""
    found: dict[str, Span] = {}
    if left.first >= left.end:
        return found
    with connection(queue.node) as node:
        last = last_day(job, node)
        while left.first < left.end:
            at_us = stored_at(node, queue.table, left.first) or 0
            day = (EPOCH + timedelta(microseconds=at_us)).date()
            if day > last:
                break
            end = first_at(node, queue.table, left, _us(day + DAY))
            found[day.isoformat()] = Span(left.first, end)
            left = Span(end, left.end)
    return found


def last_day(job: Job, node: Node) -> date:
    """The last day to archive. Raises OptionError."""
    today = (EPOCH + timedelta(microseconds=now_us(node))).date()
    if job.setting("up_to_now", False):
        return today
    text = str(job.setting("through", (today - DAY).isoformat()))
    try:
        day = date.fromisoformat(text)
    except ValueError:
        raise OptionError(
            f"through must be a day such as {today - DAY}, not {text!r}"
        ) from None
    if day >= today:
        raise OptionError(
            f"{day} is not over yet (UTC): archive through {today - DAY}, or up to now"
        )
    return day


def _us(day: date) -> int:
    return (day - EPOCH.date()).days * 86_400_000_000


def archived(job: Job, plan: Plan, day: str, spans: Mapping[int, Span]) -> Part:
    """Writes, proves and publishes a part of a day."""
    topic, archive = plan.topic, str(job.setting("archive"))
    name = f"part-{uuid7()}"
    draft = archives.topic_directory(archive, topic) / f".draft-{name}"
    about = f"day {day}, {sum(span.end - span.first for span in spans.values()):,} rows"
    try:
        with job.watched(f"{about}: writing"):
            source(job, topic, spans).write.parquet(str(draft))
        files = archives.described(draft)
        with job.watched(f"{about}: reading the files back"):
            written = sums(read(job, draft))
        with job.watched(f"{about}: comparing with the source"):
            stored = sums(source(job, topic, spans))
        if written != stored:
            what = (
                f"day {day} of topic {topic}: the files differ from the source; nothing "
                "is published"
            )
            raise ArchiveError(what)
        part = Part(
            name,
            tuple(_range(plan, queue, span, stored) for queue, span in spans.items()),
            files,
        )
        archives.publish(archive, topic, day, part, draft=draft)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return part


def source(job: Job, topic: str, spans: Mapping[int, Span]) -> DataFrame:
    starts = json.dumps({str(queue): span.first for queue, span in spans.items()})
    ends = json.dumps({str(queue): span.end for queue, span in spans.items()})
    reader = job.spark.read.format("catmq").option("topic", topic)
    reader = reader.option("queues", ",".join(map(str, spans)))
    reader = reader.option("startingOffsets", starts).option("endingOffsets", ends)
    rate = job.number("rows_per_second", 0)
    if rate:
        reader = reader.option("maxRowsPerSecond", rate)
    return reader.option(
        "rowsPerPartition", job.number("rows_per_partition", 500_000)
    ).load()


def read(job: Job, *directories: Path) -> DataFrame:
    """The messages in files, which must have the columns of messages."""
    return job.spark.read.schema(SCHEMA).parquet(*map(str, directories))


def sums(frame: DataFrame) -> Sums:
    """Return checksums that prove that two tables hold the same rows, per queue."""
    columns = [name for name in frame.columns if name != "queue"]
    made = F.xxhash64("queue", *columns)
    found = frame.groupBy("queue").agg(
        F.count("*").alias("rows"),
        F.bit_xor(made).alias("xor"),
        F.sum(made.cast("decimal(38,0)")).alias("sum"),
    )
    return {
        row["queue"]: (row["rows"], row["xor"], int(row["sum"])) for row in found.collect()
    }


def _range(plan: Plan, queue: int, span: Span, stored: Sums) -> ArchivedRange:
    node = plan.queue(queue).node
    rows, xor, total = stored.get(queue, (0, 0, 0))
    return ArchivedRange(
        queue, node.name, node.identity, span.first, span.end, rows, xor, total
    )
