"""The snapshot: immutable, incremental, never torn, and there while the database is away."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import OperationalError, connections, transaction

from metadata.cache import loading, snapshot
from metadata.config import config
from metadata.db import changes
from metadata.db.clock import database_now
from metadata.errors import Code, MetadataUnavailable, NotFound
from metadata.groups import groups
from metadata.models import ChangeCounter, ChangeLog, ConsumerGroup, DbNode, Topic
from metadata.nodes import node_rows
from metadata.topics import topic_rows
from metadata.users import api_keys
from tests.support import rows

pytestmark = pytest.mark.usefixtures("metadata_db", "fresh")
LIMIT_S = 20.0


@pytest.fixture
def fresh() -> None:
    """A holder that has loaded nothing yet."""
    snapshot.evict()


@pytest.fixture
def full_loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names every full load."""
    loads: list[str] = []
    everything = loading.load_all

    def counted(alias: str) -> Any:
        loads.append(alias)
        return everything(alias)

    monkeypatch.setattr(loading, "load_all", counted)
    return loads


def away(*args: object) -> Any:
    raise OperationalError(2013, "Lost connection")


def test_a_snapshot_shows_what_exists() -> None:
    queues = rows.world(queues=3)

    now = snapshot.current()

    topic = snapshot.find_topic("orders")
    assert topic.queues == queues
    assert len(topic.layout) == 1024
    assert set(topic.layout) == set(queues)
    assert topic.queue_for("k") in queues
    assert [snapshot.find_queue(one).number for one in queues] == [0, 1, 2]
    group = snapshot.find_group("billing")
    assert [one.topic_id for one in now.subscriptions_of(group.id)] == [topic.id]
    assert snapshot.find_node("n1").id == now.queues[queues[0]].node_id


def test_node_passwords_are_open_in_the_snapshot_and_hidden_in_its_repr() -> None:
    rows.node(password="hunter2")

    node = snapshot.find_node("n1")

    assert node.password == "hunter2"
    assert "hunter2" not in repr(snapshot.current())
    assert "hunter2" not in DbNode.objects.get().password_encrypted


def test_a_node_whose_password_cannot_be_opened_does_not_stop_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rows.world()
    DbNode.objects.update(password_encrypted="gAAAAAforeign")

    assert snapshot.find_topic("orders")
    assert snapshot.find_node("n1").password == ""
    assert "n1" in caplog.text


def test_a_refresh_loads_only_what_changed(full_loads: list[str]) -> None:
    rows.world()
    first = snapshot.current()

    rows.topic("more")
    changed = snapshot.refresh()

    assert changed
    assert full_loads == ["snapshot"]
    now = snapshot.current()
    assert now.topic("more") is not None
    assert first.topic("more") is None
    assert now.topics[first.topics_by_name["orders"].id] is first.topics_by_name["orders"]
    assert not snapshot.refresh()


def test_what_was_deleted_leaves_the_snapshot(full_loads: list[str]) -> None:
    rows.node()
    queues = rows.topic("orders")
    rows.group(topics=())
    _, key = api_keys.create(name="app", rights={"produce": ["*"]}, actor=rows.ME)
    before = snapshot.current()
    assert before.key(api_keys.digest(key)) is not None

    topic_rows.mark_deleted(name="orders", confirm="orders", actor=rows.ME)
    groups.delete(name="billing", confirm="billing", actor=rows.ME)
    api_keys.delete(name="app", confirm="app", actor=rows.ME)
    snapshot.refresh()

    now = snapshot.current()
    assert (now.topic("orders"), now.group("billing"), now.key(api_keys.digest(key))) == (
        None,
        None,
        None,
    )
    assert queues[0] not in now.queues
    assert queues[0] in before.queues  # whoever still holds the old picture sees it whole
    assert len(full_loads) == 1


def test_nothing_in_a_snapshot_can_be_changed() -> None:
    rows.world()
    now: Any = snapshot.current()

    with pytest.raises(TypeError):
        now.topics[1] = None
    with pytest.raises(AttributeError):
        now.version = ("x", 1)


def test_a_topic_made_by_another_process_is_found_at_once() -> None:
    rows.node()
    snapshot.current()

    for number in range(3):
        rows.topic(f"t{number}")
        assert snapshot.find_topic(f"t{number}").name == f"t{number}"


def test_only_ready_topics_are_found() -> None:
    rows.node()
    planned = topic_rows.plan_topic(name="orders", queues=2, actor=rows.ME)

    with pytest.raises(NotFound, match="catmq topic create orders --queues 4") as caught:
        snapshot.find_topic("orders")

    assert caught.value.code == Code.TOPIC_NOT_FOUND
    topic_rows.make_ready(planned.id)
    assert snapshot.find_topic("orders").queues


@pytest.mark.parametrize("spelling", ["Orders", "orders ", "ördérs"])
def test_other_spellings_are_other_names(spelling: str) -> None:
    rows.world()

    with pytest.raises(NotFound):
        snapshot.find_topic(spelling)
    with pytest.raises(NotFound):
        topic_rows.find_topic(name=spelling, actor=rows.ME)


def test_another_incarnation_or_a_smaller_number_loads_everything(
    full_loads: list[str],
) -> None:
    rows.world()
    snapshot.current()

    ChangeCounter.objects.update(n=1)
    snapshot.refresh()
    ChangeCounter.objects.update(incarnation="restored")
    snapshot.refresh()

    assert len(full_loads) == 3
    assert snapshot.current().version == ("restored", 1)


def test_a_former_server_of_several_does_not_take_the_picture_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows.world()
    before = snapshot.current()
    monkeypatch.setattr(snapshot, "is_list", lambda _host: True)
    ChangeCounter.objects.update(n=before.version[1] - 1)

    assert not snapshot.refresh()
    assert snapshot.current() is before
    # The next connection reaches the writer.
    ChangeCounter.objects.update(n=before.version[1])
    snapshot.refresh()
    assert snapshot.current().version == before.version

    # What lasts is a restored database.
    ChangeCounter.objects.update(n=1)
    assert not snapshot.refresh()
    monkeypatch.setattr(snapshot, "FORMER_S", 0.0)
    assert snapshot.refresh()
    assert snapshot.current().version[1] == 1


def test_a_log_that_does_not_reach_back_loads_everything(full_loads: list[str]) -> None:
    rows.node()
    snapshot.current()

    rows.topic("orders")
    ChangeLog.objects.order_by("n").last().delete()  # type: ignore[union-attr]
    snapshot.refresh()

    assert len(full_loads) == 2
    assert snapshot.find_topic("orders")


def test_the_change_log_is_trimmed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "KEPT", 5)
    monkeypatch.setattr(changes, "PRUNE_EVERY", 1)

    for _ in range(20):
        with transaction.atomic():
            changes.record_change("node", 1)

    # the latest is written after the trimming, or before it
    assert ChangeLog.objects.count() in (5, 6)


def test_the_old_picture_stays_while_the_database_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows.world()
    before = snapshot.current()
    monkeypatch.setattr(loading, "read_version", away)

    assert not snapshot.refresh()
    assert snapshot.current() is before
    assert snapshot.find_topic("orders")
    with pytest.raises(MetadataUnavailable):  # it may exist: nobody can tell
        snapshot.find_topic("unknown")

    monkeypatch.undo()
    rows.topic("more")
    snapshot.refresh()
    assert snapshot.find_topic("more")


def test_after_a_failure_lookups_do_not_try_again_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows.world()
    snapshot.current()
    tries: list[int] = []

    def counted(alias: str) -> Any:
        tries.append(1)
        return away()

    monkeypatch.setattr(loading, "read_version", counted)
    for _ in range(10):
        with pytest.raises(MetadataUnavailable):
            snapshot.find_topic("unknown")

    assert len(tries) == 1


def test_without_any_picture_the_first_use_says_unavailable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loading, "read_version", away)

    with pytest.raises(MetadataUnavailable):
        snapshot.current()
    assert snapshot.age_s() == float("inf")


def test_many_lookups_at_once_share_a_load(
    monkeypatch: pytest.MonkeyPatch, in_threads: Callable[..., list[Any]]
) -> None:
    rows.world()
    snapshot.current()
    version, loads = loading.read_version, []

    def counted(alias: str) -> Any:
        loads.append(1)
        return version(alias)

    monkeypatch.setattr(loading, "read_version", counted)

    def miss() -> bool:
        with pytest.raises(NotFound):
            snapshot.find_topic("unknown")
        return True

    assert all(in_threads([miss] * 20))
    assert len(loads) <= 10


def numbers(content: Any) -> set[int]:
    """What write_pairs wrote, as a picture shows it: one number if it is whole."""
    topics_, groups_ = content.topics.values(), content.groups.values()
    return {one.layout_version for one in topics_} | {one.generation for one in groups_}


def write_pairs(topic_id: int, group_id: int, done: threading.Event) -> None:
    """Writes the same number into rows of two tables, again and again, each time in one
    transaction.
    """
    try:
        for number in range(2, 200):
            with transaction.atomic():
                Topic.objects.filter(pk=topic_id).update(layout_version=number)
                ConsumerGroup.objects.filter(pk=group_id).update(generation=number)
                changes.record_change("topic", topic_id)
                changes.record_change("group", group_id)
    finally:
        done.set()


def test_a_snapshot_is_never_torn(in_threads: Callable[..., list[Any]]) -> None:
    """Rows of two tables change together; no picture may show one without the other."""
    rows.world(queues=1)
    ConsumerGroup.objects.update(generation=1)
    ids = (Topic.objects.get().pk, ConsumerGroup.objects.get().pk)
    done = threading.Event()
    seen: list[set[int]] = []

    def read() -> None:
        while not done.is_set():
            snapshot.refresh()
            seen.append(numbers(snapshot.current()))

    def read_everything() -> None:
        while not done.is_set():
            with transaction.atomic(using="snapshot"):
                seen.append(numbers(loading.load_all("snapshot")))

    in_threads([lambda: write_pairs(*ids, done), read, read, read_everything])

    assert [one for one in seen if len(one) > 1] == []
    snapshot.refresh()
    assert numbers(snapshot.current()) == {199}


def test_a_snapshot_never_reads_through_a_connection_of_another_isolation(
    engine: str,
) -> None:
    """Closed connections may be pooled: what `default` gave back must not serve `snapshot`."""
    if engine != "mysql":
        pytest.skip("SQLite reads one picture per transaction, whatever the connection")
    variable = (
        "tx_isolation"
        if getattr(connections["default"], "mysql_is_mariadb", False)
        else "transaction_isolation"
    )
    for alias, expected in (
        ("default", "READ-COMMITTED"),
        ("snapshot", "REPEATABLE-READ"),
    ) * 3:
        with connections[alias].cursor() as cursor:
            cursor.execute(f"SELECT @@{variable}")
            assert cursor.fetchone() == (expected,)
        connections[alias].close()


def test_changes_become_visible_in_order(in_threads: Callable[..., list[Any]]) -> None:
    """No change is missed by asking for what is above the number one has."""
    rows.node()
    snapshot.current()

    def make(number: int) -> None:
        for turn in range(5):
            node_rows.create(
                name=f"x{number}-{turn}",
                engine="sqlite",
                database=str(config.data_dir / "x"),
                actor=rows.ME,
            )
            snapshot.refresh()

    in_threads([lambda number=number: make(number) for number in range(4)])

    snapshot.refresh()
    assert len(snapshot.current().nodes) == 21


def test_the_clock_is_read_while_django_logs_statements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections["default"], "force_debug_cursor", True)
    assert database_now().tzinfo is not None
    assert any(
        "UTC_TIMESTAMP" in one["sql"] or "%Y-" in one["sql"]
        for one in connections["default"].queries
    )
