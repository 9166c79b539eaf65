"""Dead messages are listed across nodes, brought back once, and forgotten after their days."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from messagestore.consume import offset_reset
from messagestore.consume.offset_reset import Target
from messagestore.inspect import copy_trail, delivery_status
from messagestore.inspect.delivery_status import DeliveryStatus
from messagestore.nodes import registry, upgrade
from messagestore.pool import node_pools
from messagestore.pool.node import Node
from messagestore.produce import delayed_store
from messagestore.retries import dead_letters, redrives
from messagestore.retries.redrives import Redriver
from messagestore.tables import dead_letter_sql, queue_sql
from messagestore.topology import subscriptions
from metadata import redrive_rows
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.cache.snapshot_types import NodeInfo
from metadata.errors import (
    CatmqError,
    Code,
    Conflict,
    Forbidden,
    NotFound,
    NoWritableQueue,
    Unavailable,
)
from tests.support import failing, moving
from tests.support.failing import ME, fail, failure_queues
from tests.support.older_tables import database
from tests.support.tampering import plant


@pytest.fixture
def two_nodes(node: str, make_node: Callable[..., str]) -> None:
    """A normal node, and two for failures."""
    make_node("f1", kind="failure")
    make_node("f2", kind="failure")


@pytest.fixture
def queue(two_nodes: None) -> int:
    """The queue of topic `orders`; group `billing` reads it without retries, and has two
    failure nodes.
    """
    return failing.billing(retries=0)


def kill(queue: int, *bodies: bytes, error: str = "ValueError: no", **more: Any) -> None:
    """Sends messages and lets them die."""
    with node_pools.node_of(queue).reading() as session:
        head = queue_sql.read_heads(session, queues=[queue])[queue]
    failing.send(*bodies, **more)
    who = failing.member()
    done = fail(who, queue, *range(head, head + len(bodies)), error=error)
    assert len(done.dead) == len(bodies), done


def listed(**which: Any) -> list[str]:
    """The bodies of dead messages as pages of two show them."""
    found, after = [], ""
    while True:
        page = dead_letters.page(group="billing", actor=ME, after=after, limit=2, **which)
        found += [
            dead_letters.show(group="billing", message=one.id, actor=ME).body
            for one in page.messages
        ]
        if page.next is None:
            return [body.decode() for body in found]
        after = page.next


def drive(redriver: Redriver | None = None) -> None:
    """Lets the loop run until nothing is left to do."""
    mine = redriver or Redriver()
    for _ in range(100):
        mine.run_once()
        if not redrive_rows.list_running():
            return
    raise AssertionError("it does not end")


def come_back() -> list[bytes]:
    """The bodies of what was redriven to the group: what waits, once it is moved, and
    nothing twice.
    """
    found = []
    for queue in failure_queues():
        moving.make_due(queue)
        while moving.mover(queue).move():
            pass
    for queue in failure_queues():
        found += [(one.body, one.attempt) for one in moving.stored(queue)]
    assert {attempt for _, attempt in found} <= {1}
    return sorted(body for body, _ in found)


def refused(code: Code, kind: type[CatmqError], **which: Any) -> None:
    with pytest.raises(kind) as caught:
        redrives.request(group="billing", actor=which.pop("actor", ME), **which)
    assert caught.value.code == code
    assert redrive_rows.list_redrives(group="billing", actor=ME) == []


def test_pages_of_two_nodes_hold_each_message_once_the_newest_first(queue: int) -> None:
    kill(queue, *(b"%d" % n for n in range(9)))
    died = [
        one.died_at_ms
        for one in dead_letters.page(
            group="billing", actor=ME, after="", limit=100
        ).messages
    ]
    assert died == sorted(died, reverse=True)
    assert sorted(listed()) == [str(n) for n in range(9)]


def test_lists_and_counts_by_kind_of_error(queue: int) -> None:
    kill(queue, b"a", b"b", error="ValueError: 1")
    kill(queue, b"c", error="It's \\ odd: 2")
    assert sorted(listed(error="ValueError")) == ["a", "b"]
    assert listed(error="It's \\ odd", topic="orders") == ["c"]
    counts = dead_letters.summary(group="billing", actor=ME).errors
    assert [(one.topic, one.error_class, one.count) for one in counts] == [
        ("orders", "ValueError", 2),
        ("orders", "It's \\ odd", 1),
    ]


def test_a_node_that_is_away_is_named_and_the_others_are_listed(
    queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill(queue, *(b"%d" % n for n in range(32)))  # a few might all be on one node
    away = snapshot.find_node("f1").id
    real = delayed_store.prepare

    def prepare(node: Node) -> None:
        if node.info.id == away:
            raise Unavailable("away")
        real(node)

    monkeypatch.setattr(delayed_store, "prepare", prepare)
    page = dead_letters.page(group="billing", actor=ME, after="", limit=100)
    assert page.away == ("f1",)
    assert 0 < len(page.messages) < 32


def test_one_some_or_all_come_back_to_the_group_with_fresh_retries(queue: int) -> None:
    kill(queue, b"a", b"b", b"c", error="ValueError: 1")
    kill(queue, b"d", error="KeyError: 2")
    (one,) = (
        found.id
        for found in dead_letters.page(
            group="billing", actor=ME, after="", limit=9, error="KeyError"
        ).messages
    )
    made = redrives.request(group="billing", to="group", ids=[one], actor=ME)
    assert made.total == 1
    drive()
    assert (come_back(), sorted(listed())) == ([b"d"], ["a", "b", "c"])
    redrives.request(group="billing", to="group", everything=True, actor=ME)
    drive()
    assert (come_back(), listed()) == ([b"a", b"b", b"c", b"d"], [])
    done = redrive_rows.list_redrives(group="billing", actor=ME)
    assert [(run.state, run.redriven, run.skipped) for run in done] == [
        ("done", 3, 0),
        ("done", 1, 0),
    ]


def test_to_the_topic_they_are_sent_anew(queue: int) -> None:
    kill(queue, b"a", b"b")
    redrives.request(
        group="billing", to="topic", topic="orders", error="ValueError", actor=ME
    )
    drive()
    sent = moving.stored(queue)[2:]
    assert sorted((one.body, one.attempt) for one in sent) == [(b"a", 0), (b"b", 0)]


@pytest.mark.parametrize("to", ["group", "topic"])
@pytest.mark.parametrize(
    ("module", "step"),
    [
        (dead_letter_sql, "list_dead_positions"),
        (dead_letter_sql, "select_dead"),
        (delayed_store, "store"),
        (redrives, "publish"),
        (dead_letter_sql, "delete_dead"),
        (redrive_rows, "advance"),
        (redrive_rows, "finish_redrive"),
    ],
)
@pytest.mark.usefixtures("two_nodes")
def test_a_redrive_that_dies_goes_on_and_brings_each_message_back_once(
    module: Any, step: str, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = failing.billing(retries=0)
    kill(queue, b"a", b"b", b"c")
    asked = redrives.request(group="billing", to=to, everything=True, actor=ME)
    with monkeypatch.context() as patch:
        patch.setattr(
            module,
            step,
            failing.stop_at(
                2 if step in ("store", "publish") else 1, getattr(module, step)
            ),
        )
        with suppress(failing.Stopped):
            drive()
    drive()
    assert listed() == []
    done = redrive_rows.find_redrive(group="billing", redrive=asked.id, actor=ME)
    assert (done.state, done.redriven, done.deleting) == ("done", 3, {})
    back = (
        come_back()
        if to == "group"
        else sorted(one.body for one in moving.stored(queue)[3:])
    )
    assert back == [b"a", b"b", b"c"]


def test_a_stopped_redrive_goes_no_further(queue: int) -> None:
    kill(queue, *(b"%d" % n for n in range(6)))
    made = redrives.request(group="billing", to="group", everything=True, rate=2, actor=ME)
    time = iter(range(1_000))
    redriver = Redriver(clock=lambda: next(time) / 10)
    while redriver.run_once() == 0:
        pass
    stopped = redrive_rows.stop_redrive(group="billing", redrive=made.id, actor=ME)
    assert (stopped.state, 0 < stopped.redriven < 6) == ("stopped", True)
    left = len(listed())
    assert (redriver.run_once(), len(listed())) == (0, left)
    assert left == 6 - stopped.redriven
    redrives.request(group="billing", to="group", everything=True, actor=ME)
    drive()
    assert len(come_back()) == 6


def test_the_rate_limits_a_pass(queue: int) -> None:
    kill(queue, *(b"%d" % n for n in range(30)))
    redrives.request(group="billing", to="group", everything=True, rate=4, actor=ME)
    now = [0.0]
    redriver = Redriver(clock=lambda: now[0])
    assert redriver.run_once() == 4  # the first pass: a second's share
    now[0] = 0.5
    assert redriver.run_once() == 2
    now[0] = 60.0
    assert redriver.run_once() == 4 * redrives.MOST_S  # a long pause is not made up for


def test_what_died_after_the_request_does_not_belong_to_it(queue: int) -> None:
    kill(queue, b"a")
    redrives.request(group="billing", to="group", everything=True, actor=ME)
    kill(queue, b"late")
    drive()
    assert (come_back(), listed()) == ([b"a"], ["late"])


def test_only_one_redrive_of_a_group_runs(queue: int) -> None:
    kill(queue, b"a")
    redrives.request(group="billing", to="group", everything=True, actor=ME)
    with pytest.raises(Conflict) as caught:
        redrives.request(group="billing", to="topic", everything=True, actor=ME)
    assert caught.value.code == Code.IN_USE


def test_a_redrive_that_cannot_be_is_refused_and_nothing_is_begun(queue: int) -> None:
    kill(queue, b"a")
    reader = Actor(kind="key", name="k", rights={"manage": ("*",)})
    refused(Code.FORBIDDEN, Forbidden, to="topic", everything=True, actor=reader)
    for which in (
        {},
        {"ids": ["dead-1-1"], "everything": True},
        {"ids": ["7-1"]},
        {"everything": True, "rate": 0},
    ):
        refused(Code.INVALID, CatmqError, to="group", **which)
    refused(Code.TOPIC_NOT_FOUND, NotFound, to="group", topic="nowhere")
    close_nodes()
    refused(Code.NO_WRITABLE_QUEUE, NoWritableQueue, to="topic", everything=True)
    assert listed() == ["a"]


def close_nodes() -> None:
    registry.update(name="main", settings={"state": "read_only"}, actor=ME)
    snapshot.refresh()


def test_a_topic_that_closes_meanwhile_holds_a_redrive_up_and_it_goes_on_later(
    queue: int,
) -> None:
    kill(queue, b"a", b"b")
    redrives.request(group="billing", to="topic", everything=True, actor=ME)
    close_nodes()
    Redriver().run_once()
    (waits,) = redrive_rows.list_running()
    assert (waits.redriven, bool(waits.detail), len(listed())) == (0, True, 2)
    registry.update(name="main", settings={"state": "read_write"}, actor=ME)
    snapshot.refresh()
    drive()
    assert (len(moving.stored(queue)), listed()) == (4, [])


def test_after_unsubscribing_the_dead_stay_and_go_back_to_the_topic(queue: int) -> None:
    kill(queue, b"a")
    subscriptions.delete(group="billing", topic="orders", actor=ME)
    snapshot.refresh()
    refused(Code.SUBSCRIPTION_NOT_FOUND, NotFound, to="group", everything=True)
    redrives.request(group="billing", to="topic", everything=True, actor=ME)
    drive()
    assert [one.body for one in moving.stored(queue)] == [b"a", b"a"]


def test_the_dead_are_forgotten_after_the_days_of_their_subscription(queue: int) -> None:
    kill(queue, *(b"%d" % n for n in range(6)))
    for place in failure_queues():
        sqlite = node_pools.node_of(place).info.engine == "sqlite"
        older = "died_at - 172800000" if sqlite else "died_at - INTERVAL 2 DAY"
        failing.tampering.plant(
            place, f"UPDATE dead_message SET died_at = {older} WHERE id <= 2"
        )
    assert dead_letters.expire() == 0
    failing.change(dead_days=1)
    assert dead_letters.expire(chunk=1) >= 2
    assert len(listed()) <= 4


def retry_nodes() -> list[NodeInfo]:
    nodes = snapshot.current().nodes.values()
    return [info for info in nodes if info.name in {"f1", "f2"}]


def drop_key_index() -> None:
    """Leave the tables of both retry nodes as an earlier release has created them."""
    for info in retry_nodes():
        with database(info).cursor() as cursor:
            table = "" if info.engine == "sqlite" else " ON dead_message"
            cursor.execute(f"DROP INDEX dead_message_key{table}")


@pytest.mark.parametrize("has_index", [True, False])
def test_dead_letters_of_a_key_are_found_by_scans_that_end(
    queue: int, has_index: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each page looks at two of each node: of the key, or of all where a node of an earlier
    release lacks the index, so most pages are empty then. None is left out or shown twice.
    """
    for number in range(9):
        kill(queue, b"%d" % number, key="b" if number % 4 else "a")
    kill(queue, b"blank", key="a ")  # a trailing blank makes another key
    kill(queue, b"other", key="a", error="TypeError: no")
    if not has_index:
        drop_key_index()
    monkeypatch.setattr(dead_letters, "SCAN", 2)
    found = listed(key="a")
    assert sorted(found) == ["0", "4", "8", "other"]
    assert found == [body for body in listed() if body in found]
    assert sorted(listed(key="a", topic="orders", error="ValueError")) == ["0", "4", "8"]
    assert listed(key="a ") == ["blank"]
    assert listed(key="A") == listed(key="b", error="TypeError") == []


def test_a_key_is_found_behind_any_number_of_other_dead_letters_in_one_page(
    queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill(queue, b"wanted", key="a")
    kill(queue, *(b"%d" % number for number in range(8)), key="b")
    monkeypatch.setattr(dead_letters, "SCAN", 2)
    page = dead_letters.page(group="billing", actor=ME, key="a", after="", limit=10)
    assert [one.key for one in page.messages] == ["a"] and page.next is None


def test_nodes_of_an_earlier_release_get_the_index_of_keys(queue: int) -> None:
    kill(queue, *(b"%d" % number for number in range(4)), key="a")
    drop_key_index()
    for info in retry_nodes():
        upgraded = upgrade.upgrade_node(info, pause_ms=0)
        assert [change.step.index_name for change in upgraded.changes] == [
            "dead_message_key"
        ]
        assert upgraded.problem == ""
        assert upgrade.upgrade_node(info, pause_ms=0).changes == ()
    assert sorted(listed(key="a")) == ["0", "1", "2", "3"]


def status(queue: int, offset: int) -> DeliveryStatus:
    """The status of a message of topic `orders` in group `billing`."""
    (message,) = [one for one in moving.stored(queue) if one.offset == offset]
    (found,) = delivery_status.trace_message(
        topic="orders",
        queue=queue,
        offset=offset,
        stored_at_ms=message.stored_at_ms,
        actor=ME,
        message=message,
    )
    return found


def commit(queue: int, offset: int) -> None:
    plant(queue, f"UPDATE reader SET committed = {offset} WHERE queue_id = {queue}")


def test_a_dead_letter_is_seen_however_many_died_after_it(
    queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill(queue, b"a", *(b"%d" % n for n in range(9)))
    commit(queue, 10)
    monkeypatch.setattr(dead_letters, "SCAN", 2)
    monkeypatch.setattr(delivery_status, "MAX_SEARCHED_COPIES", 2)
    assert (status(queue, 0).state, status(queue, 0).partly) == ("dead", False)
    # Without a record, when it is older than two days, the dead letters are searched.
    monkeypatch.setattr(copy_trail, "_is_recorded", lambda stored_at_ms: False)
    monkeypatch.setattr(copy_trail._Walk, "_reset_counts", lambda walk, queue: ())
    assert status(queue, 0).state == "dead"
    monkeypatch.setattr(delivery_status, "MOST_PAGES", 0)
    assert (status(queue, 0).state, status(queue, 0).partly) == ("read", True), (
        "never surely handled"
    )


def test_a_death_and_its_redrive_stay_in_the_life_of_a_message(queue: int) -> None:
    kill(queue, b"a")
    failing.send(b"b")
    commit(queue, 2)
    assert (status(queue, 1).state, status(queue, 1).partly) == ("read", False)
    redrives.request(group="billing", to="group", everything=True, actor=ME)
    drive()
    waits = status(queue, 0)
    assert (waits.state, len(waits.redrives)) == ("waiting", 1)
    assert come_back() == [b"a"]
    assert status(queue, 0).state == "waiting", "in the retry topic, and not read"
    for retries in failure_queues():
        commit(retries, 1)
    handled = status(queue, 0)
    assert (handled.state, handled.partly, len(handled.redrives)) == ("read", False, 1)


def test_a_deleted_dead_letter_is_not_handled(queue: int) -> None:
    kill(queue, b"a")
    commit(queue, 1)
    dead_letters.drop(group="billing", actor=ME, everything=True)
    assert status(queue, 0).state == "removed"


def test_a_message_that_a_filter_or_a_reset_passed_over_is_not_handled(queue: int) -> None:
    failing.send(b"a")
    failing.change(tags="new")
    commit(queue, 1)
    assert status(queue, 0).skipped_by == "filter"
    failing.change(tags="")
    assert status(queue, 0).state == "read"
    commit(queue, 0)
    offset_reset.reset(group="billing", target=Target(to="latest"), actor=ME)
    assert status(queue, 0).skipped_by == "reset"
