"""Plays a scenario at length: the same code and checks as the short forms in the gate. See script/chaos."""

from __future__ import annotations

import argparse
import random
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.acceptance.scenarios import main_job, restarts, takeover, workers
from tests.acceptance.scenarios.stage import Stage
from tests.support import changes, mariadb
from tests.support.environment import free_port
from tests.support.server import Server


def play_restarts(stage: Stage, source: Path) -> None:
    """The broker restarted 5 times by SIGTERM and 5 by kill -9, in sending and in reading; then workers."""
    session_ms = stage.rng.choice((2_000, 15_000))
    kinds = [*[restarts.TERM] * 5, *[restarts.KILL] * 5]
    stage.say(f"restarts of the broker, session timeout {session_ms} ms")
    restarts.run(stage, source=source, kinds=kinds, session_ms=session_ms)
    stage.say("restarts of single worker processes")
    restarts.run(stage, source=source, kinds=[restarts.WORKER] * 4, session_ms=session_ms)


def play_takeover(stage: Stage, source: Path) -> None:
    """kill -9 of a consumer, five times, each with a new group."""
    for _ in range(5):
        takeover.run(stage, source=source)


def play_workers(stage: Stage, source: Path) -> None:
    """kill -9 of workers in the middle of run(handler, threads=8), five times in one stream."""
    workers.run(stage, source=source, kills=5)


def play_main_job(stage: Stage, source: Path) -> None:
    """The whole stream with --batch 500 and with --batch 1, two consumers at once."""
    for batch in (500, 1):
        main_job.run(stage, source=source, batch=batch)
        main_job.backlog(stage, source=source, batch=500)


SCENARIOS: dict[str, Callable[[Stage, Path], None]] = {
    "restarts": play_restarts,
    "takeover": play_takeover,
    "workers": play_workers,
    "main-job": play_main_job,
}


def arguments() -> argparse.Namespace:
    """The command line."""
    listed = "\n".join(f"  {name:10} {play.__doc__}" for name, play in SCENARIOS.items())
    parser = argparse.ArgumentParser(
        prog="script/chaos",
        description="Plays a scenario against a server of its own and judges by the consumers' logs.",
        epilog=f"scenarios:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", metavar="NAME", choices=SCENARIOS, help=f"one of {', '.join(SCENARIOS)}")
    parser.add_argument("--seed", type=int, help="repeats the random choices of a run (default: a new one)")
    parser.add_argument(
        "--minutes", type=float, default=0.0, metavar="M", help="plays again until so long has passed"
    )
    parser.add_argument(
        "--engine",
        choices=("sqlite", "mysql"),
        default="sqlite",
        help="mysql: metadata and two nodes on a private MariaDB (default sqlite)",
    )
    return parser.parse_args()


def say(text: str) -> None:
    """One line of the log, with the time since the start."""
    sys.stdout.write(f"{time.monotonic() - BEGUN:7.1f} s  {text}\n")
    sys.stdout.flush()


BEGUN = time.monotonic()


@contextmanager
def serving(engine: str, home: Path) -> Iterator[Server]:
    """A server in `home`."""
    with ExitStack() as stack:
        environ: dict[str, str] = {}
        if engine == "mysql":
            database = mariadb.start(home / "mariadb", port=free_port())
            stack.callback(database.stop)
            environ["CATMQ_DATABASE_URL"] = database.url
        server = Server(home / "server", environ=environ)
        stack.callback(server.clear_away)
        server.start()
        for name in ("n1", "n2") if engine == "mysql" else ():
            database.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
            server.manage("register_node", name, database.url.rpartition("/")[0] + f"/{name}")
        yield server


def play(options: argparse.Namespace, home: Path, seed: int) -> int:
    """Plays at least once; how many times it was."""
    rng = random.Random(seed)
    rounds = 0
    with serving(options.engine, home) as server:
        while rounds == 0 or time.monotonic() - BEGUN < options.minutes * 60:
            rounds += 1
            say(f"{options.name}, round {rounds}")
            stage = Stage(server, home / f"round-{rounds}", rng, say)
            try:
                SCENARIOS[options.name](stage, changes.source(home))
            finally:
                stage.terminal.close()
    return rounds


def main() -> int:
    """Plays and judges; 0 if everything held."""
    options = arguments()
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    home = Path(tempfile.mkdtemp(prefix="catmq-chaos-"))
    say(f"seed {seed}, {options.engine}; logs in {home}")
    try:
        rounds = play(options, home, seed)
    except (AssertionError, OSError, subprocess.SubprocessError) as error:
        say(f"{type(error).__name__}: {error}")
        sys.stdout.write(f"FAILED: {options.name}, seed {seed}; everything is kept in {home}\n")
        return 1
    shutil.rmtree(home, ignore_errors=True)
    sys.stdout.write(f"OK: {options.name}, {rounds} rounds, seed {seed}: everything held\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
