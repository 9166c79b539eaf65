"""catmq_worker as a user starts it: forked processes, which are replaced when they die,
until SIGTERM.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from catmq_client.contrib.django_tasks.working.topology import WrongGroup, create_missing
from catmq_client.errors import Conflict, NotFound
from catmq_client.testing import FakeBroker
from tests.support.environment import ENGINE, ROOT
from tests.support.served import served
from tests.support.tasking.stage import Stage, staged
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(
    ENGINE != "sqlite", reason="processes are the same on every engine"
)

# Tables, tasks and workers in one process: to load Django takes longer than all of it.
PROGRAM = """
import os, sys
import django
django.setup()
from django.core.management import call_command
from tests.acceptance.programs.workshop.jobs import make
call_command("migrate", "--run-syncdb", verbosity=0)
for n in range(4):
    make.enqueue(f"order-{n}1")
call_command("catmq_worker", *sys.argv[1:])
"""


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    broker = FakeBroker()
    for suffix in ("", ".high", ".low"):
        broker.create_topic(f"tasks.default{suffix}", queues=2)
        broker.subscribe("tasks", f"tasks.default{suffix}", mode="share", max_deliveries=0)
    with served(broker) as url:
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
        words = ("--processes", "2", "--threads", "2", "--no-setup", "--worker-id", "w")
        words += ("--health-file", str(tmp_path / "health"))
        with (tmp_path / "err").open("w") as err:
            command = [sys.executable, "-c", PROGRAM, *words]
            process = subprocess.Popen(
                command, env=environ, cwd=ROOT, text=True, stderr=err
            )
        try:
            yield process, tmp_path
        finally:
            process.kill()
            process.wait()


def test_processes_run_tasks_are_replaced_and_end_at_sigterm(worker: Any) -> None:
    process, directory = worker
    err = directory / "err"
    until(
        lambda: (
            err.read_text().count("state=SUCCESSFUL") >= 4 or process.poll() is not None
        ),
        limit_s=60,
    )
    (first, second) = until(lambda: _health(directory), limit_s=30)
    os.kill(first, signal.SIGKILL)
    until(
        lambda: (told := _health(directory)) and first not in told and second in told,
        limit_s=30,
    )
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0, err.read_text()
    said = err.read_text()
    assert f"(pid {first}) ended with -9 and is replaced" in said
    assert said.count(": ended; ") == 2 and "orker process 0 failed" not in said


def _health(directory: Path) -> list[int]:
    """The process ids of both workers, [] until both have written them."""
    found = [directory / f"health-{n}" for n in range(2)]
    if not all(one.exists() for one in found):
        return []
    return [json.loads(one.read_text())["pid"] for one in found]


class _Admin:
    """Topics and groups, as calls of the management API know them."""

    def __init__(self) -> None:
        self.topics: set[str] = set()
        self.made: dict[str, Any] = {}

    def topic(self, name: str) -> str:
        if name not in self.topics:
            raise NotFound("no", code="topic_not_found")
        return name

    def create_topic(self, name: str, *, queues: int, keep_unread_days: int) -> None:
        assert (queues, keep_unread_days) == (4, 3650)
        self.topics.add(name)
        raise Conflict("somebody else was faster", code="already_exists")

    def group(self, name: str) -> dict[str, Any]:
        if name not in self.made:
            raise NotFound("no", code="group_not_found")
        found: dict[str, Any] = self.made[name]
        return found

    def create_group(self, name: str, **settings: Any) -> None:
        self.made[name] = {**settings, "subscriptions": []}

    def change_group(self, name: str, **settings: Any) -> None:
        self.made[name] |= settings

    def subscribe(self, group: str, topic: str) -> None:
        self.made[group]["subscriptions"].append({"topic": topic})


def test_setup_makes_what_is_missing_and_nothing_twice(
    django_db_setup: None, django_db_blocker: Any
) -> None:
    with django_db_blocker.unblock(), staged() as stage:
        _set_up(stage)


def _set_up(stage: Stage) -> None:
    admin: Any = _Admin()
    lines = create_missing(admin, stage.settings, dry_run=True)
    assert len(lines) == 6 + 1 + 6 and admin.topics == set()
    assert (
        create_missing(admin, stage.settings) == lines
        and create_missing(admin, stage.settings) == []
    )
    assert (
        admin.made["tasks"]["mode"] == "share"
        and admin.made["tasks"]["max_deliveries"] == 0
    )
    admin.made["tasks"]["max_deliveries"] = 5
    assert create_missing(admin, stage.settings) == ["group tasks: max_deliveries 0"]
    admin.made["tasks"]["mode"] = "clustering"
    with pytest.raises(WrongGroup, match="its mode is clustering"):
        create_missing(admin, stage.settings)
