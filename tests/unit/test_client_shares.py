"""Members of a share group: which messages they get, and what becomes of them."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from catmq_client import Consumer, Producer, ShareConsumer, ShareMessage
from catmq_client.errors import CommitFailed, Conflict, NotFound, OptionError, Unavailable
from catmq_client.testing import FakeBroker
from tests.support.shares import (
    LIMIT_S,
    Make,
    Running,
    committed,
    numbers,
    send,
    shared_topic,
    sharing,
)
from tests.support.waiting import until

LEASE_S = 30
DONE = "/share/done$"


@pytest.fixture
def broker() -> FakeBroker:
    return shared_topic()


@pytest.fixture
def make(broker: FakeBroker) -> Iterator[Make]:
    with sharing(broker) as made:
        yield made


def test_a_message_is_accepted_when_the_next_is_asked_for(
    broker: FakeBroker, make: Make
) -> None:
    send(broker, 3)
    one = make(consumer_timeout_ms=100)
    assert numbers([next(one), next(one)]) == [0, 1]
    one.close()
    assert committed(broker) == 1, "the last one was not accepted"
    again = make(consumer_timeout_ms=300)
    assert sorted((int(m.body), m.deliveries) for m in again) == [(1, 2), (2, 1)]
    assert committed(broker) == 3 and not broker.runs("g")


def test_what_waited_when_a_member_closed_counts_as_not_delivered(
    broker: FakeBroker, make: Make
) -> None:
    send(broker, 8)
    for _ in range(6):  # more often than a message may be delivered
        one = make(prefetch=8)
        assert one.poll(1, timeout_s=LIMIT_S)
        one.commit()
        one.close()
    with make(consumer_timeout_ms=300) as last:
        assert {message.deliveries for message in last} == {1}


def test_poll_accepts_the_batch_before_and_commit_accepts_now(
    broker: FakeBroker, make: Make
) -> None:
    send(broker, 30)
    one = make()
    first = one.poll(5, timeout_s=LIMIT_S)
    second = one.poll(5, timeout_s=LIMIT_S)
    assert all(not message.is_held for message in first) and all(
        message.is_held for message in second
    )
    one.commit()
    assert not any(message.is_held for message in second)
    assert committed(broker) >= len(first) + len(second)


def test_finished_runs_are_reported_with_the_next_lease(
    broker: FakeBroker, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Reports of their own would come after the end of the test.
    monkeypatch.setattr("catmq_client.sharing.leases.LINGER_S", 600.0)
    send(broker, 60)
    one = make(prefetch=10)
    got: list[ShareMessage] = []
    while len(got) < 60:
        got += one.poll(10, timeout_s=LIMIT_S)
    assert broker.wait_until(lambda: committed(broker) > 0)
    # Of messages, not the begins of leases that count as deliveries only then.
    alone = [
        report
        for seen in broker.seen(DONE)
        for report in seen.body["done"]
        if report.get("finished")
    ]
    carried = [seen for seen in broker.seen("/share$") if seen.body.get("done")]
    assert (alone, bool(carried)) == ([], True)
    assert all(seen.body["wait_ms"] == 0 for seen in carried), "their results are awaited"


def test_without_auto_accept_only_accept_counts(broker: FakeBroker, make: Make) -> None:
    send(broker, 4)
    one = make(auto_accept=False)
    got = [*one.poll(4, timeout_s=LIMIT_S)]
    while len(got) < 4:
        got += one.poll(4, timeout_s=LIMIT_S)
    assert got[2].accept() and not got[2].accept()
    one.commit()
    (run,) = {id(run): run for run in broker.runs("g")}.values()
    assert run.left == [0, 1, 3] and committed(broker) == 0
    for message in got:
        message.accept()
    one.commit()
    assert committed(broker) == 4


def test_a_released_message_is_delivered_at_once_to_anybody(
    broker: FakeBroker, make: Make
) -> None:
    send(broker, 1)
    one, two = make(auto_accept=False), make(auto_accept=False)
    (message,) = one.poll(timeout_s=LIMIT_S)
    assert two.poll(timeout_s=0.1) == []
    assert message.release() and not message.is_held and not message.accept()
    again = one.poll(timeout_s=0.2) + two.poll(timeout_s=0.2)
    assert [(one.text, one.deliveries, one.attempt) for one in again] == [("0", 2, 0)]


def test_a_message_released_with_a_delay_comes_from_the_retry_topic(
    broker: FakeBroker, make: Make
) -> None:
    send(broker, 1)
    one = make()
    (message,) = one.poll(timeout_s=LIMIT_S)
    assert message.release(delay_s=60) and not message.is_held
    one.commit()
    assert committed(broker) == 1
    (waiting,) = broker.waiting("g")
    assert waiting.attempt == 1
    broker.advance(59)
    assert one.poll(timeout_s=0.1) == []
    broker.advance(1)
    (again,) = one.poll(timeout_s=LIMIT_S)
    assert (again.topic, again.text, again.attempt, again.deliveries) == ("t", "0", 1, 1)
    assert again.origin is not None and again.origin.offset == message.offset


def test_a_rejected_message_is_a_dead_letter(broker: FakeBroker, make: Make) -> None:
    send(broker, 1)
    one = make()
    (message,) = one.poll(timeout_s=LIMIT_S)
    assert message.reject(ValueError("no such account"))
    one.commit()
    (dead,) = broker.dead("g")
    assert (dead.error, dead.attempt) == ("ValueError: no such account", 1)
    assert committed(broker) == 1 and not broker.waiting("g")


def test_a_failed_message_comes_again_after_the_delay_of_its_subscription(
    broker: FakeBroker, make: Make
) -> None:
    send(broker, 1)
    one = make()
    (message,) = one.poll(timeout_s=LIMIT_S)
    one.fail(message, "no such account")
    one.commit()
    assert broker.waiting("g")[0].error == "no such account"
    broker.advance(10)
    (again,) = one.poll(timeout_s=LIMIT_S)
    assert again.attempt == 1


def test_two_members_of_one_queue_share_it_and_see_everything_once(
    broker: FakeBroker, make: Make
) -> None:
    members = [Running(make(), lambda m: time.sleep(0.002), threads=2) for _ in range(2)]
    with members[0], members[1]:
        until(lambda: len(broker.seen("/consumers$")) == 2)
        send(broker, 400)
        until(lambda: committed(broker) == 400)
    seen = Counter(int(m.body) for one in members for m in one.got)
    assert seen == Counter(range(400))
    assert all(len(one.got) > 100 for one in members), "the work is cut fairly"


def test_after_a_lease_somebody_else_gets_the_messages(
    broker: FakeBroker, make: Make
) -> None:
    send(broker, 1)
    one, two = make(name="one", auto_accept=False), make(auto_accept=False)
    (message,) = one.poll(timeout_s=LIMIT_S)
    assert 0 < message.lease_left_s <= LEASE_S
    broker.cut_off("one")
    broker.advance(LEASE_S)
    (again,) = two.poll(timeout_s=LIMIT_S)
    assert (again.text, again.deliveries) == ("0", 2)
    assert message.accept(), "it cannot know yet"
    broker.heal()
    with pytest.raises(CommitFailed, match="another member may have got the messages"):
        one.commit()
    assert not message.is_held and message.lease_left_s == 0 and not message.accept()
    again.accept()
    two.commit()
    assert committed(broker) == 1


def test_a_late_accept_counts_while_nobody_else_has_the_message(
    broker: FakeBroker, make: Make
) -> None:
    send(broker, 1)
    one = make(auto_accept=False)
    (message,) = one.poll(timeout_s=LIMIT_S)
    broker.advance(LEASE_S * 10)
    message.accept()
    one.commit()
    assert committed(broker) == 1


def test_the_lease_is_renewed_while_the_process_works(make: Make) -> None:
    broker = FakeBroker()
    broker.create_topic("t", queues=1)
    broker.subscribe("g", "t", mode="share", lease_ms=500)
    send(broker, 2)
    with sharing(broker) as make:
        one, two = make(auto_accept=False), make(auto_accept=False)
        (held,) = one.poll(1, timeout_s=LIMIT_S)
        others = two.poll(timeout_s=1.0)
        assert held.is_held and held.lease_left_s > 0
        assert [m.text for m in others] in ([], ["1"]), (
            "the held one stops nobody, and nobody gets it"
        )
        assert held.accept()
        one.commit()


def test_a_message_at_work_for_too_long_goes_back() -> None:
    broker = FakeBroker()
    broker.create_topic("t", queues=1)
    broker.subscribe("g", "t", mode="share", lease_ms=300)
    send(broker, 1)
    with sharing(broker) as make:
        one, two = make(auto_accept=False, max_processing_ms=1_000), make(auto_accept=False)
        (message,) = one.poll(timeout_s=LIMIT_S)
        begun = time.monotonic()
        (again,) = two.poll(timeout_s=LIMIT_S)
        assert time.monotonic() - begun > 0.8, "its lease was renewed before"
        assert (again.offset, again.deliveries) == (message.offset, 2)
        assert not message.is_held and not message.accept()


def test_the_application_may_keep_a_message_for_longer(
    broker: FakeBroker, make: Make
) -> None:
    send(broker, 1)
    one, two = make(auto_accept=False, max_processing_ms=100), make(auto_accept=False)
    (message,) = one.poll(timeout_s=LIMIT_S)
    assert message.renew(60)
    until(
        lambda: any(
            "renew" in one for seen in broker.seen(DONE) for one in seen.body["done"]
        )
    )
    assert two.poll(timeout_s=0.4) == []
    assert message.accept()
    with pytest.raises(OptionError, match="seconds=0"):
        message.renew(0)


def test_what_a_starved_member_never_began_was_not_delivered() -> None:
    """It has what it fetched for several leases, and does not come to begin with it."""
    broker = FakeBroker()
    broker.create_topic("t", queues=1)
    broker.subscribe("g", "t", mode="share", lease_ms=500, max_deliveries=2)
    send(broker, 2)
    with sharing(broker) as make:
        for life in range(4):  # more often than a message may be delivered
            starved = make(name=f"m{life}", prefetch=2)
            # its threads fetch, and the application gets no time to take anything
            starved._start_or_resume()
            starved._state.away_since = time.monotonic()
            until(
                lambda: any(run.owner.startswith(f"m{life}.") for run in broker.runs("g"))  # noqa: B023
            )
            until(lambda: all(run.deliveries == 0 for run in broker.runs("g")))
            broker.cut_off(f"m{life}")
            broker.advance(1)
        assert not broker.dead("g")
        got = [*make(consumer_timeout_ms=500)]
    assert sorted((int(message.body), message.deliveries) for message in got) == [
        (0, 1),
        (1, 1),
    ]


def test_each_life_that_a_message_ends_counts(broker: FakeBroker, make: Make) -> None:
    send(broker, 1)
    seen = []
    for life in range(5):
        (message,) = make(name=f"m{life}", auto_accept=False).poll(timeout_s=LIMIT_S)
        seen.append(message.deliveries)
        broker.cut_off(f"m{life}")
        broker.advance(LEASE_S + 1)
    assert seen == [1, 2, 3, 4, 5]
    assert make(name="last").poll(timeout_s=0.2) == []
    (dead,) = broker.dead("g")
    assert dead.error == "LeaseLost: 5 leases ended without a result"


def test_a_message_that_comes_again_begins_only_when_the_broker_knows(
    broker: FakeBroker, make: Make
) -> None:
    send(broker, 2)
    one, two = make(name="one", auto_accept=False), make(auto_accept=False)
    assert len(one.poll(timeout_s=LIMIT_S)) == 2
    broker.cut_off("one")
    broker.advance(LEASE_S)
    broker.fail(DONE, Unavailable("no"), times=10_000)
    assert two.poll(timeout_s=0.5) == []
    assert [run.deliveries for run in broker.runs("g")] == [1]
    broker.heal()
    broker.cut_off("one")
    again = two.poll(timeout_s=LIMIT_S)
    assert sorted((int(message.body), message.deliveries) for message in again) == [
        (0, 2),
        (1, 2),
    ]
    assert [run.deliveries for run in broker.runs("g")] == [2]


def test_a_handler_begins_with_what_comes_again_when_the_broker_knows(
    broker: FakeBroker, make: Make
) -> None:
    send(broker, 3)
    one = make(name="one", auto_accept=False)
    assert one.poll(3, timeout_s=LIMIT_S)
    broker.cut_off("one")
    broker.advance(LEASE_S)
    with Running(make(name="two"), lambda m: None, threads=2) as running:
        until(lambda: committed(broker) == 3)
    assert {message.deliveries for message in running.got} == {2}
    began = [
        one for seen in broker.seen(DONE) for one in seen.body["done"] if one.get("begun")
    ]
    assert began and all(one["delivery"] == 2 for one in began)


def test_what_waits_behind_a_hanging_message_goes_to_others() -> None:
    broker = FakeBroker()
    broker.create_topic("t", queues=1)
    broker.subscribe("g", "t", mode="share", lease_ms=500)
    send(broker, 10)
    with sharing(broker) as make:
        hanging, working = make(auto_accept=False, prefetch=5), make()
        (held,) = hanging.poll(1, timeout_s=LIMIT_S)
        until(lambda: hanging._state.in_flight() == 6)
        until(lambda: hanging._state.in_flight() == 1)
        hanging._state.wait(0.7)
        assert {run.deliveries for run in broker.runs("g")} == {0, 1}, (
            "it did not take them back"
        )
        got: list[int] = []
        until(lambda: got.extend(numbers(working.poll(timeout_s=0.1))) or len(got) == 9)
        assert sorted([*got, int(held.body)]) == [*range(10)]
        assert held.accept()


def test_a_busy_handler_lets_others_have_what_waits_behind_it() -> None:
    broker = FakeBroker()
    broker.create_topic("t", queues=1)
    broker.subscribe("g", "t", mode="share", lease_ms=500)
    send(broker, 9)
    free = threading.Event()
    handler = lambda m: free.wait(LIMIT_S)  # noqa: E731
    with sharing(broker) as make, Running(make(prefetch=5), handler, threads=2) as stuck:
        until(lambda: len(stuck.got) == 2 and stuck.consumer._state.in_flight() > 4)
        with Running(make(), lambda m: None, threads=1) as working:
            until(lambda: len(working.got) == 7)
            free.set()
            until(lambda: committed(broker) == 9)
    assert sorted(numbers(stuck.got + working.got)) == [*range(9)]


def test_a_handler_that_raises_hands_its_message_over(
    broker: FakeBroker, make: Make
) -> None:
    def handle(message: ShareMessage) -> None:
        if message.text == "1" and message.attempt == 0:
            raise ValueError("bad")

    send(broker, 3)
    with Running(make(), handle) as running:
        until(lambda: committed(broker) == 3)
        assert broker.waiting("g")[0].error == "ValueError: bad"
        broker.advance(10)
        until(lambda: len(running.got) == 4)
    assert running.got[-1].attempt == 1 and not broker.runs("g")


def test_handlers_may_say_themselves_what_becomes_of_a_message(
    broker: FakeBroker, make: Make
) -> None:
    def handle(message: ShareMessage) -> None:
        if message.text == "0" and message.deliveries == 1:
            message.release()
        elif message.text == "1":
            message.reject("never")
        elif message.text == "2":
            message.accept()
            raise ValueError("too late to fail")

    send(broker, 4)
    with Running(make(), handle, threads=1) as running:
        until(lambda: committed(broker) == 4)
    assert sorted(numbers(running.got)) == [0, 0, 1, 2, 3]
    assert [one.error for one in broker.dead("g")] == ["never"] and not broker.waiting("g")


def test_a_batch_that_fails_is_handled_one_by_one(broker: FakeBroker, make: Make) -> None:
    sizes: list[int] = []

    def handle(messages: list[ShareMessage]) -> None:
        sizes.append(len(messages))
        if any(message.text == "3" for message in messages):
            raise ValueError("bad")

    send(broker, 10)
    consumer = make()
    thread = threading.Thread(
        target=consumer.run, args=(handle,), kwargs={"threads": 1, "batch": 10}
    )
    thread.start()
    until(lambda: committed(broker) == 10)
    consumer.stop()
    thread.join(LIMIT_S)
    assert max(sizes) > 1 and [one.message.body for one in broker.waiting("g")] == [b"3"]


def test_a_hundred_threads_work_on_one_queue(broker: FakeBroker, make: Make) -> None:
    send(broker, 500)
    begun = time.monotonic()
    with Running(make(), lambda m: time.sleep(0.1), threads=100):
        until(lambda: committed(broker) == 500)
    assert time.monotonic() - begun < 3.0, "one after the other they would take 50 s"


def test_what_the_tag_filter_leaves_out_counts_as_finished(
    broker: FakeBroker, make: Make
) -> None:
    broker.configure("g", "t", tags=("new",))
    with Producer(transport=broker) as producer:
        for n in range(6):
            producer.send("t", b"%d" % n, tag="new" if n % 3 == 0 else "old")
    one = make(consumer_timeout_ms=200)
    assert sorted(numbers([*one])) == [0, 3]
    one.commit()
    assert committed(broker) == 6 and not broker.runs("g")


def test_what_the_header_filter_leaves_out_counts_as_finished(
    broker: FakeBroker, make: Make
) -> None:
    broker.configure("g", "t", headers={"region": ["eu"]})
    with Producer(transport=broker) as producer:
        for n in range(6):
            producer.send("t", b"%d" % n, headers={"region": "eu"} if n % 3 == 0 else None)
    one = make(consumer_timeout_ms=200)
    assert sorted(numbers([*one])) == [0, 3]
    one.commit()
    assert committed(broker) == 6 and not broker.runs("g")


def test_topics_come_in_the_order_of_preference(broker: FakeBroker, make: Make) -> None:
    broker.create_topic("low", queues=1)
    broker.subscribe("g", "low")
    send(broker, 3, topic="low")
    send(broker, 3)
    one = make(topics=["t", "low"], prefetch=1, consumer_timeout_ms=200)
    assert [m.topic for m in one] == ["t"] * 3 + ["low"] * 3


def test_a_member_makes_the_group_with_its_settings(make: Make, broker: FakeBroker) -> None:
    one = make(
        group="new",
        lease_ms=5_000,
        run_messages=2,
        max_deliveries=0,
        session_timeout_ms=6_000,
    )
    one.poll(timeout_s=0.05)
    until(lambda: "new" in broker.groups)
    group: Any = broker.groups["new"]
    assert group.share_settings == {
        "lease_ms": 5_000,
        "run_messages": 2,
        "max_deliveries": 0,
    }
    other = make(group="new", lease_ms=6_000)
    with pytest.raises(Conflict, match="lease_ms 5000"):
        other.poll(timeout_s=LIMIT_S)


def test_a_group_of_another_mode_is_refused(broker: FakeBroker, make: Make) -> None:
    broker.subscribe("plain", "t")
    with pytest.raises(Conflict) as raised:
        make(group="plain").poll(timeout_s=LIMIT_S)
    assert raised.value.code == "group_settings_differ"
    with (
        Consumer(transport=broker, group="g", topics=["t"], mode="clustering") as consumer,
        pytest.raises(Conflict),
    ):
        consumer.poll(timeout_s=LIMIT_S)


def test_a_topic_that_is_unsubscribed_ends_the_consumer(
    broker: FakeBroker, make: Make
) -> None:
    one = make(fetch_max_wait_ms=50)
    one.poll(timeout_s=0.1)
    broker.change(broker.find_group("g").positions.clear)
    with pytest.raises(NotFound, match="does not read t"):
        one.poll(timeout_s=LIMIT_S)


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"lease_ms": 4_999}, "5000 to 3600000"),
        ({"run_messages": 1_001}, "1 to 1000"),
        ({"max_deliveries": 101}, "0 to 100"),
        ({"auto_offset_reset": "none"}, "earliest, latest"),
        ({"enable_auto_commit": False}, "not an option of a ShareConsumer"),
        ({"prefetch": 0}, "at least 1"),
        ({"group": None}, "group is missing"),
    ],
)
def test_a_wrong_option_is_named(
    broker: FakeBroker, options: dict[str, Any], wrong: str
) -> None:
    with pytest.raises(OptionError, match=wrong):
        ShareConsumer(transport=broker, **{"group": "g", "topics": ["t"], **options})


def test_what_cannot_be_stored_for_a_retry_ends_run_and_goes_back(
    broker: FakeBroker, make: Make
) -> None:
    def handle(message: ShareMessage) -> None:
        raise ValueError("bad")

    error = Conflict("there is no retry node", code="no_failure_topic", status=409)
    broker.fail("/failures$", error, times=1_000)
    send(broker, 1)
    with Running(make(), handle, threads=1) as running:
        until(lambda: running.raised)
    assert "its queue is stopped" in str(running.raised[0])
    assert committed(broker) == 0
    assert [m.text for m in make().poll(timeout_s=LIMIT_S)] == ["0"]


def test_a_commit_that_nobody_takes_says_so(
    broker: FakeBroker, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("catmq_client.share_consumer.COMMIT_WITHIN_S", 0.2)
    send(broker, 1)
    one = make()
    one.poll(timeout_s=LIMIT_S)
    broker.fail("/share", Unavailable("later", status=503), times=10_000)
    with pytest.raises(Unavailable, match="not reported"):
        one.commit()


def test_every_so_many_pulls_prefer_the_topics_in_reverse(
    broker: FakeBroker, make: Make
) -> None:
    broker.create_topic("u", queues=1)
    broker.subscribe("g", "u")
    one = make(topics=["t", "u"], reverse_topics_every=3, fetch_max_wait_ms=1)
    until(lambda: one.poll(timeout_s=0.05) or len(broker.seen("/share$")) >= 6)
    asked = [seen.body["topics"] for seen in broker.seen("/share$")[:6]]
    assert asked == [["t", "u"], ["t", "u"], ["u", "t"]] * 2
