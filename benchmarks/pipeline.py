"""`script/bench pipeline`: a large topic is archived, purged and replayed while others send
into it.

Starts a private MariaDB and a server, sends the real input (examples/data) keyed by path,
and multiplies it by SQL to so many rows over five past days. Then, while one sender keeps a
pace: nothing else; the job
`archive` with local[1], nice and a row rate limit; the same into another archive with
local[*] and no limit; purge; replay of the whole archive into a new topic. Prints what
sends took in each phase, and for every check whether it holds:

* no send failed, and their 99th percentile stays below 100 ms while the limited job and
  purge work,
* purge removes what is archived, and nothing that was sent meanwhile,
* `verify` passes,
* rows and sums per path are equal in the source (by SQL), in both archives (by
  archive_sums.py, which
  imports nothing of the project), and in the topic of the replay (by SQL).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import bench, multiplying
from benchmarks.figures import percentile
from benchmarks.measures import Setting
from benchmarks.multiplying import LIVE, Shape, Sums
from catmq_client import Producer

HOME = Path(__file__).resolve().parent.parent
QUEUES = 4
LIMIT_MS = 100.0  # p99 of sends while the pipeline works
# runs manage.py with some arguments, perhaps nice; what it prints
Manage = Callable[..., str]


class Sender:
    """Sends a message into a topic so many times a second, and notes how long each send
    took.
    """

    def __init__(self, setting: Setting, topic: str, pace: int) -> None:
        self._setting, self._topic, self._pace = setting, topic, pace
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self.took_ms: list[float] = []
        self.errors: list[str] = []

    def __enter__(self) -> Sender:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        due = time.monotonic()
        with Producer(
            self._setting.url, api_key=self._setting.api_key, linger_ms=0
        ) as producer:
            while not self._over.is_set():
                begun = time.monotonic()
                try:
                    producer.send(self._topic, b"{}", key=f"{LIVE}{len(self.took_ms) % 97}")
                    self.took_ms.append((time.monotonic() - begun) * 1000)
                except Exception as error:  # noqa: BLE001 - every failure is a finding
                    self.errors.append(repr(error))
                due = max(due + 1 / self._pace, time.monotonic() - 1)
                self._over.wait(max(0.0, due - time.monotonic()))

    @property
    def p99_ms(self) -> float:
        """The 99th percentile."""
        return percentile(sorted(self.took_ms), 99)

    def __str__(self) -> str:
        p50 = percentile(sorted(self.took_ms), 50)
        figures = (
            f"p50 {p50:.1f} ms, p99 {self.p99_ms:.1f} ms, most {max(self.took_ms):.0f} ms"
        )
        return f"{len(self.took_ms):,} sends, {figures}, {len(self.errors)} failed"


@dataclass
class Way:
    """One run of the whole way: where, how much, and what was found. `manage` runs a
    management command.
    """

    setting: Setting
    home: Path  # of the archives
    node: str
    manage: Manage
    shape: Shape
    rows_per_second: int
    pace: int
    seconds: float
    limit_ms: float = LIMIT_MS
    sent: list[Sender] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def run(self) -> list[str]:
        """All phases; the checks that do not hold."""
        for topic in ("big", "again"):
            multiplying.create(self.setting, topic, node=self.node, queues=QUEUES)
        with timed("loading"):
            rows = multiplying.fill(self.setting, "big", self.shape)
            before = multiplying.sums(self.setting, "big", before_today=True)
        print(f"{rows:,} rows of {len(before[1]):,} paths", flush=True)
        self.check("the topic holds what was multiplied", before[0] == rows)
        self.archived(before)
        self.purged(rows)
        self.verified()
        self.replayed(before)
        return self.failed

    def archived(self, before: tuple[int, Sums]) -> None:
        """Nothing, then the limited job, then the same without a limit: sends beside each."""
        with self.phase("undisturbed"):
            time.sleep(self.seconds)
        limited, free = self.home / "limited", self.home / "free"
        rate = ("--rows-per-second", str(self.rows_per_second))
        with self.phase("archive, local[1], nice, limited", limited=True):
            self.manage(
                "archive", "big", str(limited), "--master", "local[1]", *rate, nice=19
            )
        with self.phase("archive, local[*]"):
            self.manage("archive", "big", str(free), "--master", "local[*]")
        with timed("sums of the archives"), ThreadPoolExecutor(2) as pool:
            for archive, found in zip(
                (limited, free),
                pool.map(lambda one: archive_sums(one, "big"), (limited, free)),
                strict=True,
            ):
                self.check(
                    f"rows and sums per path: archive {archive.name} = source",
                    found == before,
                )

    def purged(self, rows: int) -> None:
        """What is archived goes; what was sent meanwhile stays."""
        with self.phase("purge", limited=True):
            said = self.manage(
                "purge", "big", "--archive", str(self.home / "limited"), "--yes", nice=19
            )
        print(said.splitlines()[-1], flush=True)
        left, old = (
            sum(
                multiplying.ask(
                    self.setting, f"SELECT COUNT(*) FROM message_{queue} WHERE {which}"
                )[0][0]
                for queue in multiplying.queues_of(self.setting, "big")
            )
            for which in (f"msg_key LIKE '{LIVE}%'", f"msg_key NOT LIKE '{LIVE}%'")
        )
        self.check(
            "purge says that all archived messages went",
            f" {rows:,} messages are no longer" in said,
        )
        self.check("purge dropped most of their rows", old < rows)
        sent = sum(len(one.took_ms) for one in self.sent)
        self.check(
            f"all {sent:,} messages that were sent meanwhile are there", left == sent
        )

    def verified(self) -> None:
        """`verify` fails by its exit code."""
        with timed("verify"):
            print(self.manage("verify", "big").splitlines()[-1], flush=True)
        self.check("verify passes", True)

    def replayed(self, before: tuple[int, Sums]) -> None:
        """The whole archive into a new topic."""
        begun = time.monotonic()
        with timed("replay"):
            self.manage("replay", str(self.home / "limited"), "big", "again")
        rate = before[0] / (time.monotonic() - begun)
        print(f"  {rate:,.0f} messages/s, start of Spark and checks included", flush=True)
        with timed("sums of the replay"):
            after = multiplying.sums(self.setting, "again", before_today=False)
        self.check("rows and sums per path: replay = source", after == before)

    @contextmanager
    def phase(self, name: str, *, limited: bool = False) -> Iterator[None]:
        """Sends while the block runs, says how it went, and checks it."""
        with timed(name), Sender(self.setting, "big", self.pace) as sender:
            yield
        print(f"  {sender}", flush=True)
        self.sent.append(sender)
        self.check(f"no send failed beside: {name}", not sender.errors)
        if limited:
            what = f"p99 of sends below {self.limit_ms:.0f} ms beside: {name}"
            self.check(what, sender.p99_ms < self.limit_ms)

    def check(self, what: str, holds: bool) -> None:
        """Says whether something holds, and remembers what does not."""
        print(f"{'ok     ' if holds else 'FAILED '}{what}", flush=True)
        if not holds:
            self.failed.append(what)


@contextmanager
def timed(name: str) -> Iterator[None]:
    """Says how long the block took."""
    begun = time.monotonic()
    yield
    print(f"{name}: {time.monotonic() - begun:.0f} s", flush=True)


def archive_sums(archive: Path, topic: str) -> tuple[int, Sums]:
    """(rows, sums per path) of an archive, by a program that knows nothing of the project."""
    program = Path(__file__).with_name("archive_sums.py")
    command = [sys.executable, "-I", str(program), str(archive), topic]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=archive)
    found = json.loads(done.stdout)
    return found["rows"], found["sums"]


def manage(*arguments: str, nice: int = 0) -> str:
    """What a management command prints. Raises SystemExit with its words if it fails."""
    command = [sys.executable, str(HOME / "manage.py"), *arguments]
    done = subprocess.run(
        ["nice", "-n", str(nice), *command], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"FAILED {' '.join(arguments)}: {done.stderr[-2000:]}")
    return done.stdout.strip()


def play(chosen: argparse.Namespace, stack: ExitStack) -> list[str]:
    """Starts everything and goes the whole way; the checks that do not hold."""
    home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="catmq-bench-")))
    url = stack.enter_context(bench.database(home / "database"))
    credentials = stack.enter_context(bench.server(home / "var", url))
    os.environ |= {name: credentials[name] for name in ("CATMQ_URL", "CATMQ_API_KEY")}
    setting = bench.prepare(url, credentials, "")
    account = setting.database
    os.environ["CATMQ_NODE_BENCH_URL"] = (
        f"mysql://{account['user']}:{account['password']}@{account['host']}:{account['port']}/bench"
    )
    way = Way(
        setting, home / "archives", "bench", manage,
        shape=Shape(chosen.rows), rows_per_second=chosen.rows_per_second, pace=chosen.pace,
        seconds=chosen.seconds,
    )  # fmt: skip
    return way.run()


def main() -> int:
    """Plays and prints; 1 if a check does not hold."""
    parser = argparse.ArgumentParser(
        prog="script/bench pipeline", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument(
        "--rows",
        type=int,
        default=5_000_000,
        help="rows of the topic (default %(default)s)",
    )
    parser.add_argument(
        "--rows-per-second", type=int, default=60_000, help="of the limited archive job"
    )
    parser.add_argument("--pace", type=int, default=50, help="sends a second meanwhile")
    parser.add_argument("--seconds", type=float, default=20.0, help="of undisturbed sends")
    chosen = parser.parse_args()
    begun = time.monotonic()
    with ExitStack() as stack:
        failed = play(chosen, stack)
    print(
        f"{len(failed)} checks failed; {time.monotonic() - begun:.0f} s in all", flush=True
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
