"""`script/bench peers`: CatMQ on SQLite, MariaDB and MySQL compared with other queues.

All servers run at the same time, on this machine, in a temporary directory. Each round
measures every line of every system, in turn, so that noise hits all of them. Messages have
200 bytes. CatMQ's lines take the defaults of its client; `named queues` is an extra line
of a program that gives each message a key and a queue. `--before REV` also measures CatMQ
with the code of an earlier revision, with a server, a database and clients of its own.

A system that cannot be had is skipped, and the report has the reason. `--install` downloads
missing programs into a directory below the user's cache; nothing is installed on the system.
Ctrl-C ends the run with a report of the measures until then.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from benchmarks.figures import machine
from benchmarks.peers import programs, report, systems
from benchmarks.peers.report import Results
from benchmarks.peers.rounds import (
    EARLIER,
    Plan,
    earlier_maker,
    earlier_pairs,
    measure_rounds,
    start,
)
from benchmarks.processes import end_by_signals


def main() -> int:
    """Measure and print the tables. Return 1 if a client failed or the run was stopped."""
    options = parse_arguments()
    end_by_signals()
    if options.install:
        programs.install(options.systems)
    facts = machine() | {"plan": asdict(options.plan)}
    results = Results()
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="catmq-bench-")))
        home.chmod(0o755)  # PostgreSQL runs as another user
        all_makers = systems.makers(options.pgmq)
        makers = {}
        for name in options.systems:
            makers[name] = all_makers[name]
            if options.before and name == options.before_engine:
                makers[name + EARLIER] = earlier_maker(
                    options.before, name, home / "earlier"
                )
        try:
            running, skipped = start(makers, home, options.plan, stack)
        except KeyboardInterrupt:
            # Nothing is measured yet, so there is no report.
            return 130
        results.titles = {name: server.title for name, server in running.items()}
        versions = {server.title: server.version for server in running.values()}
        try:
            measure_rounds(running, options.plan, results)
        except KeyboardInterrupt:
            results.failures.append("the run was stopped before its end")
    facts["load after"] = machine()["load"]
    pairs = list(earlier_pairs(list(running)))
    text = report.report_text(
        results, versions=versions, skipped=skipped, facts=facts, pairs=pairs
    )
    print(text)
    for failure in results.failures:
        print(f"FAILED {failure}")
    if options.page:
        write_page(options.page, text)
    if options.json:
        written = {
            "machine": facts,
            "versions": versions,
            "skipped": skipped,
            "failures": results.failures,
            "measures": results.plain(),
        }
        options.json.write_text(json.dumps(written, indent=1))
    return int(bool(results.failures))


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options, with `plan`, and `before_engine`: the engine of `--before`."""
    parser = argparse.ArgumentParser(
        prog="script/bench peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = tuple(systems.makers(None))
    parser.add_argument(
        "--systems",
        nargs="+",
        choices=names,
        default=names,
        metavar="NAME",
        help=f"of {', '.join(names)} (default: all)",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=5,
        help="rounds; tables have medians of them (default 5)",
    )
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="of a measure (default 2)"
    )
    parser.add_argument(
        "--backlog",
        type=int,
        default=400_000,
        help="messages in the topic that consumers read (default 400000)",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a single short round, which shows that everything runs",
    )
    parser.add_argument(
        "--before",
        default="",
        metavar="REV",
        help="also measure the code of this git revision, on MariaDB if it is chosen, "
        "else on MySQL or SQLite",
    )
    parser.add_argument(
        "--pgmq", type=Path, metavar="FILE", help="pgmq.sql of a PGMQ release"
    )
    parser.add_argument(
        "--install", action="store_true", help="download missing servers and libraries"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument(
        "--page",
        type=Path,
        metavar="FILE",
        help="write the tables between the markers of this page",
    )
    options = parser.parse_args(arguments)
    if options.rounds < 1 or options.seconds <= 0 or options.backlog < 1:
        parser.error("--rounds, --seconds and --backlog must be above 0")
    if options.page and not has_markers(options.page):
        # Now, and not after half an hour of measuring.
        parser.error(f"--page {options.page}: it needs lines {BEGIN} and {END}")
    options.before_engine = next(
        (name for name in systems.CATMQ if name in options.systems), ""
    )
    if options.before and not options.before_engine:
        parser.error("--before needs CatMQ: add mariadb, mysql or sqlite to --systems")
    options.plan = (
        Plan(rounds=1, seconds=0.3, backlog=8_000, is_quick=True)
        if options.quick
        else Plan(options.rounds, options.seconds, options.backlog)
    )
    return options


BEGIN, END = "<!-- measured -->", "<!-- /measured -->"


def has_markers(page: Path) -> bool:
    """Return True if the page exists and has both markers in order."""
    text = page.read_text() if page.is_file() else ""
    return -1 < text.find(BEGIN) < text.find(END)


def write_page(page: Path, text: str) -> None:
    """Replace the text between the two markers of a page."""
    before, _, rest = page.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


if __name__ == "__main__":
    sys.exit(main())
