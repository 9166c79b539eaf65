"""`script/bench groups`: many groups against one broker: what their heartbeats and empty
polls cost.

Starts a private MariaDB and a whole server on it (or the embedded engine), lets all members
join, then watches them for a while. The members are simulated (members.py) in this process,
whose own share of the processor is printed, too: it runs on the same cores. Fails when a
heartbeat was not answered, one was refused after the joining, a member expired, or a queue
was held twice or in the end by nobody.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks import bench
from benchmarks.gauges import Machine, Sample
from benchmarks.members import Book, Member, Tally, Work
from catmq_client.admin.api import Admin
from catmq_client.http.transport import HttpTransport

SAMPLE_S = 0.1
TELL_S = 5.0
SETTLE_S = 3.0  # between the phases, so that what the joining left is not counted as steady
Row = dict[str, float]


@dataclass
class Phase:
    """What was measured between two moments."""

    name: str
    begun: Sample
    tally: Tally = field(default_factory=Tally)
    # how late the generator's own timers are
    late_s: list[float] = field(default_factory=list)
    beats: list[int] = field(default_factory=list)  # heartbeats under way, sampled
    polls: list[int] = field(default_factory=list)

    def row(self, ended: Sample) -> Row:
        """The phase's figures by name."""
        seconds, tally = ended.at - self.begun.at, self.tally
        kinds = ("register", "heartbeat", "acquire", "poll")
        rates = {
            f"{kind}s answered a second": tally.count(kind) / seconds for kind in kinds
        }
        return {
            "seconds": seconds,
            **rates,
            "polls turned away a second": tally.turned_away / seconds,
            **{f"{kind}s refused": float(tally.refused(kind)) for kind in kinds},
            **{f"{kind}s lost": float(tally.count(kind, "lost")) for kind in kinds},
            **_times("heartbeat", tally.seconds.get("heartbeat", [])),
            **_times("register", tally.seconds.get("register", [])),
            "heartbeats under way, mean": statistics.fmean(self.beats or [0]),
            "heartbeats under way, most": float(max(self.beats, default=0)),
            "polls under way, mean": statistics.fmean(self.polls or [0]),
            "generator late, p99 ms": 1000 * _quantile(self.late_s, 0.99),
            **ended.since(self.begun),
        }


def _times(kind: str, seconds: Sequence[float]) -> Row:
    named = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {
        f"{kind} {name}, ms": 1000 * _quantile(seconds, share)
        for name, share in named.items()
    }


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0


class Run:
    """One broker and its simulated members."""

    def __init__(self, work: Work, machine: Machine) -> None:
        self.book = Book(work)
        self.machine = machine
        self.rows: dict[str, Row] = {}
        self.workers: dict[str, list[float]] = {}

    async def play(self, *, seconds: float, join_limit_s: float) -> None:
        """Lets all join, then watches for so many seconds; the results are in the fields."""
        work = self.book.work
        members = [
            Member(self.book, group, n)
            for group in range(work.groups)
            for n in range(work.members)
        ]
        living = [asyncio.create_task(member.live()) for member in members]
        try:
            await self._watch("joining", join_limit_s, until_settled=True)
            await asyncio.sleep(SETTLE_S)
            steady = await self._watch("steady", seconds, until_settled=False)
            self.workers = self.machine.workers_now()
        finally:
            for task in living:
                task.cancel()
            ended = await asyncio.gather(*living, return_exceptions=True)
        self.book.broken += [
            repr(one) for one in ended if not isinstance(one, asyncio.CancelledError)
        ]
        self._judge(steady)

    async def _watch(self, name: str, limit_s: float, *, until_settled: bool) -> Tally:
        phase = Phase(name, self.machine.sample())
        self.book.tally = phase.tally
        told = phase.begun
        while (now := time.monotonic()) < phase.begun.at + limit_s:
            await asyncio.sleep(SAMPLE_S)
            phase.late_s.append(time.monotonic() - now - SAMPLE_S)
            phase.beats.append(self.book.under_way["heartbeat"])
            phase.polls.append(self.book.under_way["poll"])
            if until_settled and not self.book.unsettled():
                break
            if now > told.at + TELL_S:
                told = self._tell(name, told)
        self.rows[name] = phase.row(self.machine.sample())
        self.book.tally = Tally()
        return phase.tally

    def _tell(self, phase: str, before: Sample) -> Sample:
        """One line on how it goes."""
        now, book = self.machine.sample(), self.book
        settled = book.work.groups - len(book.unsettled())
        cores = ", ".join(
            f"{name} {share:.0f} %" for name, share in now.cores(before).items()
        )
        under_way = ", ".join(
            f"{count} {kind}s" for kind, count in sorted(book.under_way.items()) if count
        )
        print(
            f"  {phase}: {settled} groups settled; CPU of {cores}; under way: {under_way}",
            file=sys.stderr,
        )
        return now

    def _judge(self, steady: Tally) -> None:
        """Adds what is wrong in the end."""
        unsettled = self.book.unsettled()
        if unsettled:
            self.book.broken.append(
                f"{len(unsettled)} groups are not settled, the first is {unsettled[0]}"
            )
        if refused := steady.refused("heartbeat"):
            self.book.broken.append(f"{refused} heartbeats were refused after the joining")


def make_topics(admin: Admin, prefix: str, *, count: int, queues: int) -> tuple[str, ...]:
    """Makes topics; their names."""
    names = tuple(f"{prefix}-{number}" for number in range(count))
    for name in names:
        admin.create_topic(name, queues=queues)
    return names


def make_groups(admin: Admin, work: Work) -> None:
    """Makes the groups and their subscriptions, as the members will otherwise."""
    for number, group in enumerate(work.group_names()):
        admin.create_group(group)
        admin.subscribe(group, work.topics[number % len(work.topics)])


@contextmanager
def server(engine: str) -> Iterator[tuple[dict[str, str], Machine]]:
    """A whole server of the benchmark's own; its credentials, and what to watch."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="catmq-bench-")))
        url = (
            stack.enter_context(bench.database(home / "database"))
            if engine == "mysql"
            else ""
        )
        credentials = stack.enter_context(bench.server(home / "var", url))
        master = int((home / "var" / "broker.pid").read_text())
        if not url:
            yield credentials, Machine(master)
            return
        parts = urlsplit(url)
        account = {"host": "127.0.0.1", "port": parts.port}
        account |= {"user": parts.username, "password": parts.password}
        for name in ("n1", "n2"):
            bench.execute(account, f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
            node = url.removesuffix(parts.path) + f"/{name}"
            command = [
                sys.executable,
                bench.HOME / "manage.py",
                "register_node",
                name,
                node,
            ]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        pid = int((home / "database" / "server.pid").read_text())
        connection = stack.enter_context(closing(bench.connect(account)))
        yield credentials, Machine(master, pid, connection)


def once(chosen: argparse.Namespace) -> Run:
    """One round on a server of its own."""
    with server(chosen.engine) as (credentials, machine):
        url, api_key = credentials["CATMQ_URL"], credentials["CATMQ_API_KEY"]
        admin = Admin(HttpTransport(url, api_key=api_key))
        work = Work(
            url=url,
            api_key=api_key,
            topics=make_topics(admin, "t", count=chosen.topics, queues=chosen.queues),
            queues=chosen.queues,
            groups=chosen.groups,
            members=chosen.members,
            ramp_s=chosen.ramp,
        )
        if not chosen.fresh:
            make_groups(admin, work)
        run = Run(work, machine)
        asyncio.run(run.play(seconds=chosen.seconds, join_limit_s=chosen.join_limit))
    return run


def table(runs: Sequence[Run]) -> dict[str, Row]:
    """Prints the medians of all rounds for people; returns them for machines."""
    medians = {
        phase: {
            name: statistics.median(run.rows[phase][name] for run in runs) for name in row
        }
        for phase, row in runs[0].rows.items()
    }
    print(f"{'':36}" + "".join(f"{phase:>12}" for phase in medians))
    for name in medians["steady"]:
        if any(row[name] for row in medians.values()):
            print(f"{name:36}" + "".join(f"{row[name]:12,.1f}" for row in medians.values()))
    for number, run in enumerate(runs, 1):
        now = [
            f"{name} {' / '.join(f'{value:,.0f}' for value in values)}"
            for name, values in run.workers.items()
        ]
        print(f"round {number}: {'; '.join(now)}", *run.book.broken[:10], sep="\n  ")
        if len(run.book.broken) > 10:
            print(f"  … {len(run.book.broken)} in all")
    return medians


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="script/bench groups", description=__doc__)
    parser.add_argument("--groups", type=int, default=200, help="default 200")
    parser.add_argument("--members", type=int, default=5, help="of each group (default 5)")
    parser.add_argument("--queues", type=int, default=12, help="of each topic (default 12)")
    parser.add_argument(
        "--topics", type=int, default=20, help="groups read them in turn (default 20)"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=60.0,
        help="of watching once all joined (default 60)",
    )
    parser.add_argument(
        "--join-limit", type=float, default=300.0, help="seconds to join in (default 300)"
    )
    parser.add_argument(
        "--ramp", type=float, default=0.0, help="seconds over which they start (default 0)"
    )
    parser.add_argument(
        "--fresh", action="store_true", help="the members make their groups, too"
    )
    parser.add_argument("--engine", choices=("mysql", "sqlite"), default="mysql")
    parser.add_argument(
        "--rounds", type=int, default=1, help="each on a new server; medians are printed"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="writes the figures there too"
    )
    return parser.parse_args()


def main() -> int:
    """Runs the simulation; 1 if a promise was broken."""
    chosen = arguments()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # up to three sockets a member
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 65536), most))
    runs = [once(chosen) for _ in range(chosen.rounds)]
    medians = table(runs)
    broken = [text for run in runs for text in run.book.broken]
    if chosen.json:
        found = {
            "chosen": {name: str(value) for name, value in vars(chosen).items()},
            "medians": medians,
            "rounds": [{"rows": run.rows, "workers": run.workers} for run in runs],
            "broken": broken,
        }
        chosen.json.write_text(json.dumps(found, indent=1))
    print("FAIL" if broken else "PASS")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
