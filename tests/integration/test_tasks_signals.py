"""Worker processes in the middle of a task: SIGTERM, a second one, a task that never ends,
a fork.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from catmq_client.testing import FakeBroker
from tests.support.environment import ENGINE, ROOT
from tests.support.served import served
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(
    ENGINE != "sqlite", reason="processes are the same on every engine"
)

BEGIN = """
import os, sys
import django
django.setup()
from django.core.management import call_command
from catmq_client.contrib.django_tasks.models import TaskRecord
from tests.acceptance.programs.workshop import jobs
call_command("migrate", "--run-syncdb", verbosity=0)
"""
RUN = 'call_command("catmq_worker", "--threads", "2", "--no-setup", *sys.argv[1:])\n'
# The parent connects, to the broker and to the database; then both enqueue, and a third
# process runs all.
FORK = """
from django.db import connections
jobs.make.enqueue("order-01")
connections.close_all()
if (child := os.fork()) == 0:
    jobs.make.enqueue("order-11")
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
jobs.make.enqueue("order-21")
"""
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def broker() -> FakeBroker:
    made = FakeBroker()
    for suffix in ("", ".high", ".low"):
        made.create_topic(f"tasks.default{suffix}", queues=2)
        made.subscribe("tasks", f"tasks.default{suffix}", mode="share", max_deliveries=0)
    return made


@pytest.fixture
def start(broker: FakeBroker, tmp_path: Path) -> Iterator[Start]:
    """Start a program of Python with the workshop's settings; its standard error goes to
    the file `err`.
    """
    started: list[subprocess.Popen[str]] = []
    with served(broker) as url, (tmp_path / "err").open("w") as err:
        environ = {
            **{
                name: os.environ[name]
                for name in ("PATH", "HOME", "LANG")
                if name in os.environ
            },
            "PYTHONPATH": f"{ROOT}:{ROOT / 'client/src'}",
            "DJANGO_SETTINGS_MODULE": "tests.acceptance.programs.workshop.settings",
            "SHOP_DATABASE": str(tmp_path / "shop.sqlite3"),
            "CATMQ_URL": url,
            "CATMQ_API_KEY": "any",
        }

        def run(program: str, *words: str, **more: str) -> subprocess.Popen[str]:
            command = [sys.executable, "-c", program, *words]
            started.append(
                subprocess.Popen(
                    command,
                    env=environ | more,
                    cwd=ROOT,
                    text=True,
                    stderr=err,
                    stdout=subprocess.PIPE,
                )
            )
            return started[-1]

        yield run
        for process in started:
            process.kill()
            process.communicate()


def told(start: Start) -> str:
    """Status and last error of all tasks, in the order in which they were enqueued."""
    show = """
for one in TaskRecord.objects.order_by("id"):
    print(one.status, *(error["exception_class_path"].rpartition(".")[2] for error in one.errors))
"""
    return start(BEGIN + show).communicate(timeout=60)[0]


def test_a_worker_that_gets_sigterm_in_the_middle_of_a_task_ends_it_first(
    start: Start, tmp_path: Path
) -> None:
    worker = start(f"{BEGIN}jobs.hold.enqueue({str(tmp_path)!r})\n{RUN}", "--drain-s", "30")
    until(lambda: (tmp_path / "begun").exists() or worker.poll() is not None, limit_s=60)
    worker.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        worker.wait(0.5)
    (tmp_path / "may_end").touch()
    assert worker.wait(30) == 0, (tmp_path / "err").read_text()
    assert told(start) == "SUCCESSFUL\n"


def test_a_second_signal_ends_a_worker_at_once_and_the_task_runs_again(
    start: Start, tmp_path: Path
) -> None:
    worker = start(
        f"{BEGIN}jobs.hold.enqueue({str(tmp_path)!r})\n{RUN}", "--drain-s", "600"
    )
    until(lambda: (tmp_path / "begun").exists() or worker.poll() is not None, limit_s=60)
    worker.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        worker.wait(0.5)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == -signal.SIGTERM
    assert told(start) == "RUNNING\n"


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_task_that_never_ends_is_killed_with_its_process(
    start: Start, tmp_path: Path, processes: str
) -> None:
    words = ("--drain-s", "5", "--processes", processes)
    worker = start(
        f"{BEGIN}jobs.spin.enqueue()\njobs.make.enqueue('order-01')\n{RUN}",
        *words,
        SHOP_KILL="1",
    )
    err = tmp_path / "err"
    if processes == "1":
        assert worker.wait(60) == 1, err.read_text()
        assert (
            "1 of 2 threads are stuck in tasks that exceeded their time limit"
            in err.read_text()
        )
    else:
        until(lambda: "ended with 1 and is replaced" in err.read_text(), limit_s=60)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0, err.read_text()
    assert told(start) == "FAILED TaskTimeout\nSUCCESSFUL\n"


def test_a_process_that_connected_and_was_forked_enqueues_as_its_child_does(
    start: Start, broker: FakeBroker, tmp_path: Path
) -> None:
    assert start(BEGIN + FORK, SHOP_SEND="direct").wait(60) == 0, (
        tmp_path / "err"
    ).read_text()
    assert len(broker.messages("tasks.default")) == 3
    worker = start(BEGIN + RUN, "--batch", SHOP_SEND="direct")
    assert worker.wait(60) == 0, (tmp_path / "err").read_text()
    assert told(start) == "SUCCESSFUL\n" * 3
