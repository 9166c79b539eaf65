"""archive: copy whole days of a topic into Parquet files, and publish a day only after a
check.

Settings: topic, archive (a directory), through (the last day, 2026-11-22; default
yesterday, UTC) or up_to_now, rows_per_second (for each task; 0: no limit),
rows_per_partition.

A day is a range of offsets of each queue, because store times never decrease within a
queue. A run starts at the end of the archived offsets, so a day may consist of several
parts. Each part is written into a draft directory and read back. Its row counts and two
checksums per queue are compared with those of the source, which is read a second time. The
part is published only if they are equal.
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
from spark_tasks.nodes.connection import (
    Node,
    connected_node,
    find_first_at,
    read_now_us,
    read_stored_at,
)
from spark_tasks.nodes.plans import Plan, PlannedQueue, Span

DAY = timedelta(days=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Days = dict[str, dict[int, Span]]  # day → queue → offsets
# queue → number of rows, xor and sum of their hashes
Checksums = dict[int, tuple[int, int, int]]


def run(job: Job) -> None:
    """Archive all days that are due. Raises JobError."""
    topic, archive = str(job.setting("topic")), str(job.setting("archive"))
    reports = []
    with archives.lock_archive(archive, topic):
        plan = plans.fetch(topic)
        # Under the lock: a draft of another running job must not be removed.
        clear_drafts(archive, topic)
        due_days, notes = find_due_days(job, plan, archive)
        for number, (day, spans) in enumerate(sorted(due_days.items())):
            job.report_progress(f"day {day}", number, len(due_days))
            part = archive_day(job, plan, day, spans)
            reports.append(
                {
                    "day": day,
                    "part": part.directory,
                    "rows": sum(archived.rows for archived in part.ranges),
                    "bytes": sum(file.bytes for file in part.files),
                }
            )
    job.write_result("days", reports)
    job.write_result("notes", [{"note": note} for note in notes])


def clear_drafts(archive: str, topic: str) -> None:
    """Remove the remains of crashed runs: drafts, and parts that no manifest names."""
    directory = archives.topic_directory(archive, topic)
    for draft in directory.glob(".draft-*"):
        shutil.rmtree(draft)
    for day_directory in directory.glob("day=*"):
        day = day_directory.name.removeprefix("day=")
        published = {part.directory for part in archives.read_parts(archive, topic, day)}
        for part_directory in day_directory.glob("part-*"):
            if part_directory.name not in published:
                shutil.rmtree(part_directory)


def find_due_days(job: Job, plan: Plan, archive: str) -> tuple[Days, list[str]]:
    """Return the days to archive, and notes on offsets that can no longer be archived.

    Raises JobError.
    """
    due_days: Days = {}
    notes = []
    for queue in plan.queues:
        start = find_archived_end(archive, plan.topic, queue)
        if start < queue.low:
            notes.append(
                f"queue {queue.queue}: offsets {start:,} … {queue.low - 1:,} were cleaned "
                "before they were "
                "archived"
            )
        unarchived = Span(max(start, queue.low), queue.head)
        for day, span in split_by_day(job, queue, unarchived).items():
            due_days.setdefault(day, {})[queue.queue] = span
    return due_days, notes


def find_archived_end(archive: str, topic: str, queue: PlannedQueue) -> int:
    """Return the end of the archived offsets of a queue, 0 if nothing is archived.

    Raises ArchiveError if the archive holds the queue of another installation.
    """
    archived_end = 0
    for _, archived in archives.iterate_ranges(archive, topic):
        if archived.queue != queue.queue:
            continue
        # Queue ids repeat between installations; identities of nodes do not.
        if archived.identity != queue.node.identity:
            raise ArchiveError(
                f"the archive {archive} holds queue {queue.queue} of another installation; "
                "give each its own directory"
            )
        archived_end = max(archived_end, archived.end)
    return archived_end


def split_by_day(job: Job, queue: PlannedQueue, remaining: Span) -> dict[str, Span]:
    """Split offsets of a queue by the day they were stored, up to the last day to archive.

    Raises JobError.
    """
    spans: dict[str, Span] = {}
    if remaining.first >= remaining.end:
        return spans
    with connected_node(queue.node) as node:
        last = last_day(job, node)
        while remaining.first < remaining.end:
            at_us = read_stored_at(node, queue.table, remaining.first) or 0
            day = (EPOCH + timedelta(microseconds=at_us)).date()
            if day > last:
                break
            next_day_us = (day + DAY - EPOCH.date()) // timedelta(microseconds=1)
            end = find_first_at(node, queue.table, remaining, next_day_us)
            spans[day.isoformat()] = Span(remaining.first, end)
            remaining = Span(end, remaining.end)
    return spans


def last_day(job: Job, node: Node) -> date:
    """Return the last day to archive. Raises OptionError."""
    # Days end by the clock of the node, which also stamped the messages.
    today = (EPOCH + timedelta(microseconds=read_now_us(node))).date()
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


def archive_day(job: Job, plan: Plan, day: str, spans: Mapping[int, Span]) -> Part:
    """Write, check and publish a part of a day. Raises ArchiveError if the check fails."""
    topic, archive = plan.topic, str(job.setting("archive"))
    name = f"part-{uuid7()}"
    draft = archives.topic_directory(archive, topic) / f".draft-{name}"
    progress = f"day {day}, {sum(span.end - span.first for span in spans.values()):,} rows"
    try:
        with job.run_stage(f"{progress}: writing"):
            read_source(job, topic, spans).write.parquet(str(draft))
        files = archives.list_files(draft)
        with job.run_stage(f"{progress}: reading the files back"):
            written = compute_checksums(read_files(job, draft))
        with job.run_stage(f"{progress}: comparing with the source"):
            stored = compute_checksums(read_source(job, topic, spans))
        if written != stored:
            raise ArchiveError(
                f"day {day} of topic {topic}: the files differ from the source; nothing "
                "is published"
            )
        ranges = []
        for queue, span in spans.items():
            node = plan.queue(queue).node
            # A span that is all gaps has no rows, and so no checksums.
            checksums = stored.get(queue, (0, 0, 0))
            ranges.append(ArchivedRange(queue, node.name, node.identity, *span, *checksums))
        part = Part(name, tuple(ranges), files)
        archives.publish(archive, topic, day, part, draft=draft)
    finally:
        # Only after a failure: publish() renames the draft.
        shutil.rmtree(draft, ignore_errors=True)
    return part


def read_source(job: Job, topic: str, spans: Mapping[int, Span]) -> DataFrame:
    """Return these offsets of a topic, read from the nodes."""
    starts = json.dumps({str(queue): span.first for queue, span in spans.items()})
    ends = json.dumps({str(queue): span.end for queue, span in spans.items()})
    reader = (
        job.spark.read.format("catmq")
        .option("topic", topic)
        .option("queues", ",".join(map(str, spans)))
        .option("startingOffsets", starts)
        .option("endingOffsets", ends)
        .option("rowsPerPartition", job.number("rows_per_partition", 500_000))
    )
    if rate := job.number("rows_per_second", 0):
        reader = reader.option("maxRowsPerSecond", rate)
    return reader.load()


def read_files(job: Job, *directories: Path) -> DataFrame:
    """Return the messages in Parquet files, which must have all columns of messages."""
    return job.spark.read.schema(SCHEMA).parquet(*map(str, directories))


def compute_checksums(frame: DataFrame) -> Checksums:
    """Return row count, xor and sum of row hashes of each queue.

    Two tables with equal results hold the same rows, whatever their order.
    """

    columns = [name for name in frame.columns if name != "queue"]
    row_hash = F.xxhash64("queue", *columns)
    checksums = frame.groupBy("queue").agg(
        F.count("*").alias("rows"),
        F.bit_xor(row_hash).alias("xor"),
        # A sum of many 64-bit hashes overflows a bigint.
        F.sum(row_hash.cast("decimal(38,0)")).alias("sum"),
    )
    return {
        row["queue"]: (row["rows"], row["xor"], int(row["sum"]))
        for row in checksums.collect()
    }
