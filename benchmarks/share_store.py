"""Share groups without HTTP: leases, deadlocks, and what shared transactions gain."""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import random
import statistics
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import bench
from benchmarks.combining import Once, lost, prepare, rate, topic_on
from benchmarks.measures import Setting
from tests.support.environment import free_port
from tests.support.mariadb import MariaDB, start
from tests.support.slowsync import slow_sync

RUN = 10  # messages
CONNECTIONS = 16
BUSY_PROCESSES = 4
SLOWER_MS = 2
WON = 1.2  # times as fast as leases in transactions of their own
SYNCED = ["--log-bin", "--sync-binlog=1", "--server-id=1", "--binlog-format=ROW"]
STORE: dict[str, Any] = {}
RAW_POSITION = (
    "CREATE TABLE raw_position (group_id INT PRIMARY KEY, next_offset BIGINT "
    "NOT NULL) ENGINE=InnoDB"
)
RAW_RUN = """CREATE TABLE raw_run (
    group_id INT, first_offset BIGINT, end_offset BIGINT NOT NULL, owner VARCHAR(100) NOT NULL,
    lease_until DATETIME(6) NOT NULL, PRIMARY KEY (group_id, first_offset)) ENGINE=InnoDB"""


class Member:
    """A member of a share group that calls the store."""

    def __init__(self, group: str, topic: str) -> None:
        from messagestore.shares import queue_choice
        from messagestore.topology import membership
        from metadata.actors import command
        from metadata.cache import snapshot
        from metadata.db import consumer_ids

        told = membership.join(
            group=group, name=uuid.uuid4().hex, incarnation=str(uuid.uuid4()), topics=[topic],
            actor=command("bench"), mode="share",
        )  # fmt: skip
        snapshot.refresh()
        self.id = consumer_ids.check(told.consumer_id)
        self.group = queue_choice.find_group(self.id)

    def lease(self, messages: int = RUN) -> list[Any]:
        """Runs of so many messages; [] if there are none."""
        from messagestore.shares import queue_choice

        wanted = queue_choice.MessageRequest(
            topics=(), max_messages=messages, max_bytes=1 << 20
        )
        return queue_choice.lease(consumer=self.id, request=wanted).runs

    def report(self, *reports: Any) -> list[str]:
        """The states of reports."""
        from messagestore.shares import finishing

        told = finishing.record(consumer=self.id, group=self.group, reports=reports)
        return [one.state for one in told]

    def finish(self, runs: Sequence[Any]) -> None:
        """Finish whole runs. Raises SystemExit if one was lost."""
        states = self.report(*(_done(one, whole=True) for one in runs))
        if set(states) - {"ok"}:
            raise SystemExit(f"A lease was lost: {states}")


def _done(leased: Any, **report: Any) -> Any:
    from messagestore.shares.finishing import GrantReport

    return GrantReport(leased.run.queue, leased.run.first, leased.run.grant.text, **report)


def lease_and_finish(setting: Setting, worker: int) -> Callable[[], int]:
    """A lease of ten messages, then its end, through `messagestore.shares`."""
    import django

    django.setup()
    member = Member(getattr(setting, "group", ""), setting.topic)

    def once() -> int:
        runs = member.lease()
        if not runs:
            raise SystemExit("Nothing was leased.")
        member.finish(runs)
        return sum(len(one.rows) for one in runs)

    return once


# Deadlocks


def part_locks(home: Path, chosen: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Members do all that members do, on one queue; the deadlocks that the server counted."""
    seconds = 5.0 if chosen.quick else chosen.lock_seconds
    prepare(home / "var")
    with bench.database(home / "database", version=chosen.server) as url:
        server = MariaDB(home / "database", url)
        topic_on(server, "locks")
        before = deadlocks(server)
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(BUSY_PROCESSES, mp_context=context) as pool:
            told = pool.map(_busy, [seconds] * BUSY_PROCESSES)
            counts = dict(sum((Counter(one) for one in told), Counter[str]()))
        found = deadlocks(server) - before
    did = ", ".join(f"{count:,} {what}" for what, count in sorted(counts.items()))
    print(f"{CONNECTIONS} connections for {seconds:.0f} s: {did}; deadlocks: {found}")
    return {"deadlocks": found, "counts": counts}, [f"{found} deadlocks"] if found else []


def deadlocks(server: MariaDB) -> int:
    """The deadlocks that the server has counted since its start."""
    told = server.execute("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'")  # MariaDB
    told = told or server.execute(  # MySQL
        "SELECT name, count FROM information_schema.innodb_metrics WHERE name = 'lock_deadlocks'"
    )
    return int(told[0][1])


def _busy(seconds: float) -> dict[str, int]:
    """In a process of its own: members, a sender and the upkeep; how often each did what."""
    import django

    django.setup()
    from messagestore.shares import upkeep

    end = time.monotonic() + seconds
    counts: Counter[str] = Counter()

    def loop(work: Callable[[], str]) -> None:
        while time.monotonic() < end:
            counts[work()] += 1

    def maintain() -> str:
        upkeep.run_once()
        time.sleep(upkeep.EVERY_S)
        return "upkeeps"

    members = CONNECTIONS // BUSY_PROCESSES
    works = [_mixed(Member("locks", "locks")) for _ in range(members)]
    with ThreadPoolExecutor(members + 2) as pool:
        [*pool.map(loop, (*works, _sender("locks"), maintain))]
    return counts


def _sender(topic: str) -> Callable[[], str]:
    from messagestore.engine.messages import NewMessage
    from messagestore.produce.publish import publish
    from metadata.actors import command

    batch = [NewMessage(body=b"x" * 200)] * 50

    def send() -> str:
        publish(topic=topic, messages=batch, batch_id=None, actor=command("bench"))
        return "batches sent"

    return send


def _mixed(member: Member) -> Callable[[], str]:
    """Something that a member does, at random: most finish, some in part, some release,
    renew or forget.
    """
    from messagestore.pool import node_pools
    from messagestore.tables.shares import run_sql
    from metadata.cache import snapshot

    def once() -> str:
        runs = member.lease(random.choice((1, 3, RUN, 3 * RUN)))
        if not runs:
            time.sleep(0.005)
            return "empty calls"
        what = random.choices(
            ("finished", "in part", "released", "renewed", "freed"), (60, 15, 10, 10, 5)
        )[0]
        one = runs[0].run
        if what == "freed":  # by an operator, under the hands of its member
            node = node_pools.node(snapshot.current().queues[one.queue].node_id)
            with node.reading() as session:
                run_sql.end_leases(
                    session, group_id=member.group.id, queue=one.queue, first=one.first
                )
        elif what == "in part":
            member.report(_done(runs[0], finished=[(one.first, one.first + 1)]))
            member.report(_done(runs[0], release=[one.end - 1]))
        elif what == "released":
            member.report(
                *(_done(mine, release=range(mine.run.first, mine.run.end)) for mine in runs)
            )
            return what
        elif what == "renewed":
            member.report(*(_done(mine, renew=True) for mine in runs))
        member.report(*(_done(mine, whole=True) for mine in runs))
        return what

    return once


# Shared transactions


def part_combining(
    home: Path, chosen: argparse.Namespace
) -> tuple[dict[str, Any], list[str]]:
    """Leases of one queue in transactions of their own and in shared ones, beside two plain
    transactions.
    """
    rounds, seconds = (1, 0.5) if chosen.quick else (chosen.rounds, chosen.seconds)
    prepare(home / "var")
    disk = slow_sync(home)
    servers = {
        "fast": start(home / "fast", port=free_port()),
        "slow": start(
            home / "slow", port=free_port(), options=SYNCED, environ=disk.environ
        ),
    }
    found: dict[str, dict[int, dict[str, list[float]]]] = {}
    try:
        disk.set(SLOWER_MS)
        for name, server in servers.items():
            topic_on(server, name)
            server.execute(RAW_POSITION.replace("raw_position", f"{name}.raw_position"))
            server.execute(RAW_RUN.replace("raw_run", f"{name}.raw_run"))
            told = (
                "no binary log"
                if name == "fast"
                else f"binary log, each sync takes {SLOWER_MS} ms longer"
            )
            print(f"Runs leased and finished a second, one queue, {name}: {told}")
            found[name] = {
                threads: _compare(
                    server, name, threads=threads, rounds=rounds, seconds=seconds
                )
                for threads in (1, 8, 32)
            }
    finally:
        disk.set(0)
        for server in servers.values():
            server.stop()
    missed = [
        f"{threads} threads, fast: shared lost"
        for threads, one in found["fast"].items()
        if lost(one)
    ]
    missed += [
        f"{threads} threads, slow: shared did not win"
        for threads, one in found["slow"].items()
        if threads > 1
        and statistics.median(one["together"]) < WON * statistics.median(one["alone"])
    ]
    return {"rates": found}, missed


def _compare(
    server: MariaDB, name: str, *, threads: int, rounds: int, seconds: float
) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {"raw": [], "alone": [], "together": []}
    ways: dict[str, Callable[[], list[Once]]] = {
        "raw": lambda: _plain(server, name, threads),
        "alone": lambda: _members(name, threads),
        "together": lambda: _members(name, threads),
    }
    for _ in range(rounds):
        for way, works in ways.items():
            with _transactions(shared=way == "together"):
                rates[way].append(rate(works(), seconds))
    for way, values in rates.items():
        middle = statistics.median(values)
        to_raw, to_alone = (
            middle / statistics.median(rates[one]) for one in ("raw", "alone")
        )
        spread = f"{middle:9,.0f}{min(values):9,.0f}{max(values):9,.0f}"
        print(
            f"{threads:3} threads  {way:9}{spread}  to raw {to_raw:.2f}  to alone {to_alone:.2f}",
            flush=True,
        )
    return rates


@contextmanager
def _transactions(*, shared: bool) -> Iterator[None]:
    """Leases in shared transactions, or each in its own."""
    from messagestore.shares import run_leases

    real = run_leases._lease_together
    run_leases._lease_together = (
        real if shared else lambda part, *, alone: real(part, alone=True)
    )
    try:
        yield
    finally:
        run_leases._lease_together = real


def _members(name: str, threads: int) -> list[Once]:
    """One call that leases and finishes a run of one message, for each thread; messages are
    sent before.
    """
    from messagestore.shares import upkeep

    group = f"{name}-{uuid.uuid4().hex[:8]}"
    if name not in STORE:
        send = STORE.setdefault(name, _sender(name))
        for _ in range(400):
            send()
    members = [Member(group, name) for _ in range(threads)]
    upkeep.run_once()

    def once(member: Member) -> None:
        member.finish(member.lease(1))

    return [lambda member=one: once(member) for one in members]  # type: ignore[misc]


def _plain(server: MariaDB, name: str, threads: int) -> list[Once]:
    """Two transactions of plain statements for each thread, on rows of its own."""
    numbers = itertools.count(1)
    server.execute(f"DELETE FROM {name}.raw_position")

    def work() -> Once:
        mine = next(numbers)
        connection = server.connect(db=name)
        connection.autocommit(False)
        cursor = connection.cursor()
        cursor.execute("INSERT INTO raw_position VALUES (%s, 0)", (mine,))
        connection.commit()

        def once() -> None:
            cursor.execute(
                "UPDATE raw_position SET next_offset = next_offset + 1 WHERE group_id = %s",
                (mine,),
            )
            cursor.execute(
                "INSERT INTO raw_run VALUES (%s, 1, 2, 'bench', NOW(6))", (mine,)
            )
            connection.commit()
            cursor.execute(
                "DELETE FROM raw_run WHERE group_id = %s AND first_offset = 1", (mine,)
            )
            connection.commit()

        return once

    return [work() for _ in range(threads)]
