"""Starts all systems and measures every line of each in every round."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import bench
from benchmarks.peers import systems
from benchmarks.peers.report import LINES, QUICK_LINES, Line, Measure, Results
from benchmarks.peers.runner import ClientFailed, end_to_end, throughput
from benchmarks.peers.servers import CannotBeHad, Server
from benchmarks.peers.servers.catmq import CatmqServer
from benchmarks.peers.worker import Job

FILL_BATCH = 500
RATE = 100.0  # single messages a second of the end-to-end line
WARM_UP = -1  # number of the round that is not recorded
EARLIER = "-before"  # ends the name of a system with the code of an earlier revision
BACKLOG, PUBLISHED, TIMED = "backlog", "published", "timed"  # topics
# No system that deletes read messages delivers as many in a second.
MAX_DELETED_RATE = 100_000


@dataclass(frozen=True)
class Plan:
    """The length of a run: rounds, seconds of a measure, messages in the consumers' topic."""

    rounds: int
    seconds: float
    backlog: int
    is_quick: bool = False


def start(
    makers: Mapping[str, systems.Maker], home: Path, plan: Plan, stack: ExitStack
) -> tuple[dict[str, Server], dict[str, str]]:
    """Start all systems, with topics and a filled backlog. `stack` stops them.

    Returns the systems that run, and the reason of each that does not, by name.
    """
    running: dict[str, Server] = {}
    skipped: dict[str, str] = {}
    for name, make in makers.items():
        directory = home / name
        # PostgreSQL runs as another user, who must reach its files.
        directory.mkdir(mode=0o755)
        server = make(directory)
        # Before start(), which may fail with some of the processes running.
        stack.callback(stop, server)
        try:
            server.start()
            for topic in (BACKLOG, PUBLISHED, TIMED):
                server.make_topic(topic)
            if not server.deletes_read_messages:
                fill(server, plan.backlog)
            if not plan.is_quick:
                warm_up(server, plan)
        except (CannotBeHad, ClientFailed) as error:
            skipped[name] = str(error)
            stop(server)
            print(f"  {name} is skipped: {error}", file=sys.stderr)
        else:
            running[name] = server
            print(f"  {server.title} runs ({server.version})", file=sys.stderr)
    return running, skipped


def warm_up(server: Server, plan: Plan) -> None:
    """Publish and consume without a record, since Java compiles while it runs.

    Raises ClientFailed or CannotBeHad.
    """
    for line in LINES:
        if line.name in ("publish 1", "consume 100 + commit"):
            measure(server, line, plan, processes=1, number=WARM_UP)


def stop(server: Server) -> None:
    """Stop a server. An error is printed, so that the others are stopped and the report is
    still written.
    """
    try:
        server.stop()
    except (OSError, subprocess.SubprocessError) as error:
        print(f"  {server.title} was not stopped: {error}", file=sys.stderr)


def earlier_maker(revision: str, engine: str, directory: Path) -> systems.Maker:
    """Return a maker of CatMQ with the code of a git revision, written to `directory`.

    Raises SystemExit for an unknown revision.
    """
    directory.mkdir()
    archive = subprocess.run(
        ["git", "archive", revision], cwd=bench.HOME, capture_output=True, check=False
    )
    if archive.returncode:
        raise SystemExit(f"--before {revision}: {archive.stderr.decode().strip()}")
    subprocess.run(["tar", "-x", "-C", directory], input=archive.stdout, check=True)
    return lambda home: CatmqServer(home, engine, code=directory, revision=revision)


def has_line(server: Server, line: Line) -> bool:
    """Return True if the line is measured on this system."""
    if not isinstance(server, CatmqServer):
        return not line.only_catmq
    # On an earlier revision, the line of that other name is measured.
    return not (server.is_earlier and line.earlier_name)


def measure_rounds(running: Mapping[str, Server], plan: Plan, results: Results) -> None:
    """Add the measures of all rounds to the results, and an error for each that failed."""
    measures_of_a_round = [
        (line, processes, name, server)
        for line in (QUICK_LINES if plan.is_quick else LINES)
        for processes in line.processes
        # The innermost loop: systems that are compared are measured within seconds.
        for name, server in running.items()
        if has_line(server, line)
    ]
    for number in range(plan.rounds):
        began = time.monotonic()
        for line, processes, name, server in measures_of_a_round:
            title = f"round {number + 1}/{plan.rounds}  {server.title}, {line.name}, {processes}"
            measured = None
            try:
                measured = measure(server, line, plan, processes=processes, number=number)
            except (ClientFailed, CannotBeHad) as error:
                results.failures.append(f"{title}: {error}")
            results.add(name, line, processes, measured)
            rate = f"{measured.rate:12,.0f} msg/s" if measured else "failed"
            print(f"  {title:72}{rate}", file=sys.stderr)
        took_s = time.monotonic() - began
        print(f"round {number + 1}/{plan.rounds} took {took_s:.0f} s", file=sys.stderr)


def measure(
    server: Server, line: Line, plan: Plan, *, processes: int, number: int
) -> Measure:
    """Measure a line of a system in round `number`. Raises ClientFailed or CannotBeHad."""
    job = Job(
        client=server.client,
        connection=server.connection(),
        role=line.role,
        topic=PUBLISHED,
        batch=line.batch,
        commits=line.commits,
        seconds=plan.seconds,
        is_named=line.is_named,
    )
    if line.is_timed:
        # The same group in all rounds continues after the messages of earlier ones. Twice
        # the time, since a p99 of 100 messages a second needs it.
        job = replace(job, topic=TIMED, group="timed", rate=RATE, seconds=2 * plan.seconds)
        return end_to_end(server, job)
    if line.role == "publish":
        measured = throughput(server, job, processes=processes)
        server.clear_topic(PUBLISHED)
        return measured
    if server.deletes_read_messages:
        server.clear_topic(BACKLOG)
        fill(server, min(plan.backlog, round(MAX_DELETED_RATE * plan.seconds)))
    # A new group reads from the beginning.
    group = re.sub(r"\W+", "-", f"{line.name}-{processes}-{number}")
    return throughput(server, replace(job, topic=BACKLOG, group=group), processes=processes)


def fill(server: Server, count: int) -> None:
    """Publish the messages that consumers read. Raises ClientFailed."""
    job = Job(
        client=server.client,
        connection=server.connection(),
        role="publish",
        topic=BACKLOG,
        batch=FILL_BATCH,
        count=count,
    )
    throughput(server, job, processes=1)


def earlier_pairs(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the names of each system and of its earlier revision, if both run."""
    for name in names:
        if name + EARLIER in names:
            yield name, name + EARLIER
