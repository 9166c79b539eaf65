"""The whole way of a topic with the real input, and what may happen on it: a full disk, a
lost node.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from benchmarks.measures import Setting
from benchmarks.multiplying import Shape
from benchmarks.pipeline import Way
from spark_tasks import archives
from spark_tasks.errors import NodeError
from spark_tasks.jobs import archive, replay
from spark_tasks.nodes import plans
from spark_tasks.nodes.columns import find_columns
from spark_tasks.nodes.plans import Span
from spark_tasks.reading import slices
from spark_tasks.reading.slices import SliceReader
from tests.spark.stage import Stage
from tests.spark.test_archiving import job
from tests.support.waiting import until

COUNT = 2_000  # events of the real input
LIMIT_MS = 10_000  # of sends meanwhile: the gate's machine does other things too


def test_the_whole_way_of_the_benchmark_with_a_little_of_its_input(
    stage: Stage, spark: SparkSession, tmp_path: Path
) -> None:
    """The same phases and checks as `script/bench pipeline`; jobs run in the session's
    Spark.
    """
    database = {
        "host": "127.0.0.1",
        "port": stage.mariadb.port,
        "user": "catmq",
        "password": stage.mariadb.password,
        "database": stage.schema,
    }
    setting = Setting(
        url=stage.server.url,
        api_key=stage.server.api_key,
        database=database,
        topic="",
        queues=(),
        batch=0,
    )

    def manage(verb: str, *words: str, nice: int = 0) -> str:
        where = tmp_path / f"job-{len(list(tmp_path.iterdir()))}"
        if verb == "archive":
            archive.run(job(spark, where, topic=words[0], archive=words[1]))
        elif verb == "replay":
            replay.run(job(spark, where, archive=words[0], topic=words[1], to=words[2]))
        else:
            return stage.server.manage(
                verb, *words, *(["--no-rest", "--yes"] if verb == "purge" else [])
            )
        return ""

    way = Way(
        setting, tmp_path / "archives", "maria", manage,
        shape=Shape(COUNT, days=2, partitions=1), rows_per_second=0, pace=20, seconds=0.5,
        limit_ms=LIMIT_MS,
    )  # fmt: skip
    assert way.run() == []


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
    # Java may close its files later
    subprocess.run(["umount", "--lazy", str(directory)], check=True)


def test_a_disk_that_fills_up_under_an_archive_publishes_nothing(
    stage: Stage, spark: SparkSession, small_disk: Path, tmp_path: Path
) -> None:
    topic = stage.topic("maria", queues=1)
    stage.send(topic, ({"body": os.urandom(20_000)} for _ in range(100)))
    made = job(
        spark, tmp_path / "job", topic=topic, archive=str(small_disk), up_to_now=True
    )
    with pytest.raises(Exception, match="No space left on device"):
        archive.run(made)
    assert archives.list_days(small_disk, topic) == []
    assert [one.name for one in (small_disk / topic).iterdir()] == [".lock"], (
        "the draft gives its room back"
    )
    subprocess.run(["mount", "-o", "remount,size=16m", str(small_disk)], check=True)
    archive.run(made)
    (day,) = archives.list_days(small_disk, topic)
    assert (
        sum(
            one.rows
            for part in archives.read_parts(small_disk, topic, day)
            for one in part.ranges
        )
        == 100
    )


def reading(stage: Stage, topic: str) -> Iterator[Any]:
    """The batches of a topic of one queue, five rows each."""
    (queue,) = plans.fetch(topic).queues
    (part,) = slices.plan_slices(queue, Span(queue.low, queue.head), rows=1_000)
    return SliceReader(part, find_columns(["offset", "body"]), chunk_rows=5).batches()


def cut_off(stage: Stage, account: str) -> None:
    """Ends the connections of an account, as a server that restarts does."""
    found = stage.mariadb.execute(
        f"SELECT id FROM information_schema.processlist WHERE user = '{account}'"
    )
    assert found
    for (number,) in found:
        stage.mariadb.execute(f"KILL {number}")


def test_a_read_goes_on_after_its_connection_was_lost(
    stage: Stage, spark: SparkSession
) -> None:
    topic = stage.topic("maria", queues=1)
    stage.fill(topic, 60)
    (node,) = stage.admin.read_plan(topic)["nodes"]
    found: list[int] = []
    for number, batch in enumerate(reading(stage, topic)):
        found += batch.column("offset").to_pylist()
        if number % 4 == 1:
            cut_off(stage, node["username"])
    assert found == list(range(60))


def test_a_node_that_is_lost_in_mid_read_fails_it_by_name(
    stage: Stage, spark: SparkSession
) -> None:
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
        lambda: (
            stage.server.manage("shell", "-v", "0", "-c", code).split() == ["done", "True"]
        ),
        limit_s=60,
        every_s=0.5,
    )
