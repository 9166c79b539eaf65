"""The same job, unchanged, on a standalone cluster: a master and a worker as processes of
their own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from spark_tasks import archives
from tests.spark.stage import Stage
from tests.support.environment import ROOT, free_port
from tests.support.waiting import until

SPARK_CLASS = Path(pyspark.__path__[0], "bin", "spark-class")
START_S = 240


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The URL of a cluster with one worker of one core, whose processes know nothing of
    this checkout.
    """
    port, ui, worker_ui = free_port(), free_port(), free_port()
    url = f"spark://127.0.0.1:{port}"
    environ = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "CATMQ_API_KEY")
    }
    environ |= {"SPARK_WORKER_DIR": str(tmp_path / "work"), "SPARK_DAEMON_MEMORY": "256m"}
    log = (tmp_path / "cluster.log").open("ab")
    deploy = "org.apache.spark.deploy"
    commands = [
        [
            f"{deploy}.master.Master",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--webui-port",
            str(ui),
        ],
        [
            f"{deploy}.worker.Worker",
            *f"--host 127.0.0.1 --webui-port {worker_ui} -c 1 -m 700m {url}".split(),
        ],
    ]
    made = [
        subprocess.Popen(
            [str(SPARK_CLASS), *one],
            env=environ,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        for one in commands
    ]
    until(
        lambda: b"Registering worker" in (tmp_path / "cluster.log").read_bytes(),
        limit_s=START_S,
    )
    yield url
    for process in made:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)
    log.close()


def test_an_archive_is_made_on_a_cluster(stage: Stage, master: str, tmp_path: Path) -> None:
    topic = stage.topic("maria")
    stage.fill(topic, 500)
    where, archive = tmp_path / "job", tmp_path / "archive"
    where.mkdir()
    settings = {
        "topic": topic,
        "archive": str(archive),
        "up_to_now": True,
        "master": master,
        "memory": "512m",
    }
    (where / "settings.json").write_text(json.dumps(settings))
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'client/src'}"}
    environ |= {"CATMQ_URL": stage.server.url, "CATMQ_API_KEY": stage.server.api_key}
    command = [sys.executable, "-m", "spark_tasks.jobs", "archive", str(where)]
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, check=False, timeout=START_S
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (day,) = archives.list_days(archive, topic)
    assert (
        sum(
            one.rows
            for part in archives.read_parts(archive, topic, day)
            for one in part.ranges
        )
        == 500
    )
    assert list((tmp_path / "work").glob("app-*")), "the worker did it"
