"""The whole way of a topic with the real input, and what may happen on it: a full disk, a lost node."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from spark_tasks import archives, plans, slices
from spark_tasks.columns import chosen
from spark_tasks.errors import NodeError
from spark_tasks.jobs import archive, replay
from spark_tasks.plans import Span
from spark_tasks.slices import SliceReader
from tests.spark.stage import Stage
from tests.spark.test_archiving import age, job
from tests.support.changes import events, source
from tests.support.waiting import until

COUNT = 3_000  # events of the real input


def sums(bodies: Iterable[bytes]) -> Counter[str]:
    """Lines of each path, by the bodies alone."""
    found: Counter[str] = Counter()
    for body in bodies:
        event = json.loads(body)
        found[event["path"]] += event["added"] - event["deleted"]
    return found


def pulled(stage: Stage, topic: str) -> list[bytes]:
    """All bodies, as the broker serves them."""
    return [one["body_bytes"] for one in stage.pulled(topic)]


def test_sums_stay_through_archive_purge_and_replay(
    stage: Stage, spark: SparkSession, home: Path, tmp_path: Path
) -> None:
    topic, target, directory = stage.topic("main"), stage.topic("maria"), tmp_path / "archive"
    sent = [json.dumps(one).encode() for one in list(events(source(home)))[:COUNT]]
    stage.send(topic, ({"body": one, "key": json.loads(one)["path"]} for one in sent))
    age(stage, "main", topic, 1)
    before = sums(sent)
    archive.run(job(spark, tmp_path / "one", topic=topic, archive=str(directory)))
    said = stage.server.manage("purge", topic, "--archive", str(directory), "--no-rest")
    assert f"{COUNT:,} messages are served no more" in said
    assert pulled(stage, topic) == []
    (day,) = archives.days(directory, topic)
    files = archives.check_files(directory, topic, day)
    assert sums(body for file in files for body in pq.read_table(file)["body"].to_pylist()) == before
    replay.run(job(spark, tmp_path / "two", topic=topic, archive=str(directory), to=target))
    assert sums(pulled(stage, target)) == before


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB; only root can make one."""
    directory = tmp_path / "small"
    directory.mkdir()
    if (
        os.geteuid()
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(directory)], check=False
        ).returncode
    ):
        pytest.skip("a small file system needs root")
    yield directory
    subprocess.run(["umount", str(directory)], check=True)


def test_a_disk_that_fills_up_under_an_archive_publishes_nothing(
    stage: Stage, spark: SparkSession, small_disk: Path, tmp_path: Path
) -> None:
    topic = stage.topic("maria", queues=1)
    stage.send(topic, ({"body": os.urandom(20_000)} for _ in range(100)))
    made = job(spark, tmp_path / "job", topic=topic, archive=str(small_disk), up_to_now=True)
    with pytest.raises(Exception, match="No space left on device"):
        archive.run(made)
    assert archives.days(small_disk, topic) == []
    assert [one.name for one in (small_disk / topic).iterdir()] == [".lock"], "the draft gives its room back"
    subprocess.run(["mount", "-o", "remount,size=16m", str(small_disk)], check=True)
    archive.run(made)
    (day,) = archives.days(small_disk, topic)
    assert sum(one.rows for part in archives.parts(small_disk, topic, day) for one in part.ranges) == 100


def reading(stage: Stage, topic: str) -> Iterator[Any]:
    """The batches of a topic of one queue, five rows each."""
    (queue,) = plans.fetch(topic).queues
    (part,) = slices.slices(queue, Span(queue.low, queue.head), rows=1_000)
    return SliceReader(part, chosen(["offset", "body"]), chunk_rows=5).batches()


def cut_off(stage: Stage, account: str) -> None:
    """Ends the connections of an account, as a server that restarts does."""
    found = stage.mariadb.execute(f"SELECT id FROM information_schema.processlist WHERE user = '{account}'")
    assert found
    for (number,) in found:
        stage.mariadb.execute(f"KILL {number}")


def test_a_read_goes_on_after_its_connection_was_lost(stage: Stage, spark: SparkSession) -> None:
    topic = stage.topic("maria", queues=1)
    stage.fill(topic, 60)
    (node,) = stage.admin.read_plan(topic)["nodes"]
    found: list[int] = []
    for number, batch in enumerate(reading(stage, topic)):
        found += batch.column("offset").to_pylist()
        if number % 4 == 1:
            cut_off(stage, node["username"])
    assert found == list(range(60))


def test_a_node_that_is_lost_in_mid_read_fails_it_by_name(stage: Stage, spark: SparkSession) -> None:
    topic = stage.topic("maria", queues=1)
    stage.fill(topic, 60)
    (node,) = stage.admin.read_plan(topic)["nodes"]
    account = f"{node['username']}@'127.0.0.1'"
    batches = reading(stage, topic)
    next(batches)
    stage.mariadb.execute(f"ALTER USER {account} IDENTIFIED BY 'another'")
    try:
        cut_off(stage, node["username"])
        with pytest.raises(NodeError, match="node maria cannot be read"):
            list(batches)
    finally:
        stage.mariadb.execute(f"ALTER USER {account} IDENTIFIED BY '{stage.password}'")


def test_what_settings_want_every_day_is_done_by_the_schedule(stage: Stage) -> None:
    code = (
        "from metadata.models import JobRun, Report; "
        "r = JobRun.objects.filter(name='make_reports').first(); "
        "print(r and r.state, Report.objects.filter(name='capacity').exists())"
    )
    until(
        lambda: stage.server.manage("shell", "-v", "0", "-c", code).split() == ["done", "True"],
        limit_s=60,
        every_s=0.5,
    )
