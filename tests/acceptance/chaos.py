"""Plays a scenario at length: the same code and checks as the short forms in the gate. See
script/chaos.
"""

from __future__ import annotations

import argparse
import os
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

import pytest

from benchmarks.processes import end_by_signals
from catmq_client.errors import CatmqError
from tests.acceptance.scenarios import (
    brokers,
    celery,
    clocks,
    clustered,
    dead_node,
    disturbed,
    frozen,
    frozen_metadata,
    full_node,
    full_tmpdir,
    java,
    linked,
    long_queue,
    lost_nodes,
    main_job,
    metadata_away,
    mixed_releases,
    restarts,
    rolling_upgrade,
    shaky,
    share,
    share_outages,
    slow_clients,
    slow_group,
    soak,
    storm,
    takeover,
    tasks,
    web,
    workers,
)
from tests.acceptance.scenarios.stage import Stage
from tests.support import changes, environment, mariadb
from tests.support import pair as pairs
from tests.support.environment import free_port
from tests.support.pair import Pair
from tests.support.server import Server

MOST_WAIT_S = 3.0  # of a message for a consumer, in a rolling upgrade


def play_restarts(stage: Stage, source: Path) -> None:
    """The broker restarted 5 times by SIGTERM and 5 by kill -9, in sending and in reading;
    then workers.
    """
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
    """kill -9 of workers in the middle of run(handler, threads=8), five times in one
    stream.
    """
    workers.run(stage, source=source, kills=5)


def play_share_held(stage: Stage, source: Path) -> None:
    """A member of a share group holds one message for --times minutes (default 60): it
    stops nobody.
    """
    share.run_held(stage, held_s=60.0 * (stage.times or 60), per_s=5)


def play_tasks(stage: Stage, source: Path) -> None:
    """kill -9 of 20 workers of Django tasks (--times), then as many restarts of the broker."""
    times = stage.times or 20
    tasks.run(stage, str(stage.directory / "shop.sqlite3"), kills=times, restarts=times)


def play_celery(stage: Stage, source: Path) -> None:
    """kill -9 of 20 workers of Celery (--times), 20 restarts of the broker; a 2 h countdown
    runs once.
    """
    times = stage.times or 20
    celery.run(stage, kills=times, restarts=times)
    celery.run_countdown(stage)


def play_tasks_databases(stage: Stage, pair: Pair) -> None:
    """The same on MariaDB, with restarts of the node and of the application's database
    (--times each).
    """
    times = stage.times or 20
    tasks.run_on_databases(stage, pair, kills=times, restarts=2, outages=times)


def play_celery_databases(stage: Stage, pair: Pair) -> None:
    """kill -9 of workers of Celery, and restarts of the database that has their tasks
    (--times each).
    """
    times = stage.times or 20
    celery.run_on_database(stage, pair, kills=times, outages=times)


def play_main_job(stage: Stage, source: Path) -> None:
    """The whole stream with --batch 500 and with --batch 1, two consumers at once."""
    for batch in (500, 1):
        main_job.run(stage, source=source, batch=batch)
        main_job.backlog(stage, source=source, batch=500)


def play_web_fastapi(stage: Stage, source: Path) -> None:
    """10,000 orders to FastAPI under uvicorn; clients leave, and the application is killed
    and terminated --times times (default 20).
    """
    web.run(stage, kind="fastapi", count=10_000, restarts=stage.times or 20)


def play_web_django(stage: Stage, source: Path) -> None:
    """The same with async views of Django: its web process, relay and workers."""
    web.run(stage, kind="django", count=10_000, restarts=stage.times or 20)


def play_storm(stage: Stage, source: Path) -> None:
    """Every second for 3 minutes a member of a group joins, leaves or is killed with -9, on
    12 queues.
    """
    storm.run(stage, calm_s=20, storm_s=180)


def play_frozen(stage: Stage, source: Path) -> None:
    """SIGSTOP of two of three consumers for three session timeouts, then SIGCONT."""
    for session_ms in (2_000, 5_000):
        frozen.run(stage, session_ms=session_ms)


def play_shaky(stage: Stage, source: Path) -> None:
    """Handlers fail at 30 % of their calls over the stream: unordered, then in order by key
    and by queue.
    """
    shaky.run(stage, source=source, ordered=False)
    for order in ("key", "queue"):
        shaky.run(stage, source=source, ordered=True, order=order)


def play_slow_group(stage: Stage, source: Path) -> None:
    """A group needs 250 ms a message in two threads for a minute: it pulls what it handles,
    and a buffer.
    """
    slow_group.run(stage, seconds=60)


def play_slow_clients(stage: Stage, source: Path) -> None:
    """3,000 clients send byte by byte or take no answer; then /livez, sends and pulls keep
    p99 < 500 ms.
    """
    slow_clients.run(stage, sockets=3_000, idle=1_000, rounds=400, p99_ms=500)


def play_brokers(stage: Stage, pair: Pair) -> None:
    """kill -9 of one broker of two, of django-q, of both, in the middle of rebalances."""
    brokers.run(stage, pair)


def play_metadata_away(stage: Stage, pair: Pair) -> None:
    """The metadata's database is frozen, then killed, for 30 s each; the nodes live."""
    metadata_away.run(stage, pair, away_s=30, session_ms=15_000)


def play_frozen_metadata(stage: Stage, pair: Pair) -> None:
    """The metadata's database is frozen for 45 s, in the middle of a hand-over; sessions of
    3, 6 and 15 s.
    """
    for session_ms in (3_000, 6_000, 15_000):
        frozen_metadata.run(stage, pair, session_ms=session_ms, away_s=45)


def play_clocks(stage: Stage, pair: Pair) -> None:
    """The wall clock of a consumer, then of a broker, moves by an hour forth and back."""
    clocks.run(stage, pair, watch_s=10)


def play_node_killed(stage: Stage, pair: Pair) -> None:
    """kill -9 of a node's database on a slow disk, 20 times (or --times), under sends and
    immediate reads.
    """
    lost_nodes.run_killed(stage, pair, kills=stage.times or 20)


def play_node_killed_binlog(stage: Stage, pair: Pair) -> None:
    """The same with a synced binary log."""
    lost_nodes.run_killed(stage, pair, kills=stage.times or 20, binlog=True)


def play_node_dead(stage: Stage, pair: Pair) -> None:
    """kill -9 of one of two nodes, ten times (or --times): what is sent then goes to the
    other at once.
    """
    dead_node.run(stage, pair, rounds=stage.times or 10)


def play_node_frozen(stage: Stage, pair: Pair) -> None:
    """SIGSTOP of a node's database for 20 s while another node works."""
    lost_nodes.run_frozen(stage, pair, frozen_s=20)


def play_node_full(stage: Stage, pair: Pair) -> None:
    """A node's disk is full for 20 s while another node works."""
    full_node.run(stage, pair, watch_s=20)


def play_failover(stage: Stage, pair: Pair) -> None:
    """kill -9 of a node's primary whose replica lacks the last seconds; the replica is
    promoted.
    """
    lost_nodes.run_failover(stage, pair, tail_s=5)


def play_failover_semi_sync(stage: Stage, pair: Pair) -> None:
    """kill -9 of a node's primary whose replica is semi-synchronous; it is promoted, and
    nothing is lost.
    """
    lost_nodes.run_failover(stage, pair, tail_s=0)


def play_soak(stage: Stage, pair: Pair) -> None:
    """Steady work for 10 minutes: memory, threads, connections, files, statements and
    tables stay flat.
    """
    soak.run(stage, pair, seconds=600, every_s=3.0)


def play_link_node(stage: Stage, pair: Pair) -> None:
    """Links between brokers and nodes cut, hold, half-close, slow down and lose answers for
    two minutes.
    """
    linked.run_node(stage, pair, seconds=120)


def play_link_metadata(stage: Stage, pair: Pair) -> None:
    """The same between brokers and metadata, while members join and leave; sessions of 6 s."""
    linked.run_metadata(stage, pair, seconds=120)


def play_link_client(stage: Stage, pair: Pair) -> None:
    """The same between clients, ours and bare HTTP, and brokers; sessions of 6 s."""
    linked.run_client(stage, pair, seconds=120)


def play_kill_rain(stage: Stage, pair: Pair) -> None:
    """KILL QUERY or KILL CONNECTION of a broker's session, on nodes and metadata, 7 a
    second for 90 s.
    """
    disturbed.run_kill_rain(stage, pair, seconds=90)


def play_dba(stage: Stage, pair: Pair) -> None:
    """LOCK TABLES, FLUSH TABLES WITH READ LOCK, ALTER TABLE and long transactions for two
    minutes.
    """
    disturbed.run_dba(stage, pair, seconds=120)


def play_tmpdir_full(stage: Stage, pair: Pair) -> None:
    """The tmpdir of a node with a binary log is full under large transactions, --times
    times (default 4).
    """
    full_tmpdir.run(stage, pair, full_s=8, times=stage.times or 4)


def play_metadata_frozen_short(stage: Stage, pair: Pair) -> None:
    """SIGSTOP of the metadata's database for 25 s with sessions of 3 and of 6 s: nothing
    lost or doubled.
    """
    disturbed.run_frozen_metadata(stage, pair, frozen_s=25)


def play_repeats(stage: Stage, pair: Pair) -> None:
    """Bare senders repeat through the other broker what was not answered, and what was,
    across expansions.
    """
    linked.run_repeats(stage, pair, seconds=60)


def play_long_queue(stage: Stage, pair: Pair) -> None:
    """--times x 100,000 messages (default 5) through one queue: partitions made and
    dropped, verify clean.
    """
    messages = (stage.times or 5) * long_queue.FIRST_END + long_queue.MORE
    long_queue.run(stage, pair, messages=messages)


def play_share(stage: Stage, pair: Pair) -> None:
    """1 of 100 members of a share group killed each second for 5 minutes; SIGSTOP, outages,
    reset, poison.
    """
    share_outages.run(stage, pair, members=100, seconds=300, per_s=300)
    with pair.nodes.schema() as schema:  # dead letters need a place
        place = pair.nodes.url.rpartition("/")[0] + f"/{schema}"
        pair.first.manage(
            "register_node", stage.fresh("failed"), place, "--kind", "failure"
        )
        share.run_poison(stage, count=1_000, lethal=500)
        # before the node's schema is dropped: groups have a retry topic on it
        play_share_lost(stage, pair)


def play_share_lost(stage: Stage, pair: Pair) -> None:
    """Members of a share group lose answers and ask again with `recover`, --times rounds
    (default 20).
    """
    for _ in range(stage.times or 20):
        share.run_lost_answers(stage, members=6, count=1_000)


def play_java(stage: Stage, pair: Pair) -> None:
    """kill -9 of Java and Python members of one group, ends of brokers, --times of each
    (default 10).
    """
    java.run(stage, pair, rounds=stage.times or 10)


def play_mixed_releases(stage: Stage, pair: Pair) -> None:
    """Brokers of two releases go up and down while nodes are upgraded, --times times
    (default 2).
    """
    mixed_releases.run(stage, pair, rounds=stage.times or 2)


def play_rolling_upgrade(stage: Stage, pair: Pair) -> None:
    """Two brokers of the previous release and their nodes are upgraded under 500 messages a
    second, --times times (default 3).
    """
    waits_s = [
        rolling_upgrade.run(
            pair.nodes, stage.directory / f"upgrade-{number}", say=stage.say
        )
        for number in range(stage.times or 3)
    ]
    assert max(waits_s) < MOST_WAIT_S, (
        f"a message waited for a consumer for {max(waits_s):.1f} s"
    )


def play_cluster(options: argparse.Namespace, home: Path, rng: random.Random) -> None:
    """On a Galera cluster and on a MySQL group the writer is killed, frozen and cut off, also
    one way; all members are restarted; a minority is left alone (--rounds, default 10).
    """
    for kind in options.kind or clustered.KINDS:
        for place in options.on or (clustered.NODE, clustered.METADATA):
            plan = clustered.Plan(
                kind,
                place,
                options.fault or clustered.FAULTS,
                options.rounds,
                options.rate,
            )
            clustered.run(home / f"{kind}-{place}", plan, rng=rng, say=say)


def run_selftest(engine: str) -> int:
    """Plants defects in the journals and tables of a clean run and shows that the judge
    names each.
    """
    program = [sys.executable, "-m", "tests.acceptance.programs.selftest"]
    return subprocess.run(
        program, env=os.environ | {"CATMQ_TEST_ENGINE": engine}, check=False
    ).returncode


SCENARIOS: dict[str, Callable[[Stage, Path], None]] = {
    "restarts": play_restarts,
    "takeover": play_takeover,
    "workers": play_workers,
    "share-held": play_share_held,
    "tasks": play_tasks,
    "celery": play_celery,
    "main-job": play_main_job,
    "storm": play_storm,
    "web-fastapi": play_web_fastapi,
    "web-django": play_web_django,
    "frozen": play_frozen,
    "shaky": play_shaky,
    "slow-group": play_slow_group,
    "slow-clients": play_slow_clients,
}
# Those with two servers and a database for the metadata alone, always on MariaDB.
ON_A_PAIR: dict[str, Callable[[Stage, Pair], None]] = {
    "brokers": play_brokers,
    "metadata-away": play_metadata_away,
    "metadata-frozen": play_frozen_metadata,
    "clocks": play_clocks,
    "node-killed": play_node_killed,
    "node-killed-binlog": play_node_killed_binlog,
    "node-dead": play_node_dead,
    "node-frozen": play_node_frozen,
    "node-full": play_node_full,
    "failover": play_failover,
    "failover-semi-sync": play_failover_semi_sync,
    "soak": play_soak,
    "link-node": play_link_node,
    "link-metadata": play_link_metadata,
    "link-client": play_link_client,
    "kill-rain": play_kill_rain,
    "dba": play_dba,
    "tmpdir-full": play_tmpdir_full,
    "metadata-frozen-short": play_metadata_frozen_short,
    "repeats": play_repeats,
    "java": play_java,
    "mixed-releases": play_mixed_releases,
    "rolling-upgrade": play_rolling_upgrade,
    "long-queue": play_long_queue,
    "share": play_share,
    "share-lost": play_share_lost,
    "tasks-databases": play_tasks_databases,
    "celery-databases": play_celery_databases,
}
CLUSTER = "cluster"
LINKED = ("link-metadata",)  # whose servers reach the metadata through links
SELFTEST = "selftest"
FAILURES = (AssertionError, OSError, subprocess.SubprocessError, CatmqError)
ALL = {**SCENARIOS, **ON_A_PAIR}


def arguments() -> argparse.Namespace:
    """The command line."""
    plays = {
        **{name: play.__doc__ for name, play in ALL.items()},
        CLUSTER: play_cluster.__doc__,
        SELFTEST: run_selftest.__doc__,
    }
    listed = "\n".join(f"  {name:21} {told}" for name, told in plays.items())
    parser = argparse.ArgumentParser(
        prog="script/chaos",
        description="Plays a scenario against a server of its own and judges by the "
        "consumers' logs.",
        epilog=f"scenarios:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "name", metavar="NAME", choices=plays, help=f"one of {', '.join(plays)}"
    )
    parser.add_argument(
        "--seed",
        type=int,
        help="seed of the random choices, to repeat a run (default: a new one)",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=0.0,
        metavar="M",
        help="repeat for this many minutes",
    )
    parser.add_argument(
        "--times",
        type=int,
        metavar="N",
        help="number of repetitions, where the scenario names it",
    )
    parser.add_argument(
        "--server",
        metavar="VERSION",
        help="the version of all database servers, as script/mysql takes it (default: the "
        "installed one)",
    )
    parser.add_argument(
        "--engine",
        choices=("sqlite", "mysql"),
        default="sqlite",
        help="metadata and two nodes on SQLite (default) or on a private MariaDB; "
        f"{', '.join(ON_A_PAIR)} always use two servers on MariaDB",
    )
    cluster = parser.add_argument_group("options of `cluster`")
    cluster.add_argument(
        "--kind", action="append", choices=clustered.KINDS, help="default: both"
    )
    cluster.add_argument(
        "--on",
        action="append",
        choices=clustered.PLACES,
        help="what is on the cluster (default: the node, then the metadata)",
    )
    cluster.add_argument(
        "--fault", action="append", choices=clustered.FAULTS, help="default: all"
    )
    cluster.add_argument(
        "--rounds", type=int, default=clustered.ROUNDS, help="default: %(default)s"
    )
    cluster.add_argument(
        "--rate",
        type=int,
        default=clustered.PER_S,
        help="keyed messages a second (default: %(default)s)",
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
        kinds = (
            {"n1": "normal", "n2": "normal", "failed": "failure"}
            if engine == "mysql"
            else {}
        )
        for name, kind in kinds.items():
            database.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
            url = database.url.rpartition("/")[0] + f"/{name}"
            server.manage("register_node", name, url, "--kind", kind)
        yield server


@contextmanager
def stages(
    options: argparse.Namespace, home: Path, rng: random.Random
) -> Iterator[Callable[[str], None]]:
    """Starts what the scenario needs; gives what plays one round of it, in a directory of
    that name.
    """
    if options.name == CLUSTER:
        yield lambda name: play_cluster(options, home / name, rng)
        return
    with ExitStack() as stack:
        if options.name in ON_A_PAIR:
            nodes = mariadb.start(home / "nodes", port=free_port())
            stack.callback(nodes.stop)
            pair = stack.enter_context(
                pairs.running(home / "pair", nodes, linked=options.name in LINKED)
            )
            server, urls = pair.first, pair.urls
        else:
            server, urls = stack.enter_context(serving(options.engine, home)), ""

        def round_of(name: str) -> None:
            stage = Stage(server, home / name, rng, say, urls, options.times)
            try:
                if options.name in ON_A_PAIR:
                    ON_A_PAIR[options.name](stage, pair)
                else:
                    SCENARIOS[options.name](stage, changes.source(home))
            except FAILURES:
                say(f"it failed after {stage.line}" if stage.line else "it failed")
                raise
            finally:
                stage.terminal.close()

        yield round_of


def play(options: argparse.Namespace, home: Path, seed: int) -> int:
    """Plays at least once; how many times it was."""
    rounds = 0
    with stages(options, home, random.Random(seed)) as round_of:
        while rounds == 0 or time.monotonic() - BEGUN < options.minutes * 60:
            rounds += 1
            say(f"{options.name}, round {rounds}")
            round_of(f"round-{rounds}")
    return rounds


def main() -> int:
    """Plays and judges; 0 if everything held."""
    options = arguments()
    end_by_signals()
    if options.server and options.server != environment.SERVER:
        # the modules have read it already: begin again
        os.environ["CATMQ_TEST_SERVER"] = options.server
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    if options.name == SELFTEST:
        return run_selftest(options.engine)
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    home = Path(tempfile.mkdtemp(prefix="catmq-chaos-"))
    say(f"seed {seed}, {options.engine} {environment.SERVER}; logs in {home}")
    try:
        rounds = play(options, home, seed)
    except pytest.skip.Exception as reason:
        sys.stdout.write(f"SKIPPED: {options.name}: {reason}\n")
        return 3
    except FAILURES as error:
        say(f"{type(error).__name__}: {error}")
        sys.stdout.write(
            f"FAILED: {options.name}, seed {seed}; everything is kept in {home}\n"
        )
        return 1
    shutil.rmtree(home, ignore_errors=True)
    sys.stdout.write(f"OK: {options.name}, {rounds} rounds, seed {seed}: everything held\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
