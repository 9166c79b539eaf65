"""Offsets of a group that are reset to those of another one, on whichever engine is under
test.
"""

from __future__ import annotations

from typing import Any

import pytest

from messagestore.consume import offset_reset
from messagestore.consume.offset_reset import Move, Target
from messagestore.engine.messages import NewMessage
from messagestore.pool import node_pools
from messagestore.produce.publish import publish
from messagestore.tables import reader_sql
from messagestore.topology import subscriptions, topics
from metadata.actors import Actor, command
from metadata.cache import snapshot
from metadata.errors import Forbidden, Invalid, NodeUnavailable, NotFound
from metadata.groups import groups, offset_resets
from metadata.nodes import node_rows
from tests.support import leasing, tampering

ME = command("test")
TO_SHIPPING = Target("group", source_group="shipping")


@pytest.fixture
def queues(node: str) -> list[int]:
    """Topic `orders` with two queues of ten messages, read by `shipping` (at 4 and 9) and
    by `billing`.
    """
    state = topics.create(name="orders", queues=2, actor=ME)
    found = [one.queue.queue for one in state.queues]
    for group in ("shipping", "billing"):
        groups.create(name=group, actor=ME)
        subscriptions.create(group=group, topic="orders", start="earliest", actor=ME)
    snapshot.refresh()
    for queue, offset in zip(found, (4, 9), strict=True):
        messages = [NewMessage(body=b"m", queue=queue) for _ in range(10)]
        publish(topic="orders", messages=messages, batch_id=None, actor=ME)
        clone("shipping", target=Target("offset", offset=offset), queues=[queue])
    return found


def clone(group: str = "billing", **more: Any) -> list[Move]:
    """Resets offsets of `orders`; if nothing else is said to those of `shipping`."""
    return offset_reset.reset(
        **{"group": group, "topic": "orders", "target": TO_SHIPPING, "actor": ME, **more}
    )


def stands(group: str = "billing") -> list[int | None]:
    """The committed offsets of a group, by queue, as a preview reads them."""
    moves = offset_reset.reset(
        group=group, topic="orders", target=Target("latest"), actor=ME, dry_run=True
    )
    return [move.from_offset for move in moves]


def test_a_group_takes_over_the_offsets_that_another_has_at_that_moment(
    queues: list[int],
) -> None:
    expected = [Move(queues[0], 0, 0, 4), Move(queues[1], 1, 0, 9)]
    planned = clone(dry_run=True)
    assert (planned, stands()) == (expected, [0, 0])
    assert [(move.skipped, move.kept) for move in planned] == [(4, False), (9, False)]
    assert clone() == expected
    clone("shipping", target=Target("latest"))
    assert stands() == [4, 9]
    offset_reset.undo(group="billing", actor=ME)
    assert stands() == [0, 0]


def test_only_the_named_queues_move(queues: list[int]) -> None:
    clone(queues=[queues[1]])
    assert stands() == [0, 9]


def test_a_queue_that_the_source_does_not_have_stays_and_is_named(
    queues: list[int],
) -> None:
    group_id = snapshot.find_group("shipping").id
    with node_pools.node_of(queues[0]).writing() as session:
        reader_sql.delete_readers(
            session, group_id=group_id, queues=[queues[0]], below=1 << 60
        )
    clone(target=Target("offset", offset=2))
    for dry_run in (True, False):
        stayed, moved = clone(dry_run=dry_run)
        assert (stayed, stayed.kept, stayed.reset) == (Move(queues[0], 0, 2, 2), True, "")
        assert (moved, moved.kept) == (Move(queues[1], 1, 2, 9), False)
    assert stands() == [2, 9]
    newest = offset_resets.list_moves(group="billing", limit=1, after=None, actor=ME).items[
        0
    ]
    assert (newest.queue, newest.to_offset) == (queues[1], 9)


def test_an_offset_that_retention_went_past_becomes_the_nearest_and_says_so(
    queues: list[int],
) -> None:
    tampering.raise_low(queues[0], 6)
    first, second = clone()
    assert (first.to_offset, first.asked, second.asked) == (6, 4, None)


def test_the_lowest_unfinished_offset_of_a_share_group_counts_also_before_it_is_committed(
    node: str,
) -> None:
    (queue,) = leasing.made()
    one = leasing.member(run_messages=3)
    groups.create(name="billing", actor=ME)
    subscriptions.create(group="billing", topic="orders", start="earliest", actor=ME)
    snapshot.refresh()
    leasing.send(*map(str, range(9)))
    first, second, third = leasing.lease(one)
    assert [leasing.report(one, run, whole=True) for run in (first, third)] == ["ok", "ok"]
    target = Target("group", source_group="mails")
    assert stands("mails") == [0]
    assert clone(target=target) == [Move(queue, 0, 0, 3)]
    leasing.report(one, second, whole=True)
    assert clone(target=target) == [Move(queue, 0, 3, 9)]


def test_a_share_group_can_take_over_the_offsets_of_another_group(
    queues: list[int],
) -> None:
    groups.create(name="mails", mode="share", actor=ME)
    subscriptions.create(group="mails", topic="orders", start="earliest", actor=ME)
    snapshot.refresh()
    clone("mails")
    assert stands("mails") == [4, 9]


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({"target": Target("group")}, Invalid, "requires source_group"),
        (
            {"target": Target("latest", source_group="shipping")},
            Invalid,
            "no further field",
        ),
        ({"target": Target("group", source_group="nobody")}, NotFound, "nobody"),
        ({"target": Target("group", source_group="")}, Invalid, "requires source_group"),
        ({"target": Target("group", source_group="billing")}, Invalid, "name another one"),
        (
            {"target": Target("group", source_group="idle")},
            Invalid,
            "idle does not subscribe to orders",
        ),
        ({"target": Target("group", source_group="news")}, Invalid, "news is broadcasting"),
        ({"topic": None}, Invalid, "name the topic"),
    ],
)
def test_a_source_that_has_no_such_offsets_is_refused_and_nothing_moves(
    queues: list[int], wrong: dict[str, Any], error: type[Exception], words: str
) -> None:
    groups.create(name="idle", actor=ME)
    groups.create(name="news", mode="broadcasting", actor=ME)
    subscriptions.create(group="news", topic="orders", start="earliest", actor=ME)
    for dry_run in (True, False):
        with pytest.raises(error, match=words):
            clone(**wrong, dry_run=dry_run)
    assert stands() == [0, 0]


def test_a_node_that_is_away_is_named_and_nothing_moves(queues: list[int]) -> None:
    node_rows.update(name="main", settings={"state": "offline"}, actor=ME)
    snapshot.refresh()
    with pytest.raises(NodeUnavailable, match="main"):
        clone()
    node_rows.update(name="main", settings={"state": "read_write"}, actor=ME)
    snapshot.refresh()
    assert stands() == [0, 0]


@pytest.mark.parametrize("right", ["consume", "browse"])
def test_who_clones_needs_manage_on_the_group_and_a_right_to_read_the_topic(
    queues: list[int], right: str
) -> None:
    def key(**rights: tuple[str, ...]) -> Actor:
        return Actor(kind="key", name="k", rights=rights)

    with pytest.raises(Forbidden, match="manage on group billing"):
        clone(actor=key(**{right: ("orders", "billing", "shipping")}))
    with pytest.raises(Forbidden, match="consume or browse on topic orders"):
        clone(actor=key(manage=("billing", "orders"), **{right: ("shipping",)}))
    clone(actor=key(manage=("billing",), **{right: ("orders",)}))
    assert stands() == [4, 9]
