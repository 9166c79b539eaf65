"""replay: sends an archive's messages to a topic again, day by day, in the order of each
queue.

Settings: archive, topic (whose archive), to (where to send), since and through (days;
default all), queues, messages_per_second (in all; 0: no limit), run_id (a repeat of a run
that broke off gives the same one, within a day: then nothing is stored twice).

Key, tag, headers, trace id and body are sent as they were; offsets and times are new. Every
file is checked against its manifest before its day is sent.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_tasks import archives
from spark_tasks.errors import ArchiveError
from spark_tasks.jobs.archive import read, sums
from spark_tasks.jobs.running import Job

SENT = ("key", "tag", "headers", "body", "trace_id")


def run(job: Job) -> None:
    """Replay the days that are asked for. Raises JobError."""
    archive, topic = str(job.setting("archive")), str(job.setting("topic"))
    since, through = str(job.setting("since", "0000")), str(job.setting("through", "9999"))
    days = [day for day in archives.days(archive, topic) if since <= day <= through]
    if not days:
        raise ArchiveError(f"the archive {archive} holds no such day of topic {topic}")
    done = []
    for number, day in enumerate(days):
        job.tell(f"checking day {day}", number, len(days))
        frame = proven(job, archive, topic, day)
        messages = frame.count()
        with job.watched(f"sending day {day}, {messages:,} messages"):
            send(job, frame, day)
        done.append({"day": day, "messages": messages})
    job.result("days", done)


def proven(job: Job, archive: str, topic: str, day: str) -> DataFrame:
    """The messages of a day, whose files and sums are those of its manifest. Raises
    ArchiveError.
    """
    files = archives.check_files(archive, topic, day)
    expected: dict[int, tuple[int, int, int]] = {}
    for one in (
        one
        for part in archives.parts(archive, topic, day)
        for one in part.ranges
        if one.rows
    ):
        rows, xor, total = expected.get(one.queue, (0, 0, 0))
        expected[one.queue] = (rows + one.rows, xor ^ one.xor, total + one.sum)
    frame = read(job, *map(Path, files))
    with job.watched(f"checking day {day}"):
        found = sums(frame)
    if found != expected:
        raise ArchiveError(
            f"the files of day {day} in {archive} do not hold what its manifest says"
        )
    wanted = [int(queue) for queue in job.setting("queues", [])]
    return frame.where(F.col("queue").isin(wanted)) if wanted else frame


def send(job: Job, frame: DataFrame, day: str) -> None:
    """Send a day; each queue of the archive by one task, so that its order stays."""
    tasks = max(1, frame.select("queue").distinct().count())
    ordered = frame.repartition(tasks, "queue").sortWithinPartitions("queue", "offset")
    writer = (
        ordered.select(*SENT)
        .write.format("catmq")
        .mode("append")
        .option("topic", job.setting("to"))
    )
    writer = writer.option("runId", f"{job.setting('run_id', job.directory.name)} {day}")
    rate = job.number("messages_per_second", 0)
    if rate:
        at_once = min(tasks, job.spark.sparkContext.defaultParallelism)
        writer = writer.option("messagesPerSecond", max(1, rate // at_once))
    writer.save()
