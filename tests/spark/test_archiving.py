"""Archive, purge, replay: a day is published proven or not at all, and only what is proven
goes.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_tasks import archives
from spark_tasks.errors import ArchiveError, JobError, RangeError
from spark_tasks.jobs import archive, replay
from spark_tasks.jobs.running import Cancelled, Job
from spark_tasks.nodes.plans import Span
from tests.spark.stage import Stage
from tests.support.environment import ROOT
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("spark")
DAY_MS = 86_400_000
START_S = 240  # of a job, on a machine that does other things too


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The archive."""
    return tmp_path / "archive"


def job(spark: SparkSession, where: Path, **settings: object) -> Job:
    """A job in the session's Spark."""
    where.mkdir(parents=True, exist_ok=True)
    (where / "settings.json").write_text(json.dumps(settings))
    made = Job("archive", where)
    made._spark = spark
    return made


def results(where: Path, name: str) -> list[dict[str, Any]]:
    """A result of a job."""
    return [json.loads(line) for line in (where / f"{name}.jsonl").read_text().splitlines()]


def age(stage: Stage, topic: str, days: int) -> None:
    """Make all messages of a topic on node `main`, as they are now, so many days older."""
    for queue in stage.queues(topic):
        older = f"stored_at - {days * DAY_MS}"
        stage.execute("main", f"UPDATE {{message_{queue}}} SET stored_at = {older}")


def contents(stage: Stage, topic: str) -> list[tuple[Any, ...]]:
    """What a topic's messages hold, without their places."""
    found = stage.pulled(topic)
    return sorted(
        (one.get("key") or "", one["body_bytes"], one.get("tag") or "") for one in found
    )


def test_days_are_archived_purged_and_replayed(
    stage: Stage, spark: SparkSession, directory: Path, tmp_path: Path
) -> None:
    """On the node of a file; test_whole_way.py does the same on MariaDB."""
    topic = stage.topic("main")
    stage.fill(topic, 900)
    age(stage, topic, 1)
    age(stage, topic, 1)
    old = contents(stage, topic)
    stage.fill(topic, 100)
    archive.run(job(spark, tmp_path / "one", topic=topic, archive=str(directory)))
    made = results(tmp_path / "one", "days")
    assert sum(one["rows"] for one in made) == 900, "today is not over"
    said = stage.server.manage(
        "purge", topic, "--archive", str(directory), "--no-rest", "--yes"
    )
    assert "900 messages" in said
    assert len(stage.pulled(topic)) == 100
    target = stage.topic("main")
    replay.run(job(spark, tmp_path / "two", topic=topic, archive=str(directory), to=target))
    assert contents(stage, target) == old


def test_a_later_run_adds_a_part(
    stage: Stage, spark: SparkSession, directory: Path, tmp_path: Path
) -> None:
    topic = stage.topic("main", queues=1)
    for number, count in enumerate((300, 0, 200)):
        stage.fill(topic, count)
        made = job(
            spark,
            tmp_path / str(number),
            topic=topic,
            archive=str(directory),
            up_to_now=True,
        )
        archive.run(made)
    (queue,) = stage.queues(topic)
    kept = [
        span for _, span in archives.find_coverage(directory, topic, queue, Span(0, 10**9))
    ]
    assert kept == [Span(0, 300), Span(300, 500)]


def test_two_jobs_at_once_are_kept_apart(
    stage: Stage, spark: SparkSession, directory: Path, tmp_path: Path
) -> None:
    topic = stage.topic("main", queues=1)
    made = job(spark, tmp_path / "one", topic=topic, archive=str(directory))
    with (
        archives.lock_archive(directory, topic),
        pytest.raises(ArchiveError, match="another job is writing"),
    ):
        archive.run(made)
    archive.run(made)


def test_what_differs_from_the_source_is_not_published(
    stage: Stage,
    spark: SparkSession,
    directory: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = stage.topic("main", queues=1)
    stage.fill(topic, 50)
    (queue,) = stage.queues(topic)
    real = archives.list_files

    def tamper(draft: Path) -> Any:
        stage.execute(
            "main", f"UPDATE {{message_{queue}}} SET tag = 'changed' WHERE msg_offset = 7"
        )
        return real(draft)

    monkeypatch.setattr(archives, "list_files", tamper)
    made = job(spark, tmp_path / "one", topic=topic, archive=str(directory), up_to_now=True)
    with pytest.raises(ArchiveError, match="the files differ from the source"):
        archive.run(made)
    assert archives.list_days(directory, topic) == []
    assert list((directory / topic).glob(".draft-*")) == []


def test_a_full_disk_publishes_nothing_and_a_second_run_does(
    stage: Stage,
    spark: SparkSession,
    directory: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = stage.topic("main", queues=1)
    stage.fill(topic, 50)
    made = job(spark, tmp_path / "one", topic=topic, archive=str(directory), up_to_now=True)
    real = archives.write_atomically

    def full(path: Path, text: str) -> None:
        if path.name == archives.MANIFEST:
            raise OSError(28, "No space left on device")
        real(path, text)

    with monkeypatch.context() as patch:
        patch.setattr(archives, "write_atomically", full)
        with pytest.raises(OSError, match="No space left"):
            archive.run(made)
    assert archives.list_days(directory, topic) == []
    archive.run(made)
    (day,) = archives.list_days(directory, topic)
    parts = list(archives.day_directory(directory, topic, day).glob("part-*"))
    assert len(parts) == 1, "what the first run left is gone"


def test_a_job_is_cancelled_between_two_steps(
    stage: Stage, spark: SparkSession, directory: Path, tmp_path: Path
) -> None:
    topic = stage.topic("main", queues=1)
    stage.fill(topic, 50)
    made = job(spark, tmp_path / "one", topic=topic, archive=str(directory), up_to_now=True)
    (tmp_path / "one" / "cancel").touch()
    with pytest.raises(Cancelled):
        archive.run(made)
    assert archives.list_days(directory, topic) == []


def test_a_damaged_archive_is_neither_replayed_nor_purged(
    stage: Stage, spark: SparkSession, directory: Path, tmp_path: Path
) -> None:
    """One archive is made, and each kind of damage is done to a copy of it."""
    topic, target = stage.topic("main", queues=1), stage.topic("main", queues=1)
    stage.fill(topic, 50)
    archive.run(
        job(spark, tmp_path / "one", topic=topic, archive=str(directory), up_to_now=True)
    )
    (day,) = archives.list_days(directory, topic)
    for damage in ("missing", "changed", "manifest", "schema"):
        damaged = tmp_path / damage
        shutil.copytree(directory, damaged)
        home = archives.day_directory(damaged, topic, day)
        (file,) = home.glob("part-*/*.parquet")
        if damage == "missing":
            file.unlink()
        elif damage == "changed":
            file.write_bytes(file.read_bytes()[:-1] + b"x")
        elif damage == "manifest":
            (home / "manifest.json").write_text("{")
        else:
            other_schema(spark, home, file, tmp_path)
        made = job(
            spark,
            tmp_path / f"replay-{damage}",
            topic=topic,
            archive=str(damaged),
            to=target,
        )
        with pytest.raises((ArchiveError, JobError)):
            replay.run(made)
        assert stage.pulled(target) == [], damage
        # A manifest proves the bytes of a file. Whoever writes both may write other
        # columns.
        if damage != "schema":
            with pytest.raises(AssertionError, match=r"damaged|missing"):
                stage.server.manage("purge", topic, "--archive", str(damaged), "--yes")
        assert len(stage.pulled(topic)) == 50, damage


def other_schema(spark: SparkSession, home: Path, file: Path, tmp_path: Path) -> None:
    """A file of other columns, under a manifest that knows its sum."""
    spark.range(50).toDF("number").coalesce(1).write.parquet(str(tmp_path / "other"))
    (made,) = (tmp_path / "other").glob("*.parquet")
    file.write_bytes(made.read_bytes())
    file.with_name(f".{file.name}.crc").unlink()
    manifest = json.loads((home / "manifest.json").read_text())
    known = manifest["parts"][0]["files"][0]
    known |= {"bytes": file.stat().st_size, "sha256": archives.file_sha256(file)}
    (home / "manifest.json").write_text(json.dumps(manifest))


def test_the_archive_of_another_installation_is_refused(
    stage: Stage, spark: SparkSession, directory: Path, tmp_path: Path
) -> None:
    topic = stage.topic("main", queues=1)
    stage.fill(topic, 20)
    made = job(spark, tmp_path / "one", topic=topic, archive=str(directory), up_to_now=True)
    archive.run(made)
    (manifest,) = (directory / topic).glob("day=*/manifest.json")
    value = json.loads(manifest.read_text())
    value["parts"][0]["ranges"][0]["identity"] = "somebody else's"
    manifest.write_text(json.dumps(value))
    with pytest.raises(ArchiveError, match="another installation"):
        archive.run(made)
    with pytest.raises(AssertionError, match="another installation"):
        stage.server.manage("purge", topic, "--archive", str(directory), "--yes")
    assert len(stage.pulled(topic)) == 20


def test_an_error_below_what_is_kept_says_what_the_archive_holds(
    stage: Stage, spark: SparkSession, directory: Path, tmp_path: Path
) -> None:
    from spark_tasks.nodes import plans
    from spark_tasks.reading.options import Options
    from spark_tasks.reading.ranges import plan_ranges

    topic = stage.topic("main", queues=1)
    stage.fill(topic, 60)
    archive.run(
        job(spark, tmp_path / "one", topic=topic, archive=str(directory), up_to_now=True)
    )
    (queue,) = stage.queues(topic)
    stage.execute("main", f"UPDATE {{queue_head}} SET low = 60 WHERE queue_id = {queue}")
    options = Options(topic=topic, start={queue: 10}, archive=str(directory))
    with pytest.raises(RangeError, match="holds 10 … 59"):
        plan_ranges(plans.fetch(topic), options)


def test_a_job_that_is_killed_leaves_no_day_and_starts_again(
    stage: Stage, spark: SparkSession, directory: Path, tmp_path: Path
) -> None:
    topic = stage.topic("maria", queues=1)
    stage.fill(topic, 4_000)
    where = tmp_path / "job"
    slow = {"rows_per_second": 400, "rows_per_partition": 4_000}
    first = started(
        where,
        topic=topic,
        archive=str(directory),
        up_to_now=True,
        master="local[1]",
        **slow,
    )
    try:
        until(lambda: list(directory.glob("*/.draft-*/_temporary")), limit_s=START_S)
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait(30)
    assert archives.list_days(directory, topic) == []
    with (directory / topic / ".lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the dead hold nothing
    second = job(spark, where, topic=topic, archive=str(directory), up_to_now=True)
    archive.run(second)
    second.finish()
    assert results(where, "days")[0]["rows"] == 4_000
    assert list((directory / topic).glob(".draft-*")) == []
    assert json.loads((where / "manifest.json").read_text())["results"][0]["name"] == "days"


def started(where: Path, **settings: object) -> subprocess.Popen[bytes]:
    """A job as a process of its own, the leader of its group."""
    where.mkdir(exist_ok=True)
    (where / "settings.json").write_text(json.dumps({"memory": "512m", **settings}))
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'client/src'}"}
    command = [sys.executable, "-m", "spark_tasks.jobs", "archive", str(where)]
    with (where / "log").open("ab") as log:
        return subprocess.Popen(
            command, env=environ, stdout=log, stderr=log, start_new_session=True
        )
