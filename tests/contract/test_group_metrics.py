"""`/metrics` on groups: it agrees with the tables, is capped, and goes on without metadata."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from brokerapi.http import group_metrics
from brokerapi.http.group_metrics import Board
from messagestore.consume import group_lag
from messagestore.nodes.replica_inspection import JUMP
from messagestore.pool import node_pools
from messagestore.pool.node import Node
from messagestore.tables import partition_sql, promotion_sql
from metadata import actors
from metadata.cache import snapshot
from metadata.config import config
from metadata.errors import MetadataUnavailable, NodeUnavailable
from metadata.monitoring import group_counts, metrics_history
from tests.support.broker import Broker
from tests.support.environment import ROOT
from tests.support.members import Member, reader
from tests.support.sharing import ShareMember, about

ACTOR = actors.command("test")
Labels = frozenset[tuple[str, str]]


@pytest.fixture(autouse=True)
def fresh(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A board without figures; and nothing counted for groups of earlier tests, which had
    the same ids.
    """
    monkeypatch.setattr(group_metrics, "board", Board(None))
    metrics_history.evict_groups(())


def samples(text: str) -> dict[tuple[str, Labels], float]:
    """(Name, labels) → value, as Prometheus's own parser reads them."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class Scrape:
    """The answer of a broker."""

    def __init__(self, broker: Broker) -> None:
        answer = requests.get(broker.url + "/metrics", timeout=10)
        assert answer.status_code == 200
        self.samples = samples(answer.text)

    def value(self, name: str, **labels: Any) -> float | None:
        """One sample; None where there is none."""
        named = frozenset((key, str(value)) for key, value in labels.items())
        return self.samples.get((name, named))

    def groups(self, name: str) -> set[str]:
        """The groups that a metric names."""
        return {dict(labels)["group"] for found, labels in self.samples if found == name}


def refreshed(broker: Broker) -> Scrape:
    """Return what it answers once it has read the figures and told what it counted."""
    with suppress(MetadataUnavailable):
        snapshot.refresh()  # as a loop of the broker does all the time
    assert group_metrics.board.refresh()
    group_metrics.sample()
    return Scrape(broker)


def test_the_lag_of_a_share_group_is_what_is_not_finished(
    broker: Broker, queue: int
) -> None:
    member = ShareMember.join(broker)
    send(broker, "single", 30)
    held, *others = [*member.lease(max_messages=10), *member.lease(max_messages=10)]
    member.report(*(about(run, all=True) for run in others), about(held, finished=[[1, 4]]))
    lag = refreshed(broker).value("catmq_group_lag_messages", group="mails", topic="single")
    assert lag == 7 + 10, "the committed offset is 0"


def send(broker: Broker, topic: str, count: int) -> None:
    broker.ok("POST", f"/topics/{topic}/messages", {"messages": [{"body": "x"}] * count})


def test_a_broker_without_figures_says_nothing_of_groups(
    broker: Broker, queue: int
) -> None:
    assert Scrape(broker).groups("catmq_group_lag_messages") == set()


def test_the_figures_agree_with_the_tables(broker: Broker, queue: int) -> None:
    send(broker, "single", 20)
    member = reader(broker)
    member.pull(member.position(queue, 0), max_messages=20)
    member.pull(member.position(queue, 0), max_messages=20)
    before = metrics_history.group_totals()
    assert member.commit(member.position(queue, 7)) == ["ok"]
    seen = refreshed(broker)
    (offsets,) = group_lag.group_offsets(group="readers", actor=ACTOR)
    assert (offsets.committed, offsets.head, offsets.lag) == (7, 20, 13)
    assert seen.value("catmq_group_lag_messages", group="readers", topic="single") == 13
    age_s = seen.value("catmq_group_lag_seconds", group="readers", topic="single")
    assert age_s is not None and 0 <= age_s <= (offsets.lag_ms or 0) / 1000 + 1
    assert seen.value("catmq_topic_log_end_offset", topic="single", queue=queue) == 20
    assert seen.value("catmq_group_members", group="readers") == 1
    assert seen.value("catmq_group_dead_letters", group="readers") == 0
    assert seen.value("catmq_group_messages_handled_total", group="readers") == 7, (
        "as far as its position"
    )
    assert seen.value("catmq_group_messages_pulled_total", group="readers") == 40, (
        "twice as many as there are"
    )
    assert sum(handled for _pulled, handled in before.values()) == 0
    assert seen.value("catmq_groups_left_out") == 0
    assert (seen.value("catmq_group_figures_age_seconds", source="nodes") or 99) < 10


def test_a_group_that_has_read_everything_is_behind_by_nothing(
    broker: Broker, queue: int
) -> None:
    send(broker, "single", 3)
    member = reader(broker)
    member.commit(member.position(queue, 3))
    seen = refreshed(broker)
    assert seen.value("catmq_group_lag_messages", group="readers", topic="single") == 0
    assert seen.value("catmq_group_lag_seconds", group="readers", topic="single") == 0


def test_of_a_broadcasting_group_the_slowest_instance_counts(
    broker: Broker, queue: int
) -> None:
    send(broker, "single", 10)
    broker.ok("POST", "/groups", {"name": "caches", "mode": "broadcasting"})
    broker.ok(
        "POST", "/groups/caches/subscriptions", {"topic": "single", "start": "earliest"}
    )
    for name, offset in (("a", 9), ("b", 4)):
        member = Member.join(
            broker, group="caches", name=name, instance_id=name, mode="broadcasting"
        )
        member.heartbeat()
        member.acquire()
        assert member.commit(member.position(queue, offset)) == ["ok"]
    seen = refreshed(broker)
    assert seen.value("catmq_group_lag_messages", group="caches", topic="single") == 6
    assert seen.value("catmq_group_messages_handled_total", group="caches") == 13, (
        "each instance counts"
    )


def test_only_so_many_groups_are_named_those_furthest_behind(
    broker: Broker, queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        send(broker, "single", 10)
        broker.ok("POST", "/groups", {"name": f"g{number}"})
        start = {"topic": "single", "start": "latest"}
        broker.ok("POST", f"/groups/g{number}/subscriptions", start)
    send(broker, "single", 10)
    snapshot.refresh()
    monkeypatch.setattr(group_metrics, "config", _Most(3))
    seen = refreshed(broker)
    named = {"g0", "g1", "g2"}
    for name in (
        "lag_messages",
        "lag_seconds",
        "members",
        "messages_handled_total",
        "messages_pulled_total",
    ):
        assert seen.groups(f"catmq_group_{name}") == named
    assert seen.value("catmq_groups_left_out") == 2
    monkeypatch.setattr(group_metrics, "config", _Most(config.metrics_groups))
    assert len(refreshed(broker).groups("catmq_group_lag_messages")) == 5


class _Most:
    """The setting."""

    def __init__(self, metrics_groups: int) -> None:
        self.metrics_groups = metrics_groups


def test_a_scrape_goes_on_while_metadata_is_away(
    broker: Broker, queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(broker, "single", 5)
    member = reader(broker)
    refreshed(broker)

    def away() -> Any:
        raise MetadataUnavailable("frozen")

    monkeypatch.setattr(group_counts, "read", away)
    told = group_metrics.board.last_snapshot()
    assert told is not None and told.metadata_read_at is not None
    told.metadata_read_at -= 100
    assert member.commit(member.position(queue, 2)) == ["ok"]
    seen = refreshed(broker)
    assert seen.value("catmq_group_lag_messages", group="readers", topic="single") == 3, (
        "the nodes answer"
    )
    assert seen.value("catmq_group_members", group="readers") == 1, "as it was"
    assert (seen.value("catmq_group_figures_age_seconds", source="metadata") or 0) > 100
    assert (seen.value("catmq_group_figures_age_seconds", source="nodes") or 99) < 10


def test_what_metadata_never_told_has_no_sample(
    broker: Broker, queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader(broker)

    def away() -> Any:
        raise MetadataUnavailable("frozen")

    monkeypatch.setattr(group_counts, "read", away)
    seen = refreshed(broker)
    assert seen.groups("catmq_group_lag_messages") == {"readers"}
    assert seen.groups("catmq_group_members") == set()
    assert seen.value("catmq_group_figures_age_seconds", source="metadata") == float("inf")


def test_what_a_node_that_is_away_would_tell_has_no_sample(
    broker: Broker, queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader(broker)

    def away(*_: Any, **__: Any) -> Any:
        raise NodeUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(Node, "reading", away)
        seen = refreshed(broker)
    assert seen.groups("catmq_group_lag_messages") == set()
    assert seen.groups("catmq_group_members") == {"readers"}
    assert seen.value("catmq_topic_log_end_offset", topic="single", queue=queue) is None


def test_a_group_that_is_deleted_is_no_longer_named(broker: Broker, queue: int) -> None:
    member = reader(broker)
    member.commit(member.position(queue, 0))
    assert "readers" in refreshed(broker).groups("catmq_group_members")
    broker.ok("DELETE", member.path)
    broker.ok("DELETE", "/groups/readers/subscriptions/single?confirm=single")
    broker.ok("DELETE", "/groups/readers?confirm=readers")
    snapshot.refresh()
    assert refreshed(broker).groups("catmq_group_members") == set()


def test_failed_messages_are_pending_until_they_are_handled(
    broker: Broker, failure_node: str, queue: int
) -> None:
    send(broker, "single", 3)
    member = reader(broker)
    place = {"queue": queue, "epoch": member.owned[queue]}
    body = {"messages": [{**place, "offset": offset, "error": "busy"} for offset in (0, 1)]}
    broker.ok("POST", member.path + "/failures", body)
    seen = refreshed(broker)
    assert seen.value("catmq_group_retries_pending", group="readers") == 2
    assert {
        dict(labels).get("topic")
        for name, labels in seen.samples
        if name == "catmq_group_lag_messages"
    } == {"single"}, "retry topics are in retries_pending"


def test_a_declared_gap_and_what_retention_took_are_not_behind(
    broker: Broker, queue: int
) -> None:
    send(broker, "single", 10)
    reader(broker)
    with node_pools.node_of(queue).writing() as session:
        promotion_sql.raise_heads(session, heads=[(queue, 10 + JUMP)], cause="promoted")
        partition_sql.raise_low(session, queue=queue, low=4)
    seen = refreshed(broker)
    assert seen.value("catmq_group_lag_messages", group="readers", topic="single") == 6


def test_all_workers_tell_the_same_and_another_follows_the_one_that_reads(
    broker: Broker, queue: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        group_metrics, "sample", lambda: None
    )  # the broker's loop would publish on our boards
    send(broker, "single", 5)
    member = reader(broker)
    snapshot.refresh()
    one, other = Board(tmp_path), Board(tmp_path)
    assert one.refresh() and not other.refresh()
    scrapes = []
    for board in (one, other):
        monkeypatch.setattr(group_metrics, "board", board)
        scrapes.append(Scrape(broker).samples)
    ages = {key for key in scrapes[0] if key[0] == "catmq_group_figures_age_seconds"}
    named = {
        key for key in scrapes[0] if key[0].startswith(("catmq_group", "catmq_topic"))
    } - ages
    assert named and {key: scrapes[0][key] for key in named} == {
        key: scrapes[1].get(key) for key in named
    }

    one.publish(lambda: {7: (10, 4)})
    other.publish(lambda: {7: (1, 1), 8: (2, 2)})
    assert one.totals() == other.totals() == {7: (11, 5), 8: (2, 2)}

    one.leave()
    assert member.commit(member.position(queue, 4)) == ["ok"]
    assert other.refresh() and not one.refresh()
    told = one.last_snapshot()
    assert told is not None and told == other.last_snapshot()
    assert [one.lags[0].messages for one in told.figures.groups] == [1]
    assert other.totals()[7] == (11, 5), "what a worker counted stays when it ends"
    other.leave()


def test_damaged_files_of_dead_workers_do_not_end_a_scrape(tmp_path: Path) -> None:
    board = Board(tmp_path)
    board.publish(lambda: {7: (10, 4)})
    (tmp_path / "totals_1_1.json").write_bytes(b'{"7":[1')
    (tmp_path / "totals_2_2.json").touch()
    # between the listing and the reading
    (tmp_path / "totals_3_3.json").symlink_to("removed")
    assert board.totals() == {7: (10, 4)}
    assert board.refresh()
    told = board.last_snapshot()
    (tmp_path / group_metrics.FIGURES).write_bytes(b'{"figures"')
    assert told is not None and board.last_snapshot() == told
    board.leave()


class LockedBoard(Board):
    """Fails if totals are counted or written outside of the lock."""

    def count(self) -> dict[int, tuple[int, int]]:
        assert self._publishing.locked(), "an older count could replace this one"
        return {7: (10, 4)}

    def _write(self, name: str, text: bytes) -> None:
        assert self._publishing.locked(), "another thread could take the draft away"
        super()._write(name, text)


def test_a_scrape_and_the_loop_of_a_worker_do_not_share_a_draft(tmp_path: Path) -> None:
    board = LockedBoard(tmp_path)
    board.publish(board.count)
    assert board.totals() == {7: (10, 4)}


HOLD = """
import sys
from pathlib import Path
import django
django.setup()
from brokerapi.http.group_metrics import Board
board = Board(Path(sys.argv[1]))
assert board._is_leader()
print("leads", flush=True)
sys.stdin.read()
"""


def test_when_the_worker_that_reads_is_killed_another_does(
    broker: Broker, tmp_path: Path
) -> None:
    environment = {**os.environ, "CATMQ_DATA_DIR": str(config.data_dir)}
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, text=True
    ) as worker:
        assert worker.stdout is not None and worker.stdout.readline() == "leads\n"
        board = Board(tmp_path)
        assert not board.refresh()
        worker.kill()
        worker.wait(10)
        assert board.refresh()
        board.leave()
