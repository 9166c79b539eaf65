"""`script/bench shares`: share groups beside PGMQ, beside ordinary consumption, and with
many members.

Four parts, each in one run: `ratios` leases and finishes runs of ten messages, in turn with
PGMQ and with a Consumer; `members` counts what members that wait ask of the node, and lets
as many handle messages that take 100 ms each; `locks` looks for deadlocks; `combining`
compares leases in shared transactions with leases in their own. Each says what missed its
target.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import bench, measures, share_members, share_store
from benchmarks.figures import Spread, machine, plain, ratios
from benchmarks.measures import Setting, Work
from benchmarks.pgmq import Pgmq, pgmq

RUN = 10  # messages
PROCESSES = 4
FILLED = 400_000  # messages that no line uses up within a round
BATCH = 1_000
PARTS = ("ratios", "members", "locks", "combining")


@dataclass(frozen=True)
class ShareSetting(Setting):
    """A setting with the share group of a line, new in each round."""

    group: str = ""


def joined(setting: Setting) -> tuple[Any, tuple[str, str]]:
    """A transport, and the path of a new member of the share group."""
    from catmq_client import HttpTransport
    from catmq_client.http.transport import api_path

    assert isinstance(setting, ShareSetting)
    transport = HttpTransport(setting.url, api_key=setting.api_key)
    me = {"name": uuid.uuid4().hex, "incarnation": str(uuid.uuid4()), "sdk": "bench"}
    body = {**me, "mode": "share", "topics": [setting.topic]}
    told = transport.request(
        "POST", api_path("groups", setting.group, "consumers"), body=body
    )
    return transport, ("consumers", str(told["consumer_id"]))


def leased(transport: Any, path: tuple[str, str], **more: Any) -> list[Any]:
    """Runs of ten messages in all. Raises SystemExit if there is nothing."""
    from catmq_client.http.transport import api_path

    answer = transport.request(
        "POST", api_path(*path, "share"), body={"max_messages": RUN, **more}
    )
    if not answer["runs"]:
        raise SystemExit(f"Nothing was leased: {answer}")
    if wrong := [one for one in answer["done"] if one["state"] != "ok"]:
        raise SystemExit(f"A lease was lost: {wrong}")
    return list(answer["runs"])


def done(runs: list[Any]) -> list[dict[str, Any]]:
    """Reports that finish runs."""
    return [
        {"queue": run["queue"], "first": run["first"], "grant": run["grant"], "all": True}
        for run in runs
    ]


def share_in_one_call(setting: Setting, worker: int) -> Callable[[], int]:
    """A call leases a run and finishes the run of the call before: what ShareConsumer does."""
    transport, path = joined(setting)
    held: list[Any] = []

    def once() -> int:
        nonlocal held
        held = leased(transport, path, done=done(held))
        return sum(len(run["rows"]) for run in held)

    return once


def share_in_two_calls(setting: Setting, worker: int) -> Callable[[], int]:
    """A call leases a run, another one finishes it."""
    from catmq_client.http.transport import api_path

    transport, path = joined(setting)

    def once() -> int:
        runs = leased(transport, path)
        transport.request(
            "POST", api_path(*path, "share", "done"), body={"done": done(runs)}
        )
        return sum(len(run["rows"]) for run in runs)

    return once


def share_consumer(setting: Setting, worker: int) -> Callable[[], int]:
    """ShareConsumer, ten messages a poll, in a group with the default run size of ten."""
    from catmq_client import ShareConsumer

    assert isinstance(setting, ShareSetting)
    consumer = ShareConsumer(
        setting.url,
        api_key=setting.api_key,
        group=setting.group,
        topics=[setting.topic],
        max_poll_records=RUN,
    )
    return lambda: len(consumer.poll(RUN, timeout_s=5.0))


def consumer_each_committed(setting: Setting, worker: int) -> Callable[[], int]:
    """Consumer, ten messages a poll, each poll committed before the next one."""
    from catmq_client import Consumer

    group = f"{getattr(setting, 'group', '')}-{worker}"
    consumer = Consumer(
        setting.url, api_key=setting.api_key, group=group, topics=[setting.topic]
    )

    def once() -> int:
        got = len(consumer.poll(RUN, timeout_s=5.0))
        consumer.commit()
        return got

    return once


def consumer_as_it_comes(setting: Setting, worker: int) -> Callable[[], int]:
    """Consumer, ten messages a poll, committed once a second as by default."""
    from catmq_client import Consumer

    group = f"{getattr(setting, 'group', '')}-{worker}"
    consumer = Consumer(
        setting.url, api_key=setting.api_key, group=group, topics=[setting.topic]
    )
    return lambda: len(consumer.poll(RUN, timeout_s=5.0))


PGMQ = "PGMQ, read 10, delete 10"
EACH = "Consumer, commit each 10"
LINES: dict[str, Work] = {
    "store, runs of 10": share_store.lease_and_finish,
    "HTTP, one call": share_in_one_call,
    "HTTP, two calls": share_in_two_calls,
    "ShareConsumer.poll(10)": share_consumer,
    EACH: consumer_each_committed,
    "Consumer, as it comes": consumer_as_it_comes,
}


def fill(setting: Setting) -> None:
    """Send what the lines read, evenly to all queues."""
    from catmq_client import NewMessage, Producer

    with Producer(setting.url, api_key=setting.api_key) as producer:
        for number in range(FILLED // BATCH):
            queue = setting.queues[number % len(setting.queues)]
            producer.send_batch(
                setting.topic, [NewMessage(measures.BODY, queue=queue)] * BATCH
            )


def part_ratios(home: Path, chosen: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Rates of all lines, in turn, and their ratios to PGMQ and to a Consumer that commits
    each poll.
    """
    rounds, seconds = (1, 1.0) if chosen.quick else (chosen.rounds, chosen.seconds)
    rates: dict[str, list[float]] = {}
    with ExitStack() as stack:
        url = stack.enter_context(bench.database(home / "database", version=chosen.server))
        credentials = stack.enter_context(bench.server(home / "var", url))
        setting = bench.prepare(url, credentials, "")
        fill(setting)
        other = (
            stack.enter_context(pgmq(home / "pgmq", chosen.pgmq)) if chosen.pgmq else None
        )
        for number in range(rounds):
            if other is not None:
                rates.setdefault(PGMQ, []).append(_pgmq_rate(other, seconds))
            for name, work in LINES.items():
                given = ShareSetting(
                    **vars(setting), group=f"g-{number}-{len(rates)}-{time.monotonic_ns()}"
                )
                rate = measures.run(work, given, processes=PROCESSES, seconds=seconds).rate
                rates.setdefault(name, []).append(rate)
                print(
                    f"  round {number + 1}/{rounds}  {name:26}{rate:10,.0f} msg/s",
                    file=sys.stderr,
                )
        version = bench.version_of(setting.database)
    print(f"Runs of {RUN}, {PROCESSES} processes, on {version}")
    print(f"{'':26}{'median/s':>10}{'min':>10}{'max':>10}{'to PGMQ':>22}{'to ' + EACH:>30}")
    for name, values in rates.items():
        to = "".join(
            f"{_spread(values, rates.get(one)):>{width}}"
            for one, width in ((PGMQ, 22), (EACH, 30))
        )
        print(
            f"{name:26}{statistics.median(values):10,.0f}{min(values):10,.0f}{max(values):10,.0f}{to}"
        )
    if not chosen.pgmq:
        print("PGMQ was not measured: --pgmq FILE names the pgmq.sql of a PGMQ release.")
    return {"rates": rates}, []


def _pgmq_rate(other: Pgmq, seconds: float) -> float:
    other.fill(100_000)
    rate = other.rate(clients=PROCESSES, seconds=seconds)
    print(f"  {PGMQ:37}{rate:10,.0f} msg/s", file=sys.stderr)
    return rate


def _spread(values: list[float], limits: list[float] | None) -> str:
    if limits is None:
        return ""
    found = Spread.of(ratios(values, limits))
    return f"{found.median:.2f} ({found.least:.2f} - {found.most:.2f})"


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="script/bench shares", description=__doc__)
    parser.add_argument(
        "part", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; default: all"
    )
    parser.add_argument(
        "--quick", action="store_true", help="short rounds: shows that everything runs"
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="rounds; medians are printed (default 5)"
    )
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="of one measure (default 3)"
    )
    parser.add_argument(
        "--pgmq",
        type=Path,
        metavar="FILE",
        help="pgmq.sql of a PGMQ release, to compare with",
    )
    parser.add_argument(
        "--members", type=int, default=100, help="of one queue (default 100)"
    )
    parser.add_argument(
        "--lock-seconds",
        type=float,
        default=600.0,
        help="of looking for deadlocks (default 600)",
    )
    bench.add_server(parser)
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="writes the figures there too"
    )
    chosen = parser.parse_args()
    if wrong := [one for one in chosen.part if one not in PARTS]:
        parser.error(f"there is no part {wrong[0]}; parts: {', '.join(PARTS)}")
    if chosen.pgmq and not chosen.pgmq.is_file():
        parser.error(f"--pgmq: there is no file {chosen.pgmq}")
    return chosen


def main() -> int:
    """Run the parts; 1 if one missed its target."""
    chosen = arguments()
    facts = machine()
    found: dict[str, Any] = {}
    missed: list[str] = []
    plays = {
        "ratios": part_ratios,
        "members": share_members.measure,
        "locks": share_store.part_locks,
        "combining": share_store.part_combining,
    }
    for name in chosen.part or PARTS:
        with tempfile.TemporaryDirectory(prefix="catmq-bench-") as directory:
            Path(directory).chmod(0o755)  # PostgreSQL runs as another user
            # In a process of its own: Django is set up once for all that a process does.
            with ProcessPoolExecutor(
                1, mp_context=multiprocessing.get_context("spawn")
            ) as pool:
                found[name], more = pool.submit(
                    plays[name], Path(directory), chosen
                ).result()
        missed += more
    print(f"load average {facts['load']} before, {machine()['load']} after")
    if chosen.json:
        chosen.json.write_text(json.dumps({"machine": facts, **plain(found)}, indent=1))
    if missed:
        print(f"missed: {'; '.join(missed)}")
    return int(bool(missed) and not chosen.quick)


if __name__ == "__main__":
    sys.exit(main())
