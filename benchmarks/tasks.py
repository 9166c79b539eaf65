"""`script/bench tasks`: tasks of Django on CatMQ, beside django-tasks-db, django-q2 and
Celery with Redis.

Each system in turn, on one machine: tasks are enqueued one by one and then many at once,
one worker process works them off, and then tasks are enqueued one after the other while it
has nothing else to do. The application's database is a MariaDB of its own, so its
statements can be counted; CatMQ's metadata and messages lie on another. What is compared
goes into an environment below the user's cache, in pinned versions.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import bench, task_rivals
from benchmarks.figures import Latencies, machine, plain
from tests.support.environment import ROOT

PLAY = "benchmarks/tasking/play.py"
# Goals of CatMQ: p99 until a task starts, ms; rate beside django-tasks-db.
START_MS, TIMES = 50.0, 5.0


@dataclass(frozen=True)
class Figures:
    """Of one system. Rates are tasks a second, statements those of the application's
    database for a task.
    """

    one: float
    many: float
    run: float
    to_enqueue: float
    to_run: float
    start: Latencies


@dataclass
class Player:
    """One system with its database, and the processes that play it."""

    name: str
    home: Path
    database: str
    environ: Mapping[str, str]
    chosen: argparse.Namespace
    _reader: Any = field(init=False)

    def __post_init__(self) -> None:
        self._reader = bench.connect(bench.account(self.database))

    def play(self) -> Figures:
        """Measure it."""
        self.manage("migrate", "--verbosity", "0")
        if self.name == "catmq":
            self.manage("catmq_tasks", "setup")
        before = self.statements()
        one = self.part("one", str(self.chosen.one))["rate"]
        between = self.statements()
        many = self.part("many", str(self.chosen.many))["rate"]
        waiting = self.statements()
        total = self.chosen.one + self.chosen.many
        with self.worker():
            samples = self.part("await", str(total))["ended"]
            after = self.statements()
            if self.name != "celery":  # those that count what has ended are no task's
                after -= len(samples)
            delays = self.part(
                "paced", str(self.chosen.paced), "0.05", str(self.home / "delays")
            )["delays"]
        if samples[-1][1] < total or len(delays) < self.chosen.paced:
            raise SystemExit(f"{self.name}: not all tasks have ended; see {self.home}")
        return Figures(
            one=one,
            many=many,
            run=rate_of(samples),
            to_enqueue=(between - before) / self.chosen.one,
            to_run=(after - waiting) / total,
            start=Latencies.of(delays),
        )

    @contextmanager
    def worker(self) -> Iterator[None]:
        """Run the system's worker: one process that works, as its command starts it."""
        command = {
            "catmq": ("-m", "django", "catmq_worker", "--threads", "8", "--no-setup"),
            "django-tasks-db": ("-m", "django", "db_worker"),
            "django-q2": ("-m", "django", "qcluster"),
            "celery": (
                *("-m", "celery", "-A", "benchmarks.tasking.calls:app"),
                *(
                    "worker",
                    "--pool",
                    "threads",
                    "--concurrency",
                    "8",
                    "--loglevel",
                    "warning",
                ),
            ),
        }[self.name]
        with (self.home / "worker.log").open("ab") as log:
            process = subprocess.Popen(
                [str(task_rivals.PYTHON), *command],
                env=self._environ(),
                cwd=ROOT,
                stdout=log,
                stderr=log,
            )
            try:
                yield
            finally:
                process.terminate()
                process.wait(60)

    def manage(self, *words: str) -> None:
        self._run("-m", "django", *words)

    def part(self, *words: str) -> Any:
        """Return what a part of play.py measured."""
        return json.loads(self._run(PLAY, *words).splitlines()[-1])

    def statements(self) -> int:
        """Return how many statements the application's server has got, without this one."""
        cursor = self._reader.cursor()
        cursor.execute("SHOW GLOBAL STATUS LIKE 'Questions'")
        return int(cursor.fetchone()[1]) - 1

    def _environ(self) -> dict[str, str]:
        mine = {
            "DJANGO_SETTINGS_MODULE": "benchmarks.tasking.settings",
            "PYTHONPATH": f"{ROOT}:{ROOT / 'client/src'}",
            "BENCH_SYSTEM": self.name,
            "BENCH_DATABASE": self.database,
        }
        return {
            "PATH": os.environ["PATH"],
            "HOME": os.environ["HOME"],
            **mine,
            **self.environ,
        }

    def _run(self, *words: str) -> str:
        done = subprocess.run(
            [str(task_rivals.PYTHON), *words],
            env=self._environ(),
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{self.name}: {' '.join(words)}: {done.stderr[-2000:]}")
        return done.stdout


def rate_of(samples: list[tuple[float, int]]) -> float:
    """Return tasks a second, from the first that have ended to the last; nan if it was too
    quick to tell.

    >>> rate_of([(0.0, 0), (1.0, 100), (2.0, 300), (3.0, 500)])
    200.0
    """
    (begun, first), (end, last) = next(one for one in samples if one[1]), samples[-1]
    return (last - first) / (end - begun) if end > begun else float("nan")


def measure(chosen: argparse.Namespace, home: Path) -> tuple[dict[str, Figures], str]:
    """Return the figures of each system, and what could not be had."""
    found: dict[str, Figures] = {}
    missing = ""
    task_rivals.install()
    with ExitStack() as stack:
        application = stack.enter_context(
            bench.database(home / "application", version=chosen.server)
        )
        more: dict[str, dict[str, str]] = {}
        if "catmq" in chosen.only:
            broker = stack.enter_context(
                bench.database(home / "broker", version=chosen.server)
            )
            credentials = stack.enter_context(bench.server(home / "var", broker))
            bench.prepare(broker, credentials, "")
            more["catmq"] = {
                name: credentials[name] for name in ("CATMQ_URL", "CATMQ_API_KEY")
            }
        if "celery" in chosen.only:
            try:
                more["celery"] = {
                    "BENCH_REDIS": stack.enter_context(task_rivals.redis(home / "redis"))
                }
            except task_rivals.CannotBeHad as error:
                missing = f"celery: {error}"
        for name in chosen.only:
            if name == "celery" and missing:
                continue
            place = home / name
            place.mkdir()
            schema = f"app_{name.replace('-', '_')}"
            bench.execute(
                bench.account(application),
                f"CREATE DATABASE {schema} CHARACTER SET utf8mb4",
            )
            database = application.rpartition("/")[0] + f"/{schema}"
            print(f"  {name} …", file=sys.stderr)
            found[name] = Player(name, place, database, more.get(name, {}), chosen).play()
    return found, missing


HEADS = (
    "one by one/s",
    "many/s",
    "run/s",
    "start p50 ms",
    "p99 ms",
    "SQL enqueue",
    "SQL run",
)


def shown(found: Mapping[str, Figures]) -> str:
    """Return the table."""
    lines = [f"{'':16}" + "".join(f"{head:>14}" for head in HEADS)]
    for name, one in found.items():
        rates = "".join(f"{value:14,.0f}" for value in (one.one, one.many, one.run))
        times = "".join(f"{value:14,.1f}" for value in (one.start.p50, one.start.p99))
        lines.append(f"{name:16}{rates}{times}{one.to_enqueue:14.2f}{one.to_run:14.2f}")
    return "\n".join(lines)


def missed(found: Mapping[str, Figures]) -> list[str]:
    """Return the goals that CatMQ did not reach."""
    if "catmq" not in found:
        return []
    mine, others = (
        found["catmq"],
        {name: one for name, one in found.items() if name != "catmq"},
    )
    wrong = []
    if mine.start.p99 > START_MS:
        wrong.append(f"start p99 {mine.start.p99:.0f} ms, goal {START_MS:.0f} ms")
    rival = others.get("django-tasks-db")
    if rival is not None and mine.run < TIMES * rival.run:
        wrong.append(
            f"run {mine.run / rival.run:.1f} x django-tasks-db, goal {TIMES:.0f} x"
        )
    wrong += [
        f"many: {name} is faster" for name, one in others.items() if one.many > mine.many
    ]
    return wrong


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="script/bench tasks", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="few tasks: shows that everything runs"
    )
    parser.add_argument(
        "--one", type=int, default=1_000, help="tasks enqueued one by one (default 1000)"
    )
    parser.add_argument(
        "--many", type=int, default=10_000, help="tasks enqueued at once (default 10000)"
    )
    parser.add_argument(
        "--paced", type=int, default=400, help="tasks for an idle worker (default 400)"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=task_rivals.NAMES,
        default=task_rivals.NAMES,
        help="these systems",
    )
    bench.add_server(parser)
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="writes the figures there too"
    )
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.one, chosen.many, chosen.paced = 50, 200, 40
    return chosen


def main() -> int:
    """Measure, print the table; 1 if a goal was missed."""
    chosen, facts = arguments(), machine()
    with tempfile.TemporaryDirectory(prefix="catmq-bench-") as directory:
        found, missing = measure(chosen, Path(directory))
    print(time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()))
    print(shown(found))
    if missing:
        print(f"CANNOT BE HAD HERE: {missing}")
    print(f"load average {facts['load']} before, {machine()['load']} after")
    if chosen.json:
        chosen.json.write_text(json.dumps({"machine": facts, **plain(found)}, indent=1))
    wrong = missed(found)
    if wrong:
        print(f"missed: {'; '.join(wrong)}")
    return int(bool(wrong) and not chosen.quick)


if __name__ == "__main__":
    sys.exit(main())
