"""The guard against a full disk: measured, carried by the snapshot, sends go on elsewhere;
and a disk that is full after all stores nothing and says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from messagestore.engine import batch_ids
from messagestore.engine.messages import NewMessage
from messagestore.nodes import disks
from messagestore.pool import node_pools
from messagestore.produce.publish import publish
from messagestore.tables import partition_sql, queue_sql
from messagestore.topology import topics
from metadata.actors import command
from metadata.cache import snapshot
from metadata.config import config
from metadata.errors import CatmqError, NodeUnavailable, NoWritableQueue
from metadata.models import Alarm, DbNode
from metadata.nodes import node_rows
from tests.support.environment import ENGINE
from tests.support.tampering import plant

ACTOR = command("test")


def limits(monkeypatch: pytest.MonkeyPatch, full_below: int, low_below: int) -> None:
    monkeypatch.setattr(
        disks,
        "config",
        replace(config, min_free_percent=full_below, alarm_free_percent=low_below),
    )


def measure() -> int:
    """What the loop does, and what brokers learn 200 ms later."""
    changed = disks.DiskWatch().run_once()
    snapshot.refresh()
    return changed


def disk(name: str = "main") -> str:
    return DbNode.objects.get(name=name).disk


def queues_of(topic: str, node: str | None, count: int = 1) -> list[int]:
    made = topics.create(name=topic, queues=count, node=node, actor=ACTOR)
    snapshot.refresh()
    return [one.queue.queue for one in made.queues]


def send(topic: str = "orders", *, batch_id: UUID | None = None, **fields: Any) -> Any:
    (fate,) = publish(
        topic=topic,
        messages=[NewMessage(body=b"m", **fields)],
        batch_id=batch_id,
        actor=ACTOR,
    )
    return fate


def heads() -> dict[int, int]:
    found: dict[int, int] = {}
    for node_id in snapshot.current().nodes:
        with node_pools.node(node_id).reading() as session:
            found |= queue_sql.read_heads(session, queues=None)
    return found


def fill(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Gives a node a capacity that its files exceed already."""
    monkeypatch.setattr(disks, "GB", 1000)
    node_rows.update(name=name, settings={"capacity_gb": 1}, actor=ACTOR)
    snapshot.refresh()
    measure()
    assert disk(name) == "full"


def test_a_node_with_room_is_ok_and_costs_no_write(
    node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits(monkeypatch, 1, 2)
    node_rows.update(name="main", settings={"capacity_gb": 1_000_000}, actor=ACTOR)
    snapshot.refresh()
    before = snapshot.current().version
    assert (measure(), disk(), Alarm.objects.count()) == (0, "ok", 0)
    assert snapshot.current().version == before


def test_what_is_used_is_measured_on_the_node(node: str) -> None:
    (queue,) = queues_of("orders", "main")

    def used() -> int:
        with node_pools.node_of(queue).reading() as session:
            size, reusable = partition_sql.read_used_bytes(session)
        return size - reusable

    before = used()
    for _ in range(8):
        publish(
            topic="orders",
            messages=[NewMessage(body=b"x" * 500_000)] * 2,
            batch_id=None,
            actor=ACTOR,
        )
    assert 4_000_000 < used() - before < 40_000_000
    plant(queue, "UPDATE queue_head SET low = head WHERE queue_id = {q}")
    with node_pools.node_of(queue).writing() as session:
        partition_sql.delete_below(session, queue=queue, end=16)
    # the file stays, but new messages fit into it
    assert ENGINE == "mysql" or used() - before < 1_000_000


def test_without_a_capacity_a_server_has_no_guard_and_a_file_has_that_of_its_disk(
    node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits(monkeypatch, 100, 101)  # no disk has so much free
    assert measure() == (1 if ENGINE == "sqlite" else 0)
    assert disk() == ("full" if ENGINE == "sqlite" else "ok")


def test_low_is_an_alarm_and_full_is_another_until_there_is_room(
    node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node_rows.update(name="main", settings={"capacity_gb": 1_000_000}, actor=ACTOR)
    snapshot.refresh()

    def lasting() -> list[str]:
        return sorted(
            Alarm.objects.filter(ended_at=None, name="main").values_list("kind", flat=True)
        )

    seen = []
    for full_below, low_below in ((1, 100), (100, 101), (1, 100), (1, 2)):
        limits(monkeypatch, full_below, low_below)
        measure()
        seen.append((disk(), lasting()))
    assert [state for state, _ in seen] == ["low", "full", "low", "ok"]
    assert [kinds for _, kinds in seen] == [
        ["node_low"],
        ["node_full", "node_low"],
        ["node_low"],
        [],
    ]


def test_a_full_node_stores_nothing_and_says_node_full(
    node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (queue,) = queues_of("orders", "main")
    fill(monkeypatch, "main")
    for given in ({}, {"key": "k"}, {"queue": queue}):
        for batch_id in (None, batch_ids.new()):
            with pytest.raises(NodeUnavailable) as caught:
                send(batch_id=batch_id, **given)
            assert (caught.value.code, caught.value.retriable) == ("node_full", True)
    assert heads() == {queue: 0}
    node_rows.update(name="main", settings={"capacity_gb": None}, actor=ACTOR)
    node_rows.record_disk_state(node_id=snapshot.find_node("main").id, state="ok")
    snapshot.refresh()
    assert send().queue == queue


def test_a_repeat_of_what_a_full_node_has_stored_gets_its_receipt(
    node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues_of("orders", "main")
    batch_id = batch_ids.new()
    first = send(batch_id=batch_id)
    fill(monkeypatch, "main")
    assert send(batch_id=batch_id) == first


def test_messages_without_a_key_go_to_other_nodes_and_other_topics_are_undisturbed(
    make_node: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_node("main")
    make_node("second")
    mine = queues_of("orders", None, 4)
    on_second = {
        one
        for one in mine
        if snapshot.find_queue(one).node_id == snapshot.find_node("second").id
    }
    assert len(on_second) == 2
    fill(monkeypatch, "main")
    assert {send().queue for _ in range(12)} == on_second
    assert {send(key=f"k{index}", queue=min(on_second)).queue for index in range(3)} == {
        min(on_second)
    }
    made = queues_of("fresh", None, 3)
    assert {snapshot.find_queue(one).node_id for one in made} == {
        snapshot.find_node("second").id
    }


def test_no_topic_can_be_made_where_no_node_has_room(
    node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(monkeypatch, "main")
    with pytest.raises(NoWritableQueue, match="with free space"):
        topics.create(name="orders", queues=1, actor=ACTOR)


@pytest.mark.skipif(ENGINE != "sqlite", reason="forces the error that SQLite has for it")
def test_a_file_that_cannot_grow_stores_nothing_and_says_node_full(node: str) -> None:
    (queue,) = queues_of("orders", "main")
    send()
    with node_pools.node_of(queue).writing() as session:
        pages = session._db.execute("PRAGMA page_count").fetchone()[0]  # type: ignore[attr-defined]
        session._db.execute(f"PRAGMA max_page_count = {pages + 2}")  # type: ignore[attr-defined]
    with pytest.raises(CatmqError) as caught:
        publish(
            topic="orders",
            messages=[NewMessage(body=b"x" * 900_000)],
            batch_id=None,
            actor=ACTOR,
        )
    assert (caught.value.code, caught.value.retriable) == ("node_full", True)
    assert heads() == {queue: 1}
    assert send().offset == 1
