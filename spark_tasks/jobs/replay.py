"""replay: send the messages of an archive to a topic again, day by day, in the order of
each queue.

Settings: archive, topic (whose archive), to (the topic to send to), since and through
(days; default all), queues, messages_per_second (of all tasks; 0: no limit), run_id. To
repeat a run that failed, set the same run_id within a day: messages that it stored are not
stored again.

Key, tag, headers, trace id and body are sent unchanged; offsets and times are new. Every
file is checked against its manifest before its day is sent.
"""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_tasks import archives
from spark_tasks.errors import ArchiveError
from spark_tasks.jobs.archive import compute_checksums, read_files
from spark_tasks.jobs.running import Job

SENT_COLUMNS = ("key", "tag", "headers", "body", "trace_id")


def run(job: Job) -> None:
    """Replay the selected days. Raises JobError."""
    archive, topic = str(job.setting("archive")), str(job.setting("topic"))
    since, through = str(job.setting("since", "0000")), str(job.setting("through", "9999"))
    days = [day for day in archives.list_days(archive, topic) if since <= day <= through]
    if not days:
        raise ArchiveError(f"the archive {archive} holds no such day of topic {topic}")
    day_reports = []
    for number, day in enumerate(days):
        job.report_progress(f"checking day {day}", number, len(days))
        frame = read_verified_day(job, archive, topic, day)
        messages = frame.count()
        with job.run_stage(f"sending day {day}, {messages:,} messages"):
            send(job, frame, day)
        day_reports.append({"day": day, "messages": messages})
    job.write_result("days", day_reports)


def read_verified_day(job: Job, archive: str, topic: str, day: str) -> DataFrame:
    """Return the messages of the selected queues of a day, after checking the whole day.

    Raises ArchiveError if files or checksums differ from the manifest.
    """
    files = archives.check_files(archive, topic, day)
    expected: dict[int, tuple[int, int, int]] = {}
    for part in archives.read_parts(archive, topic, day):
        # A range without rows is missing from the checksums of the files as well.
        for archived in filter(attrgetter("rows"), part.ranges):
            rows, xor, total = expected.get(archived.queue, (0, 0, 0))
            expected[archived.queue] = (
                rows + archived.rows,
                xor ^ archived.xor,
                total + archived.sum,
            )
    frame = read_files(job, *map(Path, files))
    with job.run_stage(f"checking day {day}"):
        checksums = compute_checksums(frame)
    if checksums != expected:
        raise ArchiveError(
            f"the files of day {day} in {archive} do not hold what its manifest says"
        )
    queues = [int(queue_id) for queue_id in job.setting("queues", [])]
    return frame.where(F.col("queue").isin(queues)) if queues else frame


def send(job: Job, frame: DataFrame, day: str) -> None:
    """Send the messages of a day. Each archived queue is sent by a single task, which keeps
    its order.
    """
    # Sorted, a repeated task sends the same requests, and brokers recognise their batch
    # ids.
    tasks = max(1, frame.select("queue").distinct().count())
    ordered = frame.repartition(tasks, "queue").sortWithinPartitions("queue", "offset")
    writer = (
        ordered.select(*SENT_COLUMNS)
        .write.format("catmq")
        .mode("append")
        .option("topic", job.setting("to"))
        .option("runId", f"{job.setting('run_id', job.directory.name)} {day}")
    )
    if rate := job.number("messages_per_second", 0):
        # The option limits each task, so the rate is divided by the tasks that run in parallel.
        parallel_tasks = min(tasks, job.spark.sparkContext.defaultParallelism)
        writer = writer.option("messagesPerSecond", max(1, rate // parallel_tasks))
    writer.save()
