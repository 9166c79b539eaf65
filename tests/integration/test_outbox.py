"""The outbox: a message exists if and only if its transaction committed, once, in the order
of its key.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from datetime import time as time_of_day
from decimal import Decimal
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import connections, transaction
from django.db.models import F
from django.test.utils import override_settings

from catmq_client import NewMessage
from catmq_client.contrib.django_outbox import claims, outbox
from catmq_client.contrib.django_outbox.checks import check_databases
from catmq_client.contrib.django_outbox.claims import LeaseLost
from catmq_client.contrib.django_outbox.inbox import once
from catmq_client.contrib.django_outbox.models import OutboxLane, OutboxMessage, OutboxRelay
from catmq_client.contrib.django_outbox.relay import Relay
from catmq_client.contrib.django_outbox.relay_loop import RelayLoop
from catmq_client.errors import (
    AnswerLost,
    ConnectFailed,
    FieldError,
    InvalidRequest,
    OptionError,
    Unauthenticated,
)
from tests.support import outboxes
from tests.support.outboxes import Relays, bodies, commit
from tests.support.simulated import SimulatedBroker
from tests.support.tasking import calls

PUBLISH = "POST .*/messages"


@contextmanager
def second_database() -> Iterator[None]:
    """Name the database a second time for a block; no connection is opened to it."""
    connections.databases["second"] = connections.databases["default"]
    try:
        yield
    finally:
        del connections["second"]
        del connections.databases["second"]


@pytest.fixture
def broker() -> SimulatedBroker:
    made = SimulatedBroker()
    made.create_topic("t", queues=2, nodes=["a", "b"])
    return made


@pytest.fixture
def relays(
    broker: SimulatedBroker, django_db_setup: None, django_db_blocker: Any
) -> Iterator[Relays]:
    with django_db_blocker.unblock():
        outboxes.forget_all()
        yield Relays(broker)
        outboxes.forget_all()
        connections.close_all()


def keys_of_both_queues(broker: SimulatedBroker) -> tuple[str, str]:
    """A key of the first queue, and one of the second."""
    from catmq_client.sending.routing import slot_of

    slots, first = broker.topics.find("t").slots, broker.topics.find("t").queues[0].id
    found = {slots[slot_of(str(n))] == first: str(n) for n in range(20)}
    return found[True], found[False]


def test_a_message_is_sent_if_and_only_if_its_transaction_commits(relays: Relays) -> None:
    commit("kept", key="k")
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        outbox.send("t", "rolled back", key="k")
        raise ZeroDivisionError
    relay = relays.new()
    relays.drain(relay)
    assert bodies(relays.broker) == ["kept"]
    assert not OutboxMessage.objects.exists()


def test_sending_outside_of_a_transaction_is_refused_and_says_what_to_write(
    relays: Relays,
) -> None:
    with pytest.raises(
        outbox.OutsideTransaction, match=r"with transaction\.atomic\(using='default'\)"
    ):
        outbox.send("t", "alone")


def test_a_coroutine_is_told_to_put_the_transaction_into_a_function(
    relays: Relays,
) -> None:
    """A row that is committed by itself would be sent although the business rows are not."""

    async def send() -> None:
        outbox.send("orders", b"x")

    async def send_batch() -> None:
        outbox.send_batch("orders", [NewMessage(b"x")])

    for coroutine in (send, send_batch):
        with pytest.raises(outbox.OutsideTransaction, match="await sync_to_async"):
            asyncio.run(coroutine())
    assert not OutboxMessage.objects.exists()


def test_a_function_with_a_transaction_sends_from_a_coroutine(relays: Relays) -> None:
    def work() -> None:
        with transaction.atomic():
            outbox.send("orders", b"x")
        connections.close_all()

    async def main() -> None:
        await sync_to_async(work)()

    asyncio.run(main())
    assert OutboxMessage.objects.count() == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"key": 7},
        {"key": "k" * 201},
        {"tag": "t" * 101},
        {"headers": {"a": 1}},
        {"body": 1.5},
        {"body": None},
        {"json": 1},
        {"body": None, "json": float("nan")},
    ],
)
def test_what_no_broker_would_take_is_refused_in_its_transaction(
    relays: Relays, wrong: dict[str, Any]
) -> None:
    with pytest.raises(OptionError), transaction.atomic():
        outbox.send("t", **{"body": "b", **wrong})
    assert not OutboxMessage.objects.exists()


def test_everything_of_a_message_arrives(relays: Relays) -> None:
    commit("b", key="", tag="new", headers={"h": "v"}, trace_id="trace")
    with transaction.atomic():
        outbox.send("t", json={"n": 1})
    relays.drain(relays.new())
    first, second = sorted(
        (m for queue in relays.broker.topics.find("t").queues for m in queue.messages),
        key=lambda message: message.key is None,
    )
    assert (first.body, first.key, first.tag, first.trace_id) == (b"b", "", "new", "trace")
    assert (
        first.headers is not None
        and first.headers["h"] == "v"
        and outbox.ID_HEADER in first.headers
    )
    assert second.body == b'{"n":1}'


def test_messages_of_a_key_keep_their_order_over_batches(relays: Relays) -> None:
    wanted = [f"{n}" for n in range(1_200)]
    commit(*wanted, key="k")
    relays.drain(relays.new())
    assert bodies(relays.broker, key="k") == wanted
    assert len(relays.broker.seen(PUBLISH)) == 3  # of 500 at most


def test_a_send_whose_answer_was_lost_is_repeated_with_the_same_id_and_stored_once(
    relays: Relays,
) -> None:
    commit("a", "b", key="k")
    relays.broker.fail(PUBLISH, AnswerLost("cut off"), after=True)
    relay = relays.new()
    assert relay.run_once().delayed_batches == 1
    commit("c", key="k")  # must not overtake, and must not join the batch
    relays.drain(relay)
    sent = [seen.body for seen in relays.broker.seen(PUBLISH)]
    assert sent[0] == sent[1] and sent[2]["batch_id"] != sent[0]["batch_id"]
    assert bodies(relays.broker, key="k") == ["a", "b", "c"]


def test_a_relay_that_dies_after_the_send_is_followed_by_one_that_repeats_it(
    relays: Relays,
) -> None:
    commit("a", "b", key="k")
    dying = relays.new()
    dying.claims.delete_stored = _killed  # type: ignore[method-assign, assignment]
    with pytest.raises(SystemExit):
        dying.run_once()
    dying.claims.release()
    relays.drain(relays.new("second"))
    assert bodies(relays.broker) == ["a", "b"]
    assert len({seen.body["batch_id"] for seen in relays.broker.seen(PUBLISH)}) == 1


def _killed(*_: object) -> int:
    raise SystemExit


def test_an_unsure_batch_is_not_taken_elsewhere_because_its_node_is_away(
    relays: Relays,
) -> None:
    commit("a")
    relays.broker.fail(PUBLISH, AnswerLost("cut off"), after=True)
    relay = relays.new()
    relay.run_once()
    for down in ({"a", "b"}, set[str]()):
        relays.broker.topics.down_nodes = down
        relays.drain(relay)
    assert bodies(relays.broker) == ["a"]
    assert len({seen.body["batch_id"] for seen in relays.broker.seen(PUBLISH)}) == 1


def test_what_has_no_key_leaves_a_closed_queue_and_what_has_one_waits_for_it(
    relays: Relays,
) -> None:
    closed, other = relays.broker.topics.find("t").queues
    here, there = keys_of_both_queues(relays.broker)
    closed.state = "read_only"
    relay = relays.new()
    commit("keyed", key=here)
    commit("elsewhere", key=there)
    commit(*(f"free {n}" for n in range(5)))
    relays.drain(relay)
    assert closed.messages == []
    assert len(other.messages) == 6
    closed.state = "read_write"
    relays.drain(relay)
    assert [message.body for message in closed.messages] == [b"keyed"]


def test_a_message_refused_for_good_holds_back_only_its_own_key(relays: Relays) -> None:
    here, there = keys_of_both_queues(relays.broker)
    allows_more = override_settings(CATMQ_OUTBOX={"MAX_BODY_BYTES": 2 * 1024 * 1024})
    with allows_more, transaction.atomic():
        outbox.send("t", "before", key=here)
        outbox.send("t", b"x" * (1024 * 1024 + 1), key=here)
        outbox.send("t", "behind", key=here)
        outbox.send("t", "other queue", key=there)
        outbox.send("t", "no key")
    relay = relays.new()
    relays.drain(relay)
    assert sorted(bodies(relays.broker)) == ["before", "no key", "other queue"]
    (failed,) = claims.list_failed()
    assert (failed.key, failed.held) == (here, 1)
    assert "too_large" in failed.error or "1 MiB" in failed.error
    commit("later", key=here)
    relays.drain(relay)
    assert claims.count_rows() == (0, 0, 1, 2)
    assert claims.discard([failed.id]) == 1
    relays.drain(relay)
    assert bodies(relays.broker, key=here) == ["before", "behind", "later"]


def test_messages_for_an_unknown_topic_are_marked_and_go_in_order_when_retried(
    relays: Relays,
) -> None:
    commit("1", "2", topic="new", key="k")
    commit("of t")
    relay = relays.new()
    relays.drain(relay)
    commit("3", topic="new", key="k")
    relays.drain(relay)
    assert bodies(relays.broker) == ["of t"]
    assert {one.error.partition(":")[0] for one in claims.list_failed()} == {
        "topic_not_found"
    }
    relays.broker.create_topic("new")
    claims.retry(None)
    relays.drain(relay)
    assert bodies(relays.broker, "new") == ["1", "2", "3"]


def test_a_batch_refused_as_a_whole_is_halved_down_to_the_message_that_is_wrong(
    relays: Relays,
) -> None:
    commit(*"abcdefgh", key="k")
    publish = relays.broker.topics.publish

    def picky(name: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        if any("f" in str(message) for message in [m["body"] for m in body["messages"]]):
            raise InvalidRequest("something is wrong in there")
        return publish(name, body)

    relays.broker.topics.publish = picky  # type: ignore[method-assign]
    relays.drain(relays.new())
    assert bodies(relays.broker) == [*"abcde"]
    assert [one.error for one in claims.list_failed()] == [
        "invalid: something is wrong in there"
    ]


def test_while_no_broker_answers_everything_waits(relays: Relays) -> None:
    commit("a", key="k")
    relays.broker.fail(".*", ConnectFailed("nobody there"), times=3)
    relay = relays.new()
    done = relay.run_once()
    assert (done.sent, done.failed) == (0, 0)
    assert done.error is not None and relay.wait_s() is not None
    while not bodies(relays.broker):
        relays.drain(relay)
    assert bodies(relays.broker) == ["a"]


def test_an_api_key_that_nobody_knows_ends_the_relay_and_blames_no_message(
    relays: Relays,
) -> None:
    commit("a", key="k")
    relays.broker.fail(PUBLISH, Unauthenticated("who is that?"))
    with pytest.raises(Unauthenticated):
        relays.new().run_once()
    assert claims.list_failed() == []


def test_of_two_relays_one_works_and_the_other_takes_over_when_it_is_silent(
    relays: Relays,
) -> None:
    first = relays.new("first")
    second = claims.Claims("second")
    assert second.acquire() == "first"
    OutboxRelay.objects.update(seen_at="2020-01-01 00:00:00+00:00")
    assert second.acquire() == ""
    commit("a")
    with pytest.raises(LeaseLost):
        first.run_once()


def test_a_relay_that_was_frozen_over_its_lease_changes_nothing(relays: Relays) -> None:
    commit("a", "b", key="k")
    relay = relays.new("frozen")
    publish = relays.broker.topics.publish

    def overtaken(name: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """While this request is on its way, the other relay repeats it and has the next one
        sent.
        """
        relays.broker.topics.publish = publish  # type: ignore[method-assign]
        with ThreadPoolExecutor(1) as pool:
            pool.submit(_another_relay, relays, relay).result()
        raise InvalidRequest("refused")

    lock, relays.broker._changed = (
        relays.broker._changed,
        threading.Condition(threading.RLock()),
    )
    relays.broker.topics.publish = overtaken  # type: ignore[method-assign]
    relays.broker._changed = _Open()  # type: ignore[assignment]
    with pytest.raises(LeaseLost):
        relay.run_once()
    relays.broker._changed = lock
    assert bodies(relays.broker) == ["a", "b"]
    assert claims.count_rows() == (0, 0, 0, 0)


class _Open(threading.Condition):
    """A lock that lets everybody in: a request is answered while another one is."""

    def __init__(self) -> None:
        super().__init__()

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *_: object) -> None:
        return None

    def notify_all(self) -> None:
        """Nobody waits."""


def _another_relay(relays: Relays, relay: Any) -> None:
    try:
        with outboxes.lost_lease(relay) as other:
            relays.drain(other)
            OutboxRelay.objects.update(holder="the other")
    finally:
        connections.close_all()


def test_a_row_that_commits_late_with_a_smaller_id_is_sent_all_the_same(
    relays: Relays, engine: str
) -> None:
    if engine == "sqlite":
        pytest.skip("SQLite has one writer at a time: ids are seen in order there")
    late, may_commit = threading.Event(), threading.Event()

    def slow() -> None:
        with transaction.atomic():
            outbox.send("t", "late")
            late.set()
            assert may_commit.wait(10)
        connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        slowly = pool.submit(slow)
        assert late.wait(10)
        commit("early")
        relay = relays.new()
        relays.drain(relay)
        assert bodies(relays.broker) == ["early"]
        may_commit.set()
        slowly.result()
    relays.drain(relay)
    assert sorted(bodies(relays.broker)) == ["early", "late"]


def test_a_second_transaction_with_a_key_waits_for_the_first_to_commit(
    relays: Relays, engine: str
) -> None:
    sent, entered, may_commit = threading.Event(), threading.Event(), threading.Event()
    order: list[str] = []

    def first() -> None:
        with transaction.atomic():
            outbox.send("t", "first", key="k")
            sent.set()
            assert may_commit.wait(10)
            order.append("first")
        connections.close_all()

    def second() -> None:
        assert sent.wait(10)
        entered.set()
        with transaction.atomic():
            outbox.send("t", "second", key="k")
            order.append("second")
        connections.close_all()

    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(first), pool.submit(second)]
        assert entered.wait(10)
        may_commit.set()
        for one in both:
            one.result()
    assert order == ["first", "second"]
    relays.drain(relays.new())
    assert bodies(relays.broker, key="k") == ["first", "second"]


def test_a_message_with_a_time_of_delivery_is_kept_by_the_broker_until_then(
    relays: Relays,
) -> None:
    commit("later", deliver_at=datetime.now(UTC) + timedelta(hours=2))
    relays.drain(relays.new())
    assert (bodies(relays.broker), claims.count_rows()) == ([], (0, 0, 0, 0))
    relays.broker.advance(3 * 3_600)
    relays.broker.messages("t")
    assert bodies(relays.broker) == ["later"]


@pytest.mark.parametrize(
    "wrong", [datetime(2030, 1, 1), datetime.now(UTC) + timedelta(days=367)]
)
def test_a_time_of_delivery_that_no_broker_would_take_is_refused(
    relays: Relays, wrong: datetime
) -> None:
    with pytest.raises(OptionError, match="deliver_at="):
        commit("later", deliver_at=wrong)


def test_a_time_of_delivery_that_passed_while_no_relay_worked_means_now(
    relays: Relays,
) -> None:
    commit("late", deliver_at=datetime.now(UTC) - timedelta(hours=2))
    relays.drain(relays.new())
    (sent,) = relays.broker.seen(PUBLISH)
    assert "deliver_at_ms" not in sent.body["messages"][0]
    assert bodies(relays.broker) == ["late"]


def test_a_time_of_delivery_that_passed_after_the_first_try_is_left_out_of_the_next(
    relays: Relays,
) -> None:
    commit("late", deliver_at=datetime.now(UTC) + timedelta(hours=2))
    relays.broker.fail(PUBLISH, ConnectFailed("away"))
    relay = relays.new()
    relay.run_once()
    # an hour ago
    OutboxMessage.objects.update(deliver_at_ms=time.time_ns() // 1_000_000 - 3_600_000)
    told = FieldError("messages[0].deliver_at_ms", "passed 3600 s ago")
    relays.broker.fail(PUBLISH, InvalidRequest("wrong", status=400, errors=[told]))
    relays.drain(relay)
    assert (bodies(relays.broker), claims.count_rows()) == (["late"], (0, 0, 0, 0))


def test_a_lane_that_is_missing_is_made(relays: Relays, engine: str) -> None:
    OutboxLane.objects.all().delete()  # as a test runner's flush does
    commit("a", key="k")
    # SQLite needs none
    assert OutboxLane.objects.count() == (0 if engine == "sqlite" else 1)


def test_the_command_tells_retries_and_deletes_what_was_refused(
    relays: Relays, capsys: pytest.CaptureFixture[str]
) -> None:
    commit("1", "2", topic="nowhere", key="k")
    relays.drain(relays.new())
    call_command("relay_outbox", "--failed")
    first = capsys.readouterr().out
    assert "nowhere" in first and "topic_not_found" in first
    call_command("relay_outbox", "--status")
    assert capsys.readouterr().out.startswith("waiting 0, being sent 0, refused 2")
    ids = [one.id for one in claims.list_failed()]
    call_command("relay_outbox", "--retry", str(ids[0]))
    call_command("relay_outbox", "--discard", str(ids[1]))
    assert capsys.readouterr().out == "1 messages go again\n1 messages deleted\n"
    assert claims.count_rows() == (1, 0, 0, 0)


def test_the_status_says_how_long_the_oldest_waits_and_may_fail_for_it(
    relays: Relays, capsys: pytest.CaptureFixture[str]
) -> None:
    assert claims.read_oldest_age_s() is None
    commit("1", "2")
    first = OutboxMessage.objects.order_by("id")[:1]
    OutboxMessage.objects.filter(pk__in=[row.pk for row in first]).update(
        created_at=F("created_at") - timedelta(seconds=100)
    )
    call_command("relay_outbox", "--status", "--max-age-s", "3600")
    age_s = int(capsys.readouterr().out.split("the oldest unsent is ")[1].split()[0])
    assert 100 <= age_s < 400
    with pytest.raises(CommandError, match="longer than 60 s: look at the log") as late:
        call_command("relay_outbox", "--status", "--max-age-s", "60")
    assert late.value.returncode == 1
    with pytest.raises(CommandError, match="give --status, too"):
        call_command("relay_outbox", "--max-age-s", "60")


def test_a_batch_is_sent_as_its_messages_would_be_and_keeps_the_order_of_keys(
    relays: Relays,
) -> None:
    with pytest.raises(outbox.OutsideTransaction, match="send_batch"):
        outbox.send_batch("t", [NewMessage("a")])
    with transaction.atomic():
        made = [NewMessage(str(n), key=f"k{n % 3}", tag="new") for n in range(1_200)]
        assert outbox.send_batch("t", made) == 1_200
        assert outbox.send_batch("t", []) == 0
    relay = relays.new()
    relays.drain(relay)
    for key in range(3):
        assert bodies(relays.broker, key=f"k{key}") == [
            str(n) for n in range(key, 1_200, 3)
        ]


@pytest.mark.parametrize(
    "wrong", [{"queue": 1}, {"delay_ms": 5}, {"key": 5}, {"key": "k" * 201}]
)
def test_of_a_batch_with_a_wrong_message_nothing_is_written(
    relays: Relays, wrong: dict[str, Any]
) -> None:
    with pytest.raises(OptionError), transaction.atomic():
        outbox.send_batch("t", [NewMessage("a"), NewMessage("b", **wrong)])
    assert OutboxMessage.objects.count() == 0


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (
            {"body": "x" * (1024 * 1024 + 1)},
            "body has 1048577 bytes: at most 1048576 are allowed",
        ),
        (
            {"headers": {str(n): "v" for n in range(32)}},
            "headers are 33, with that of the outbox: at most 32",
        ),
        ({"headers": {"h": "é" * 4_100}}, r"headers have \d+ bytes together: at most 8192"),
        ({"topic": "a topic"}, "'a topic' is not a valid name"),
        ({"topic": ""}, "'' is not a valid name"),
        ({"topic": "t" * 211}, "is not a valid name"),
        ({"key": "k" * 201}, "key has 201 characters"),
        ({"tag": "t" * 101}, "tag has 101 characters"),
        ({"trace_id": "t" * 101}, "trace_id has 101 characters"),
    ],
)
def test_what_brokers_would_refuse_is_refused_at_the_call(
    relays: Relays, wrong: dict[str, Any], text: str
) -> None:
    given = {"topic": "t", "body": "b"} | wrong
    with transaction.atomic():
        with pytest.raises(OptionError, match=text):
            outbox.send(**given)
        with pytest.raises(OptionError, match=text):
            outbox.send_batch(given.pop("topic"), [NewMessage(**given)])
    assert not OutboxMessage.objects.exists()


def test_limits_may_be_those_of_brokers_that_allow_more(relays: Relays) -> None:
    with (
        override_settings(CATMQ_OUTBOX={"MAX_BODY_BYTES": 2 * 1024 * 1024}),
        transaction.atomic(),
    ):
        outbox.send("t", "x" * (1024 * 1024 + 1))
    assert OutboxMessage.objects.count() == 1


def test_json_may_have_times_decimals_and_uuids_as_django_writes_them(
    relays: Relays,
) -> None:
    value = {
        "at": datetime(2026, 11, 27, tzinfo=UTC),
        "day": date(2026, 1, 2),
        "sums": [Decimal("1.50")],
    }
    with transaction.atomic():
        row = outbox.send(
            "t", json=value | {"id": uuid.UUID(int=7), "plain": (1, None, True)}
        )
        with pytest.raises((OptionError, TypeError)):
            outbox.send("t", json={"x": object()})
        with pytest.raises(OptionError, match="timezone-aware times"):
            outbox.send("t", json={"x": time_of_day(1, tzinfo=UTC)})
    assert json.loads(row.body) == {
        "at": "2026-11-27T00:00:00Z",
        "day": "2026-01-02",
        "sums": ["1.50"],
        "id": "00000000-0000-0000-0000-000000000007",
        "plain": [1, None, True],
    }


def test_any_character_fits(relays: Relays, broker: SimulatedBroker) -> None:
    commit("💶\0", key="💶k", tag="💶", headers={"💶": "\0"}, trace_id="💶")
    relays.drain(relays.new())
    (stored,) = [one for queue in broker.topics.find("t").queues for one in queue.messages]
    assert (stored.key, stored.tag, stored.trace_id) == ("💶k", "💶", "💶")
    assert stored.headers is not None and stored.headers["💶"] == "\0"


def test_text_that_the_database_does_not_take_is_refused_by_name(
    relays: Relays, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection: Any = transaction.get_connection()
    with transaction.atomic():
        monkeypatch.setattr(connection, "vendor", "postgresql")
        with pytest.raises(OptionError, match=r"tag=.*: PostgreSQL takes no NUL character"):
            outbox.send("t", "b", tag="a\0")
        monkeypatch.undo()
        monkeypatch.setitem(connection.settings_dict, "OPTIONS", {"charset": "utf8mb3"})
        with pytest.raises(
            OptionError, match=r'key=.*: the connection .* charset utf8mb3, .*"utf8mb4"'
        ):
            outbox.send("t", "b", key="💶")


def test_topics_and_keys_are_told_apart_by_their_capitals(relays: Relays) -> None:
    commit("1", topic="orders", key="a")
    commit("2", topic="Orders", key="a")
    commit("3", topic="orders", key="A")
    rows = OutboxMessage.objects
    assert [row.body for row in rows.filter(topic="orders", key="a")] == [b"1"]
    rows.filter(key="a").update(state=OutboxMessage.State.FAILED)
    rows.filter(key="A").update(state=OutboxMessage.State.HELD)
    assert [one.held for one in claims.list_failed()] == [0, 0]


class _Elsewhere:
    """A router that sends the apps of the outbox and of tasks to a second database."""

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return (
            "second" if model._meta.app_label in ("catmq_outbox", "catmq_tasks") else None
        )


def test_an_outbox_in_a_second_database_is_warned_of_and_not_written_in_a_transaction_of_the_first(
    relays: Relays,
) -> None:
    assert check_databases() == []
    with second_database(), override_settings(DATABASE_ROUTERS=[_Elsewhere()]):
        (warning,) = check_databases()
        assert warning.id == "catmq_outbox.W001" and "database 'second'" in warning.msg
        with transaction.atomic():
            with pytest.raises(outbox.OutsideTransaction, match="on database 'second'"):
                outbox.send("t", "b")
            with pytest.raises(
                outbox.OutsideTransaction, match="transaction under way is on 'default'"
            ):
                calls.add.enqueue(1)
            with (
                pytest.raises(
                    outbox.OutsideTransaction, match="the inbox writes to database 'second'"
                ),
                once(outboxes.received()),
            ):
                pass


def test_a_wrong_setting_is_named(relays: Relays, settings: Any) -> None:
    settings.CATMQ_OUTBOX = {"URL": "http://127.0.0.1:1"}
    with pytest.raises(ImproperlyConfigured, match="'URL'"):
        commit("a", key="k")
    settings.CATMQ_OUTBOX = {"ORDER": "alphabet"}
    with pytest.raises(ImproperlyConfigured, match="ORDER"):
        commit("a", key="k")


def test_the_migrations_make_what_the_models_say(relays: Relays) -> None:
    call_command("makemigrations", "catmq_outbox", "--check", "--dry-run", verbosity=0)


def test_a_run_that_is_to_end_waits_for_the_lease_of_a_dead_relay_but_not_for_a_live_one(
    relays: Relays,
) -> None:
    commit("a")
    dead, stop = relays.new("dead"), threading.Event()
    said: list[str] = []
    mine = Relay(relays.broker, claims.Claims("mine", lease_s=1.5))
    running = RelayLoop(mine, say=said.append, stop=stop, poll_s=0.1, report_s=1.0)
    assert running.run_once()
    assert (bodies(relays.broker), said) == (["a"], ["sent 1, refused 0, left 0"])
    stop.set()
    assert dead.claims.acquire() == ""
    with pytest.raises(LeaseLost, match="dead"):
        running.run_once()
