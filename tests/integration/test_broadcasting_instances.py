"""Instances of a broadcasting group: listed, moved by hand, limited, and forgotten after a
week.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from catmq_site.background.table import JOBS
from messagestore.consume import broadcast_positions, group_lag, offset_reset
from messagestore.consume.offset_reset import Move, Target
from messagestore.pool import node_pools
from messagestore.tables import reader_sql
from messagestore.topology import subscriptions
from metadata.cache import snapshot
from metadata.errors import Invalid
from metadata.groups import groups
from metadata.membership import broadcast_instances as metadata_instances
from metadata.models import AuditLog, BroadcastInstance
from metadata.nodes import node_rows
from tests.support import rows, tampering
from tests.support.instances import ME, Instance, committed, news, send

WEEK_S = 7 * 86_400


@pytest.fixture
def queues(node: str) -> list[int]:
    """The queues of the broadcasting group `news`."""
    return news()


def gone(name: str, *, seconds: float = WEEK_S + 60) -> Instance:
    """An instance that committed 1 in the first queue it was told, left, and was last seen
    so long ago.
    """
    instance = Instance(name).join()
    instance.take()
    assert instance.commit(min(instance.owned), 1) == "ok"
    instance.leave()
    BroadcastInstance.objects.filter(name=name).update(
        last_seen=rows.long_ago(seconds=seconds)
    )
    return instance


def test_offsets_are_listed_for_each_instance(queues: list[int]) -> None:
    send(queues[0], 3)
    one = Instance("one").join()
    Instance("two").join().leave()
    one.take()
    one.commit(queues[0], 2)

    found = group_lag.group_offsets(group="news", actor=ME)

    assert [
        (row.queue, row.instance, row.owner, row.committed, row.lag) for row in found
    ] == [
        (queues[0], "one", "host-of-one", 2, 1),
        (queues[0], "two", None, 0, 3),
        (queues[1], "one", "host-of-one", 0, 0),
        (queues[1], "two", None, 0, 0),
    ]
    assert found[0].epoch == one.owned[queues[0]]
    assert found[1].lag_ms is not None and found[3].lag_ms == 0


@pytest.mark.one_engine
def test_offsets_of_a_shared_group_name_no_instance(queues: list[int]) -> None:
    groups.create(name="billing", actor=ME)
    subscriptions.create(group="billing", topic="orders", start="earliest", actor=ME)

    assert {row.instance for row in group_lag.group_offsets(group="billing", actor=ME)} == {
        None
    }


def test_offsets_on_a_node_that_is_away_are_unknown_for_every_instance(
    queues: list[int],
) -> None:
    Instance("one").join()
    node_rows.update(name="main", settings={"state": "offline"}, actor=ME)
    snapshot.refresh()

    found = group_lag.group_offsets(group="news", actor=ME)

    assert [(row.instance, row.lag) for row in found] == [("one", None), ("one", None)]


def test_a_reset_moves_one_instance_and_fences_it_alone(queues: list[int]) -> None:
    send(queues[0], 3)
    one, two = Instance("one").join(), Instance("two").join()
    for each in (one, two):
        each.take()
        each.commit(queues[0], 2)
    reset = {
        "group": "news",
        "topic": "orders",
        "queues": [queues[0]],
        "target": Target("earliest"),
    }

    planned = offset_reset.reset(**reset, instance="one", dry_run=True, actor=ME)  # type: ignore[arg-type]
    assert committed(queues[0]) == {"one": 2, "two": 2}
    made = offset_reset.reset(**reset, instance="one", actor=ME)  # type: ignore[arg-type]
    snapshot.refresh()

    assert planned == made == [Move(queues[0], 0, 2, 0)]
    assert committed(queues[0]) == {"one": 0, "two": 2}
    assert one.pull(queues[0]).state == "fenced"
    assert two.pull(queues[0], 2).state == "ok"
    assert one.take() == {queues[0]: ("ok", 0), queues[1]: ("ok", 0)}
    assert AuditLog.objects.get(verb="reset").name == f"news/orders/{queues[0]}/one"


@pytest.mark.one_engine
@pytest.mark.parametrize("instance", [None, "three", ""])
def test_a_reset_like_that_of_a_shared_group_is_refused_naming_the_instances(
    queues: list[int], instance: str | None
) -> None:
    Instance("one").join()
    Instance("two").join().leave()
    groups.update(name="news", settings={"stopped": True}, actor=ME)
    before = [tampering.readers(queue) for queue in queues]

    with pytest.raises(Invalid) as caught:
        offset_reset.reset(
            group="news",
            topic="orders",
            target=Target("latest"),
            instance=instance,
            actor=ME,
        )

    assert caught.value.errors[0].field == "instance"
    assert "one, two" in caught.value.errors[0].message
    assert [tampering.readers(queue) for queue in queues] == before


@pytest.mark.one_engine
def test_a_reset_of_a_shared_group_takes_no_instance(queues: list[int]) -> None:
    groups.create(name="billing", actor=ME)
    subscriptions.create(group="billing", topic="orders", start="earliest", actor=ME)

    with pytest.raises(Invalid) as caught:
        offset_reset.reset(
            group="billing",
            topic="orders",
            target=Target("latest"),
            instance="one",
            actor=ME,
        )

    assert caught.value.errors[0].field == "instance"


def test_an_instance_is_forgotten_a_week_after_it_was_last_seen(queues: list[int]) -> None:
    send(queues[0], 3)
    gone("old")
    gone("young", seconds=WEEK_S - 60)
    Instance("here").join()
    BroadcastInstance.objects.filter(name="here").update(
        last_seen=rows.long_ago(seconds=2 * WEEK_S)
    )

    assert JOBS["prune_instances"].run() == 1
    assert JOBS["prune_instances"].run() == 0

    assert committed(queues[0]) == {"young": 1, "here": 0}
    assert set(BroadcastInstance.objects.values_list("name", flat=True)) == {
        "young",
        "here",
    }
    assert Instance("old").join().take()[queues[0]] == ("ok", 0)


def test_a_node_that_is_away_keeps_an_instance_until_it_is_back(
    queues: list[int], make_node: Callable[..., str]
) -> None:
    send(queues[0], 3)
    gone("old")
    make_node("other")
    node_rows.update(name="other", settings={"state": "offline"}, actor=ME)

    assert broadcast_positions.prune() == 0
    assert BroadcastInstance.objects.count() == 1
    node_rows.update(name="other", settings={"state": "read_write"}, actor=ME)
    assert broadcast_positions.prune() == 1

    assert BroadcastInstance.objects.count() == 0


def test_who_comes_back_before_the_name_is_taken_keeps_its_place(
    queues: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    send(queues[0], 3)
    gone("old")
    part = metadata_instances._release_name
    back = Instance("old")

    def come_back_first(**due: Any) -> None:
        back.join()
        part(**due)

    monkeypatch.setattr(metadata_instances, "_release_name", come_back_first)

    assert broadcast_positions.prune() == 0
    assert back.take()[queues[0]] == ("ok", 1)


def test_who_comes_back_after_the_name_was_taken_begins_anew_in_all_queues(
    queues: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    send(queues[0], 3)
    gone("old")
    delete = reader_sql.delete_instance
    back = Instance("old")

    def come_back_first(*args: Any, **kwargs: Any) -> None:
        back.join()
        assert back.take()[queues[0]] == ("ok", 0)
        assert back.commit(queues[0], 2) == "ok"
        delete(*args, **kwargs)

    monkeypatch.setattr(reader_sql, "delete_instance", come_back_first)

    assert broadcast_positions.prune() == 1
    assert committed(queues[0]) == {"old": 2}
    assert back.pull(queues[0]).state == "ok"


def test_instances_of_a_deleted_group_are_forgotten_at_once(queues: list[int]) -> None:
    Instance("one").join().leave()
    groups.delete(name="news", confirm="news", actor=ME)

    subscriptions.sweep()
    assert broadcast_positions.prune() == 1

    assert BroadcastInstance.objects.count() == 0
    assert [tampering.readers(queue) for queue in queues] == [[], []]


def test_of_more_instances_than_may_be_active_the_later_ones_stand_by(
    queues: list[int],
) -> None:
    groups.update(name="news", settings={"max_active_members": 1}, actor=ME)
    one, two = Instance("one").join(), Instance("two").join()

    assert len(one.take()) == 2
    assert two.take() == {}
    told = two.generation
    one.leave()

    assert groups.describe(name="news", actor=ME).generation > told, (
        "so that it hears of it at once"
    )
    assert len(two.take()) == 2


@pytest.mark.one_engine
def test_an_instance_at_a_denied_address_stands_by(queues: list[int]) -> None:
    groups.update(name="news", settings={"deny_addresses": "10.0.0.0/8"}, actor=ME)

    assert Instance("one").join(address="10.1.2.3").take() == {}
    assert len(Instance("two").join(address="192.0.2.1").take()) == 2


def test_an_instance_that_stood_by_never_takes_an_epoch_twice(queues: list[int]) -> None:
    one = Instance("one").join()
    one.take()
    before = dict(one.owned)

    groups.update(name="news", settings={"deny_addresses": "127.0.0.1"}, actor=ME)
    told = one.beat()
    assert (told.assigned, sorted(told.revoked)) == ((), sorted(queues))
    one.beat()
    groups.update(name="news", settings={"deny_addresses": ""}, actor=ME)

    assert set(one.take().values()) == {("ok", 0)}
    assert all(one.owned[queue] > before[queue] for queue in queues)


def test_places_of_many_instances_are_made_in_one_subscription(queues: list[int]) -> None:
    """More than one transaction may hold."""
    group_id = groups.describe(name="news", actor=ME).id
    names = [str(number) for number in range(reader_sql._INSTANCES_PER_TRANSACTION + 5)]
    with node_pools.node_of(queues[0]).writing() as session:
        whose = {"group_id": group_id, "queues": queues, "instances": names}
        for _ in range(2):
            reader_sql.insert_readers(session, epoch=1, latest=False, **whose)  # type: ignore[arg-type]

    assert sorted(row[1] for row in tampering.readers(queues[1])) == sorted(names)
