"""`script/bench portal`: how long the pages of the portal take with very many topics and
groups.

Starts a private MariaDB with durable settings, fills its metadata with topics of four
queues, groups that read two topics each with a member each, and an hour of figures for all
of them, and asks for every list in its usual order, sorted, searched and at its end: in one
process, through all of Django, without a network. A page counts as slow when half of its
answers take longer than --target-ms; then the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks import bench
from benchmarks.figures import Latencies, machine
from benchmarks.gauges import processor_s

QUEUES = 4
TOPICS_OF_A_GROUP = 2
MINUTES = 60
AT_ONCE = 2_000  # rows of a statement
PATHS = (
    "/", "/topics", "/topics?sort=-lag", "/topics?sort=-age", "/topics?q=0042", "/topics?page=9999",
    "/groups", "/groups?sort=-lag", "/groups?sort=-age", "/groups?q=0042", "/groups?page=9999",
    "/subscriptions", "/subscriptions?sort=-lag", "/subscriptions?q=0042",
    "/subscriptions?page=9999",
    "/consumers", "/consumers?sort=heard", "/consumers?q=0042", "/consumers?page=9999",
    "/rebalances", "/rebalances?q=0042", "/audit", "/audit?q=0042", "/audit?name=topic-00042",
    "/alarms", "/jobs", "/nodes", "/brokers", "/keys", "/users", "/reports", "/messages",
    "/search?q=0042", "/search?q=pause+0042",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Page:
    """What a page took: times, processor time of Python and of the database, in ms;
    statements; bytes.
    """

    path: str
    times: Latencies
    python_ms: float
    database_ms: float
    queries: int
    bytes: int


def prepare(url: str, home: Path) -> None:
    """Django with its metadata in that database."""
    os.environ["CATMQ_DATABASE_URL"] = url
    os.environ["CATMQ_DATA_DIR"] = str(home)
    os.environ["DJANGO_SETTINGS_MODULE"] = "catmq_site.settings"
    import django

    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)


def fill(url: str, rows: int) -> None:
    """So many topics, groups, subscriptions and members, their figures, and what was
    written about them.
    """
    from metadata.actors import command
    from metadata.nodes import node_rows

    node_rows.create(
        name="bench", engine="sqlite", database="nowhere/bench", actor=command("bench")
    )
    _topics(rows)
    _groups(rows)
    _members(rows)
    _figures(url)
    _history(rows)


def _make(model: Any, made: list[Any]) -> None:
    model.objects.bulk_create(made, batch_size=AT_ONCE)


def _topics(rows: int) -> None:
    from metadata.db.clock import database_now
    from metadata.models import DbNode, Queue, Topic

    now, node = database_now(), DbNode.objects.get()
    layout = json.dumps([1 + slot % QUEUES for slot in range(1024)])
    _make(
        Topic,
        [
            Topic(
                name=f"topic-{n:05}",
                state="ready",
                layout=layout,
                created_at=now,
                owners="ada",
            )
            for n in range(rows)
        ],
    )
    _make(
        Queue,
        [
            Queue(
                topic_id=topic,
                node=node,
                number=number,
                state="read_write",
                state_since=now,
                head_seen=9,
            )
            for topic in Topic.objects.values_list("pk", flat=True)
            for number in range(QUEUES)
        ],
    )


def _groups(rows: int) -> None:
    from metadata.db.clock import database_now
    from metadata.models import ConsumerGroup, ConsumerGroupTopic, Topic

    now = database_now()
    _make(
        ConsumerGroup,
        [ConsumerGroup(name=f"group-{n:05}", created_at=now) for n in range(rows)],
    )
    topics = list(Topic.objects.order_by("pk").values_list("pk", flat=True))
    _make(
        ConsumerGroupTopic,
        [
            ConsumerGroupTopic(
                group_id=group, topic_id=topics[(n + other) % rows], state="ready",
                start="earliest",
                lag=n * 7919 % 100_000, lag_ms=n * 104_729 % 10_000_000, created_at=now,
            )
            for n, group in enumerate(ConsumerGroup.objects.order_by("pk").values_list("pk",
            flat=True))
            for other in range(TOPICS_OF_A_GROUP)
        ],
    )  # fmt: skip


def _members(rows: int) -> None:
    from metadata.db.clock import database_now
    from metadata.models import (
        Consumer,
        ConsumerGroup,
        ConsumerGroupConsumer,
        ConsumerGroupTopic,
        Heartbeat,
        Queue,
        QueueOffset,
    )

    now = database_now()
    _make(
        Consumer,
        [
            Consumer(name=f"c{n}", incarnation=str(n), address="10.0.0.1")
            for n in range(rows)
        ],
    )
    processes = Consumer.objects.order_by("pk").values_list("pk", flat=True)
    groups = ConsumerGroup.objects.order_by("pk").values_list("pk", flat=True)
    _make(
        ConsumerGroupConsumer,
        [
            ConsumerGroupConsumer(
                group_id=group, process_id=process, identity=f"member-{group}",
                consumer_id=f"id-{process}",
                joined_at=now,
            )
            for group, process in zip(groups, processes, strict=True)
        ],
    )  # fmt: skip
    members = dict(ConsumerGroupConsumer.objects.values_list("group_id", "pk"))
    _make(
        Heartbeat, [Heartbeat(membership_id=one, last_seen=now) for one in members.values()]
    )
    queues: dict[int, list[int]] = {}
    for topic, queue in Queue.objects.values_list("topic_id", "pk"):
        queues.setdefault(topic, []).append(queue)
    _make(
        QueueOffset,
        [
            QueueOffset(
                group_id=group,
                queue_id=queue,
                owner_id=members[group],
                target_id=members[group],
            )
            for group, topic in ConsumerGroupTopic.objects.values_list(
                "group_id", "topic_id"
            )
            for queue in queues[topic]
        ],
    )


def _figures(url: str) -> None:
    """An hour of minutes: what was sent to each topic, what each group pulled of it, and
    all together.
    """
    at = "'1970-01-01' + INTERVAL UNIX_TIMESTAMP() DIV 60 * 60 - 60 * seq SECOND"
    columns = "(step_s, at, topic_ref, group_ref, messages, bytes, errors, lag, lag_ms)"
    counts = "1000 + id * seq % 777, 100000, 0"
    minutes = f"seq_0_to_{MINUTES - 1}"
    parts = urlsplit(url)
    account = {
        "host": parts.hostname, "port": parts.port, "user": parts.username,
        "password": parts.password,
        "database": parts.path.strip("/"),
    }  # fmt: skip
    for chosen in (
        f"SELECT 60, {at}, id, 0, {counts}, NULL, NULL FROM metadata_topic, {minutes}",
        f"SELECT 60, {at}, topic_id, group_id, {counts}, lag, lag_ms "
        f"FROM metadata_consumergrouptopic, {minutes}",
        f"SELECT 60, {at}, 0, -seq % 2, 1000, 100000, 0, 7, 7 FROM {minutes}",
    ):
        bench.execute(account, f"INSERT INTO metadata_sample {columns} {chosen}")


def _history(rows: int) -> None:
    from django.contrib.auth import get_user_model

    from metadata.db.clock import database_now
    from metadata.models import ApiKey, AuditLog, ConsumerGroup, JobRun, Rebalance

    now = database_now()
    _make(
        AuditLog,
        [
            AuditLog(at=now, actor_kind="user", actor_name="ada", verb="create", kind="topic",
                     name=f"topic-{n:05}", after={"name": f"topic-{n:05}"})
            for n in range(rows)
        ],
    )  # fmt: skip
    groups = ConsumerGroup.objects.values_list("pk", flat=True)
    _make(
        Rebalance,
        [
            Rebalance(group_id=one, generation=1, cause="a member came", at=now)
            for one in groups
        ],
    )
    _make(
        JobRun,
        [
            JobRun(
                name="expire_messages",
                state="done",
                started_at=now,
                finished_at=now,
                count=n,
            )
            for n in range(rows)
        ],
    )
    _make(
        ApiKey,
        [ApiKey(name=f"key-{n:05}", digest=f"{n:064}", rights={"send": ["*"]}, created_at=now)
         for n in range(rows // 10)],
    )  # fmt: skip
    user: Any = get_user_model()
    _make(user, [user(username=f"user-{n:05}", password="!") for n in range(rows // 10)])


def browser() -> Any:
    """An administrator who logged in."""
    from django.contrib.auth import get_user_model
    from django.test import Client

    user = get_user_model().objects.create_superuser("ada", password="enough characters")
    client = Client(HTTP_HOST="127.0.0.1")
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return client


def measured(client: Any, path: str, *, times: int, database: int) -> Page:
    """One page, asked for once to warm up and then so many times."""
    from django.db import connections

    queries = 0

    def count(execute: Any, *given: Any) -> Any:
        nonlocal queries
        queries += 1
        return execute(*given)

    with ExitStack() as stack:
        for connection in connections.all():
            stack.enter_context(connection.execute_wrapper(count))
        answer = client.get(path)
    if answer.status_code != 200:
        raise SystemExit(f"{path} answered {answer.status_code}.")
    took = []
    before = time.process_time(), processor_s(database)
    for _ in range(times):
        begun = time.perf_counter()
        client.get(path)
        took.append(time.perf_counter() - begun)
    spent = time.process_time() - before[0], processor_s(database) - before[1]
    python_ms, database_ms = (1000 * one / times for one in spent)
    return Page(
        path, Latencies.of(took), python_ms, database_ms, queries, len(answer.content)
    )


def main() -> int:
    """Measures and prints; 1 if a page is slow."""
    parser = argparse.ArgumentParser(prog="script/bench portal", description=__doc__)
    parser.add_argument(
        "--rows", type=int, default=10_000, help="topics, and groups (default 10000)"
    )
    parser.add_argument("--times", type=int, default=20, help="each page (default 20)")
    parser.add_argument(
        "--target-ms", type=float, default=150.0, help="p50 of a page (default 150)"
    )
    parser.add_argument(
        "--only", nargs="+", metavar="PATH", default=PATHS, help="pages; without it, all"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="writes the figures there too"
    )
    chosen = parser.parse_args()
    facts = machine()
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="catmq-bench-")))
        url = stack.enter_context(bench.database(home / "database"))
        prepare(url, home / "var")
        fill(url, chosen.rows)
        from metadata.cache import snapshot

        snapshot.refresh()
        client = browser()
        pid = int((home / "database" / "server.pid").read_text())
        found = [
            measured(client, path, times=chosen.times, database=pid) for path in chosen.only
        ]
    show(found, facts, rows=chosen.rows)
    if chosen.json:
        figures = {
            "rows": chosen.rows,
            "machine": facts,
            "pages": [asdict(one) for one in found],
        }
        chosen.json.write_text(json.dumps(figures, indent=1))
    slow = [one.path for one in found if one.times.p50 > chosen.target_ms]
    if slow:
        print(f"slower than {chosen.target_ms:g} ms: {', '.join(slow)}")
    return int(bool(slow))


def show(found: list[Page], facts: dict[str, Any], *, rows: int) -> None:
    """Prints the table."""
    print(
        f"{rows:,} topics and groups; "
        f"{', '.join(f'{name} {value}' for name, value in facts.items())}"
    )
    heads = ("p50 ms", "p99 ms", "Python", "database", "queries", "bytes")
    print(f"{'page':28}" + "".join(f"{head:>10}" for head in heads))
    for one in found:
        print(
            f"{one.path:28}{one.times.p50:10.0f}{one.times.p99:10.0f}{one.python_ms:10.0f}"
            f"{one.database_ms:10.0f}"
            f"{one.queries:10}{one.bytes:10,}"
        )


if __name__ == "__main__":
    sys.exit(main())
