"""examples/shop as a user starts it: default settings, DEBUG, the commands of its README."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.scenarios.stage import Stage
from tests.support.environment import ROOT, free_port
from tests.support.server import Server
from tests.support.waiting import until

PORT = "8100"  # in its README
# Processes that it starts with &.
SERVING = ("catmq_worker", "runserver", "celery")


class Shop:
    """A copy of the project, run by the commands of its README, with our packages and a
    port of its own.
    """

    def __init__(self, home: Path, server: Server, environ: dict[str, str]) -> None:
        self.home = shutil.copytree(
            ROOT / "examples/shop",
            home / "shop",
            ignore=shutil.ignore_patterns("db.*", "__pycache__"),
        )
        self.port = free_port()
        tools = home / "bin"
        tools.mkdir()
        (tools / "python").symlink_to(sys.executable)
        (tools / "catmq").write_text(
            f'#!/bin/sh\nexec {sys.executable} -m catmq_client "$@"\n'
        )
        (tools / "catmq").chmod(0o755)
        (tools / "celery").write_text(f'#!/bin/sh\nexec {sys.executable} -m celery "$@"\n')
        (tools / "celery").chmod(0o755)
        self.environ = {
            **{name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ},
            "PATH": f"{tools}:{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT / 'client/src'}",
            "PYTHONUNBUFFERED": "1",
            "VIRTUAL_ENV": str(Path(sys.executable).parent.parent),
            "CATMQ_URL": server.url,
            "CATMQ_API_KEY": server.api_key,
            **environ,
        }
        self.started: dict[str, subprocess.Popen[str]] = {}

    def run(self, command: str) -> str:
        """Return what a command of the README prints; one with & goes on."""
        words = command.removesuffix("&").replace(PORT, str(self.port)).split()
        words[0] = sys.executable if words[0] == "python" else words[0]
        if command.endswith("&"):
            name = next(one for one in SERVING if one in words)
            with (self.home / f"{name}.log").open("w") as log:
                self.started[name] = subprocess.Popen(
                    words,
                    cwd=self.home,
                    env=self.environ,
                    stdout=log,
                    stderr=log,
                    text=True,
                )
            return ""
        done = subprocess.run(
            words,
            cwd=self.home,
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout + done.stderr

    def ask(self, path: str, **body: str) -> Any:
        """Return the shop's answer, None while it does not answer."""
        data = json.dumps(body).encode() if body else None
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return json.load(answer)
        except urllib.error.HTTPError:
            raise
        except OSError:
            return None

    def log(self, name: str) -> str:
        return (self.home / f"{name}.log").read_text()

    def end(self, name: str) -> int:
        """SIGTERM; return the exit code."""
        process = self.started.pop(name)
        process.send_signal(signal.SIGTERM)
        return process.wait(60)

    def close(self) -> None:
        for process in self.started.values():
            process.kill()
            process.wait()


def commands() -> list[str]:
    """The commands of the README by which it is run, without those that install it."""
    text = (ROOT / "examples/shop/README.md").read_text()
    block = re.findall(r"```sh\n(.*?)```", text, re.S)[0]
    lines = [line.partition("  #")[0].strip() for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith(("cd ", "pip "))]


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Callable[..., Shop]]:
    made: list[Shop] = []

    def make(stage: Stage, **environ: str) -> Shop:
        made.append(Shop(tmp_path, stage.server, environ))
        return made[-1]

    yield make
    for one in made:
        one.close()


def play(shop: Shop) -> None:
    """Begin as its README says, order, and end."""
    assert "OK" in shop.run("python manage.py test")
    for command in commands():
        shop.run(command)
    assert set(shop.started) == set(SERVING)
    until(lambda: shop.ask("/totals/"), limit_s=60, every_s=0.1)
    order = shop.ask("/orders/", customer="alice", total="9.50")
    path = f"/orders/{order['id']}/"
    until(lambda: shop.ask(path)["receipt_sent_at"], limit_s=30, every_s=0.1)
    until(lambda: shop.ask(path)["packed_at"], limit_s=30, every_s=0.1)
    until(lambda: shop.ask("/totals/")["orders"] == 1, limit_s=30, every_s=0.1)
    assert shop.ask("/totals/")["sum"] == "9.50"
    told = json.loads(until(lambda: shop.run("catmq peek shop.orders"), limit_s=30))
    assert (told["key"], json.loads(told["body"])["total"]) == ("alice", "9.50")
    assert "mails  SUCCESSFUL  1" in shop.run("python manage.py catmq_tasks status")
    with pytest.raises(urllib.error.HTTPError, match="400"):
        shop.ask("/orders/", customer="nobody")
    assert shop.end("catmq_worker") == 0, shop.log("catmq_worker")
    assert shop.end("celery") == 0, shop.log("celery")
    said = shop.log("catmq_worker") + shop.log("runserver") + shop.log("celery")
    assert "To: alice" in said
    # Celery warns of root, whom continuous integration is.
    assert not re.search("Traceback|(?<!Security)Warning|ERROR", said), said


def test_the_shop_runs_as_its_readme_says_on_sqlite(
    stage: Stage, shop: Callable[..., Shop]
) -> None:
    play(shop(stage))


def test_the_shop_may_lie_on_mariadb(
    stage: Stage, shop: Callable[..., Shop], database_url: str
) -> None:
    """Tasks and outbox of a project on MariaDB are played by test_tasks.py and
    test_outbox.py.
    """
    ours = shop(stage, SHOP_DATABASE_URL=database_url)
    assert "OK" in ours.run("python manage.py test")
    ours.run("python manage.py migrate")
    assert "outbox: 0 wait, 0 refused" in ours.run("python manage.py catmq_tasks status")
