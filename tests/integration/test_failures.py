"""Failed messages: copied once, only for their owner, and dead after the last retry."""

from __future__ import annotations

from typing import Any

import pytest

from messagestore.consume import offset_reset
from messagestore.produce import delayed_store
from messagestore.retries import failures
from messagestore.retries.failures import Dead, Failure, Refused
from messagestore.tables import failure_sql
from messagestore.topology import subscriptions
from metadata.cache import snapshot
from metadata.errors import Code, Conflict, NodeUnavailable
from metadata.groups import groups
from metadata.membership import consumers
from metadata.rules.groups import failure_rules
from tests.support import failing
from tests.support.failing import ME, fail, failure_queues, waiting
from tests.support.tampering import plant


@pytest.fixture
def queue(node: str, failure_node: str) -> int:
    """The queue of topic `orders`, which group `billing` reads."""
    return failing.billing(retry_delays_s=[10, 60], retries=2)


def dead_rows() -> list[tuple[Any, ...]]:
    return failing.on_failure_node(
        "SELECT attempts, error_class, error, body FROM dead_message ORDER BY id"
    )


def test_a_failed_message_waits_on_the_failure_node_with_all_it_has(queue: int) -> None:
    failing.send(b"\x00body", key="Kunde ü", tag="neu", headers={"h": "1"}, trace_id="t")
    done = fail(failing.member(), queue, 0)
    (retried,) = done.retried
    assert (retried.queue, retried.offset, retried.attempt) == (queue, 0, 1)
    (copy,) = waiting()
    assert copy.pop("queue_id") in failure_queues()
    assert copy == {
        "attempt": 1,
        "origin": {
            "topic": "orders",
            "queue": queue,
            "offset": 0,
            "first_failed_at_ms": 1_000,
            "error": "ValueError: bad",
        },
        "body": b"\x00body",
        "msg_key": "Kunde ü",
        "tag": "neu",
        "headers": '{"h":"1"}',
        "trace_id": "t",
        "producer": "test",
    }
    stored_at_ms = failing.on_failure_node(
        "SELECT stored_at FROM sent_batch WHERE queue_id = 0"
    )
    assert (done.dead, done.refused, len(stored_at_ms)) == ([], [], 1)


def test_the_delay_grows_and_has_a_jitter_of_its_own(queue: int) -> None:
    failing.send(*(b"%d" % n for n in range(20)))
    done = fail(failing.member(), queue, *range(20))
    now_ms = min(one.due_at_ms for one in done.retried) - 9_000
    delays_ms = {one.due_at_ms - now_ms for one in done.retried}
    assert len(delays_ms) > 10
    # 10 s with a tenth to either side; storing took some time
    assert max(delays_ms) < 13_000 + 5_000


def test_a_report_that_is_repeated_stores_nothing_more(queue: int) -> None:
    failing.send(b"a", b"b")
    who = failing.member()
    first = fail(who, queue, 0, 1)
    again = fail(who, queue, 0, 1, error="TypeError: another one")
    assert again.retried == first.retried
    assert len(waiting()) == 2


def test_a_message_that_fails_again_at_its_next_owner_is_the_same_copy(queue: int) -> None:
    failing.send(b"a")
    dies = failing.member("one")
    first = fail(dies, queue, 0)
    consumers.leave(consumer=dies.id, actor=ME)
    heir = failing.member("two")
    later = failing.report(heir, Failure(queue, heir.owned[queue], 0, "x", 5_000))
    assert later.retried == first.retried
    assert len(waiting()) == 1
    assert fail(dies, queue, 0).refused == [Refused(queue, 0, "fenced")]


def test_a_former_owner_is_refused(queue: int) -> None:
    failing.send(b"a")
    who = failing.member()
    stale = Failure(queue, who.owned[queue] - 1, 0)
    assert failing.report(who, stale).refused == [Refused(queue, 0, "fenced")]
    assert waiting() == []


def test_messages_that_are_not_there_are_missing_and_others_are_stored(queue: int) -> None:
    failing.send(b"a", b"b", b"c")
    who = failing.member()
    done = fail(who, queue, 1, 3, 1_000)
    assert done.refused == [Refused(queue, 3, "missing"), Refused(queue, 1_000, "missing")]
    assert [one.offset for one in done.retried] == [1]


def test_a_queue_that_does_not_exist_is_fenced(queue: int) -> None:
    who = failing.member()
    assert failing.report(who, Failure(999, 1, 0)).refused == [Refused(999, 0, "fenced")]


def test_without_retries_a_message_is_dead_at_once_and_stays_so(queue: int) -> None:
    failing.change(retries=0)
    failing.send(b"a")
    who = failing.member()
    assert fail(who, queue, 0, error="KeyError: 'x'").dead == [Dead(queue, 0, 1)]
    assert fail(who, queue, 0, error="KeyError: 'y'").dead == [Dead(queue, 0, 1)]
    assert dead_rows() == [(1, "KeyError", "KeyError: 'x'", b"a")]


def test_a_message_of_an_ordered_subscription_is_dead_when_it_is_reported(
    queue: int,
) -> None:
    failing.change(ordered=True)
    failing.send(b"a")
    assert fail(failing.member(), queue, 0).dead == [Dead(queue, 0, 1)]


@pytest.mark.parametrize(("before", "after"), [(0, 5), (5, 0)])
def test_changed_settings_change_nothing_of_what_is_stored(
    queue: int, before: int, after: int
) -> None:
    failing.send(b"a")
    who = failing.member()
    failing.change(retries=before)
    first = fail(who, queue, 0)
    failing.change(retries=after)
    again = fail(who, queue, 0)
    assert (again.dead, len(again.retried)) == (first.dead, len(first.retried))
    assert len(waiting()) + len(dead_rows()) == 1


def test_a_reset_makes_failures_new_ones(queue: int) -> None:
    failing.send(b"a")
    fail(failing.member("one"), queue, 0)
    groups.update(name="billing", settings={"stopped": True}, actor=ME)
    offset_reset.reset(
        group="billing", topic="orders", target=offset_reset.Target("earliest"), actor=ME
    )
    groups.update(name="billing", settings={"stopped": False}, actor=ME)
    snapshot.refresh()
    who = failing.Instance("one", group="billing").join()
    who.take()
    assert len(fail(who, queue, 0).retried) == 1
    assert len(waiting()) == 2


def test_an_error_is_cut_and_a_long_class_too(queue: int) -> None:
    failing.change(retries=0)
    failing.send(b"a")
    fail(failing.member(), queue, 0, error="E" * 5_000)
    ((_, error_class, error, _),) = dead_rows()
    assert (len(error_class), len(error)) == (
        failure_rules.MAX_CLASS_CHARS,
        failure_rules.MAX_ERROR_CHARS,
    )


def test_a_broadcasting_group_is_told_to_retry_in_place(queue: int) -> None:
    groups.create(name="news", mode="broadcasting", actor=ME)
    subscriptions.create(group="news", topic="orders", start="earliest", actor=ME)
    failing.send(b"a")
    who = failing.Instance("i1", group="news").join()
    who.take()
    with pytest.raises(Conflict) as caught:
        fail(who, queue, 0)
    assert caught.value.code == Code.NO_FAILURE_TOPIC


def test_without_a_failure_node_members_are_told_to_retry_in_place(node: str) -> None:
    queue = failing.billing()
    failing.send(b"a")
    with pytest.raises(Conflict) as caught:
        fail(failing.member(), queue, 0)
    assert caught.value.code == Code.NO_FAILURE_TOPIC


def test_one_message_that_cannot_be_stored_keeps_no_other_back(
    queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing.send(b"a", b"b", b"c")
    who, store = failing.member(), delayed_store.store

    def unwilling(**call: Any) -> Any:
        if call["messages"][0].message.body == b"b":
            raise Conflict("not this one", code=Code.IN_USE)
        return store(**call)

    monkeypatch.setattr(delayed_store, "store", unwilling)
    done = fail(who, queue, 0, 1, 2)
    assert done.refused == [Refused(queue, 1, "unavailable")]
    assert [one.offset for one in done.retried] == [0, 2]


def test_a_closed_retry_queue_takes_no_dead_letter_and_remembers_none(queue: int) -> None:
    failing.change(retries=0)
    failing.send(b"a")
    who = failing.member()
    for state, refused, dead in (
        ("ro", [Refused(queue, 0, "unavailable")], []),
        ("rw", [], [Dead(queue, 0, 1)]),
    ):
        for retry_queue in failure_queues():
            plant(
                retry_queue,
                f"UPDATE queue_head SET state = '{state}' WHERE queue_id = {{q}}",
            )
        done = fail(who, queue, 0)
        assert (done.refused, done.dead, len(dead_rows())) == (refused, dead, len(dead))


def test_a_failure_node_that_is_away_refuses_for_now(
    queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing.send(b"a")
    who = failing.member()

    def away(*_: object, **__: object) -> Any:
        raise NodeUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(failure_sql, "find_copies", away)
        assert fail(who, queue, 0).refused == [Refused(queue, 0, "unavailable")]
    assert len(fail(who, queue, 0).retried) == 1


def test_many_large_messages_are_copied_part_by_part(
    queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "CHUNK_BYTES", 1_000)
    failing.send(*(b"%03d" % n + b"x" * 400 for n in range(30)))
    done = fail(failing.member(), queue, *range(35))
    assert sorted(one.offset for one in done.retried) == list(range(30))
    assert [one.offset for one in done.refused] == list(range(30, 35))


def test_a_message_that_was_tried_in_place_as_often_as_it_should_is_dead_now(
    queue: int,
) -> None:
    failing.send(b"a")
    who = failing.member()
    last = Failure(queue, who.owned[queue], 0, "ValueError: bad", 1_000, last=True)
    assert failing.report(who, last).dead == [Dead(queue, 0, 1)]
    assert waiting() == []
