"""`script/bench peers`: CatMQ on SQLite, MariaDB and MySQL beside other queues, in one run.

All servers run at the same time, on this machine, in a temporary directory. Each round
measures every line of every system, in turn, so that noise hits all of them. Messages have
200 bytes. CatMQ's lines take the defaults of its client; `named queues` is the extra line of
a program that names keys and queues. `--before REV` measures the code of an earlier revision
beside the present one, with a server, a database and clients of its own.

A system that cannot be had is skipped, with the reason. `--install` downloads what is
missing into a directory below the user's cache; nothing is installed on the system.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import bench
from benchmarks.figures import machine
from benchmarks.peers import programs, report, systems
from benchmarks.peers.report import LINES, Line, Measure, Results
from benchmarks.peers.runner import ClientFailed, end_to_end, throughput
from benchmarks.peers.servers import CannotBeHad, Server
from benchmarks.peers.servers.catmq import CatmqServer
from benchmarks.peers.worker import Job

FILL_BATCH = 500
RATE = 100.0  # single messages a second of the end-to-end line
BEFORE = "-before"
BACKLOG, PUBLISHED, TIMED = "backlog", "published", "timed"  # topics


@dataclass(frozen=True)
class Plan:
    """How much is measured: rounds, seconds of a line, messages that consumers read."""

    rounds: int
    seconds: float
    backlog: int


def measure(
    server: Server, line: Line, plan: Plan, *, processes: int, number: int
) -> Measure:
    """Measure a line of a system in round `number`. Raises ClientFailed."""
    job = Job(
        client=server.client,
        place=server.place(),
        role=line.role,
        topic=PUBLISHED,
        batch=line.batch,
        commits=line.commits,
        seconds=plan.seconds,
    )
    if line.is_timed:
        # One group in all rounds: it continues behind the messages of earlier ones.
        job = replace(job, topic=TIMED, group="timed", rate=RATE, seconds=2 * plan.seconds)
        return end_to_end(server, job)
    if line.role == "publish":
        if line.only_catmq:
            job = replace(job, place={**job.place, "named": True})
        measured = throughput(server, job, processes=processes)
        server.clear_topic(PUBLISHED)
        return measured
    if server.deletes_read_messages:
        server.clear_topic(BACKLOG)
        fill(server, plan.backlog)
    # A new group reads from the beginning.
    group = f"{LINES.index(line)}-{processes}-{number}"
    return throughput(server, replace(job, topic=BACKLOG, group=group), processes=processes)


def fill(server: Server, count: int) -> None:
    """Publish what consumers read."""
    job = Job(
        client=server.client,
        place=server.place(),
        role="publish",
        topic=BACKLOG,
        batch=FILL_BATCH,
        count=count,
    )
    throughput(server, job, processes=1)


def source_of(revision: str, directory: Path) -> Path:
    """Write the files of a revision into a directory. Raises SystemExit if there is none."""
    directory.mkdir()
    archive = subprocess.run(
        ["git", "archive", revision], cwd=bench.HOME, capture_output=True, check=False
    )
    if archive.returncode:
        raise SystemExit(f"--before {revision}: {archive.stderr.decode().strip()}")
    subprocess.run(["tar", "-x", "-C", directory], input=archive.stdout, check=True)
    return directory


def start(
    chosen: argparse.Namespace, home: Path, stack: ExitStack
) -> tuple[dict[str, Server], dict[str, str]]:
    """Start the chosen systems. Return those that run, and why others do not, by name."""
    if chosen.install:
        programs.install(chosen.only)
    makers = systems.makers(chosen.pgmq)
    names = list(chosen.only)
    if chosen.before:
        code = source_of(chosen.before, home / "before")

        def older(engine: str) -> systems.Maker:
            return lambda place: CatmqServer(
                place, engine, code=code, revision=chosen.before
            )

        for name in [name for name in names if name in systems.CATMQ]:
            makers[name + BEFORE] = older(name)
            names.insert(names.index(name) + 1, name + BEFORE)
    running: dict[str, Server] = {}
    skipped: dict[str, str] = {}
    for name in names:
        place = home / name
        place.mkdir(mode=0o755)
        server = makers[name](place)
        stack.callback(server.stop)
        try:
            server.start()
            for topic in (BACKLOG, PUBLISHED, TIMED):
                server.make_topic(topic)
            if not server.deletes_read_messages:
                fill(server, chosen.plan.backlog)
        except (CannotBeHad, ClientFailed) as error:
            skipped[name] = str(error)
            server.stop()
            print(f"  {name} is skipped: {error}", file=sys.stderr)
        else:
            running[name] = server
            print(f"  {server.title} runs ({server.version})", file=sys.stderr)
    return running, skipped


def measure_all(running: dict[str, Server], plan: Plan) -> tuple[Results, list[str]]:
    """Return the measures of all rounds, and what failed in which round."""
    results = Results({name: server.title for name, server in running.items()}, {})
    failures = []
    for number in range(plan.rounds):
        for line in LINES:
            for processes in line.processes:
                for name, server in running.items():
                    if line.only_catmq and not isinstance(server, CatmqServer):
                        continue
                    head = (
                        f"round {number + 1}/{plan.rounds}  {server.title}, "
                        f"{line.name}, {processes}"
                    )
                    measured = None
                    try:
                        measured = measure(
                            server, line, plan, processes=processes, number=number
                        )
                    except ClientFailed as error:
                        failures.append(f"{head}: {error}")
                    results.add(name, line, processes, measured)
                    shown = f"{measured.rate:12,.0f} msg/s" if measured else "failed"
                    print(f"  {head:72}{shown}", file=sys.stderr)
    return results, failures


def report_text(
    results: Results, running: dict[str, Server], skipped: dict[str, str], facts: Any
) -> str:
    """Return all tables in Markdown."""
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    plan = facts["plan"]
    parts = [
        f"Measured on {when}: {plan['rounds']} rounds of {plan['seconds']:g} s, "
        f"{facts['cores']} cores, load average {facts['load']:g} before and "
        f"{facts['load after']:g} after. "
        + "; ".join(f"{server.title}: {server.version}" for server in running.values())
        + ".",
        "Messages a second with 1 / 4 client processes, median of the rounds and the "
        "largest deviation from it; end-to-end times are p50 / p99 in ms:",
        report.rates_table(results),
    ]
    for processes in report.PROCESSES:
        name = f"{processes} client process" + ("es" if processes > 1 else "")
        parts += [
            f"CPU with {name}, microseconds a message, client + server + database:",
            report.cpu_table(results, processes),
        ]
    pairs = [(name, name + BEFORE) for name in running if f"{name}{BEFORE}" in running]
    if pairs:
        parts += [
            "Ratios to the earlier revision in the same round, median (least - most):",
            report.before_table(results, pairs),
        ]
    if skipped:
        parts.append(
            "Skipped:\n\n" + "\n".join(f"* {name}: {why}" for name, why in skipped.items())
        )
    return "\n\n".join(parts)


def write_page(page: Path, text: str) -> None:
    """Replace what a page has between its two markers. Raises SystemExit without them."""
    begin, end = "<!-- measured -->", "<!-- /measured -->"
    before, found, rest = page.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise SystemExit(f"{page} has no lines {begin} and {end}")
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line, with `plan` and the names of all chosen systems."""
    parser = argparse.ArgumentParser(
        prog="script/bench peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = tuple(systems.makers(None))
    parser.add_argument(
        "--only",
        nargs="+",
        choices=names,
        default=names,
        metavar="NAME",
        help=f"these systems: {', '.join(names)} (default: all)",
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="rounds; medians are printed (default 5)"
    )
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="of one measure (default 2)"
    )
    parser.add_argument(
        "--backlog",
        type=int,
        default=400_000,
        help="messages that consumers read (default 400000)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="one short round: shows that everything runs"
    )
    parser.add_argument(
        "--before",
        default="",
        metavar="REV",
        help="also measure CatMQ with the code of this git revision",
    )
    parser.add_argument(
        "--pgmq", type=Path, metavar="FILE", help="pgmq.sql of a PGMQ release"
    )
    parser.add_argument(
        "--install", action="store_true", help="download what is missing for the systems"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument(
        "--page",
        type=Path,
        metavar="FILE",
        help="write the tables between the markers of this page",
    )
    chosen = parser.parse_args(given)
    chosen.plan = (
        Plan(rounds=1, seconds=0.4, backlog=8_000)
        if chosen.quick
        else Plan(chosen.rounds, chosen.seconds, chosen.backlog)
    )
    return chosen


def main() -> int:
    """Measure and print the tables. Return 1 if a client failed."""
    chosen = arguments()
    # SIGTERM ends like Ctrl-C: all servers are stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    facts = machine() | {"plan": asdict(chosen.plan)}
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="catmq-bench-")))
        home.chmod(0o755)  # PostgreSQL runs as another user
        running, skipped = start(chosen, home, stack)
        results, failures = measure_all(running, chosen.plan)
    facts["load after"] = machine()["load"]
    text = report_text(results, running, skipped, facts)
    print(text)
    for failure in failures:
        print(f"FAILED {failure}")
    if chosen.page:
        write_page(chosen.page, text)
    if chosen.json:
        measures = [
            {
                "system": system,
                "line": line,
                "processes": processes,
                "rounds": [asdict(one) if one else None for one in rounds],
            }
            for (system, line, processes), rounds in results.measures.items()
        ]
        versions = {name: server.version for name, server in running.items()}
        chosen.json.write_text(
            json.dumps(
                {
                    "machine": facts,
                    "versions": versions,
                    "skipped": skipped,
                    "failures": failures,
                    "measures": measures,
                },
                indent=1,
            )
        )
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
