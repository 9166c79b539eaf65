"""Members of a share group while answers are lost, brokers are away and processes die:
nothing is lost.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from catmq_client import ShareConsumer, ShareMessage
from catmq_client.errors import AnswerLost, Conflict, ConnectFailed, Gone, ServerFailed
from catmq_client.message import Message, Source, parse_messages
from catmq_client.reading.clocks import lease_clock
from catmq_client.sharing.runs import HeldRun
from catmq_client.testing import FakeBroker
from tests.support.shares import (
    LIMIT_S,
    QUICK,
    Make,
    Running,
    committed,
    numbers,
    send,
    shared_topic,
    sharing,
)
from tests.support.waiting import until

DONE = "/share/done$"
PULL = "/share$"


@pytest.fixture
def broker() -> FakeBroker:
    return shared_topic()


@pytest.fixture
def make(broker: FakeBroker) -> Iterator[Make]:
    with sharing(broker) as made:
        yield made


@pytest.mark.parametrize("error", [AnswerLost("gone"), ServerFailed("a bug", status=500)])
def test_a_run_whose_answer_was_lost_comes_with_the_next_pull(
    broker: FakeBroker, make: Make, error: AnswerLost
) -> None:
    send(broker, 2)
    broker.fail(PULL, error, after=True)
    one = make()
    (message,) = one.poll(1, timeout_s=LIMIT_S)
    assert message.deliveries == 1, "it is the lease that was granted"
    again = broker.seen(PULL)[1].body
    assert again["recover"] is True and again["holding"] == []


def test_a_pull_that_recovers_names_what_is_held(broker: FakeBroker, make: Make) -> None:
    send(broker, 1)
    one = make(auto_accept=False, fetch_max_wait_ms=100)
    (held,) = one.poll(timeout_s=LIMIT_S)
    broker.fail(PULL, AnswerLost("gone"), after=True)
    until(
        lambda: (
            not one.poll(timeout_s=0.05)
            and any("holding" in s.body for s in broker.seen(PULL))
        )
    )
    (recovering,) = [seen.body for seen in broker.seen(PULL) if "holding" in seen.body][:1]
    assert recovering["holding"] == [
        {"queue": held.queue, "first": 0, "grant": held.run.grant}
    ]
    assert held.accept()
    one.commit()
    assert committed(broker) == 1


def test_a_report_whose_answer_was_lost_is_repeated(broker: FakeBroker, make: Make) -> None:
    send(broker, 1)
    one = make()
    assert len(one.poll(timeout_s=LIMIT_S)) == 1
    broker.fail("/share", AnswerLost("gone"), after=True, times=2)
    one.commit()
    assert committed(broker) == 1 and not broker.runs("g")
    reports = [seen for seen in broker.seen("/share") if seen.body.get("done")]
    assert len(reports) > 1


def test_a_pull_that_hangs_is_given_up_and_what_it_leased_comes_once(
    broker: FakeBroker,
) -> None:
    class Hanging:
        """Holds back the first answer to a pull."""

        asked, free = threading.Event(), threading.Event()

        def request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
            answer = broker.request(method, path, **more)
            if path.endswith("/share") and not self.asked.is_set():
                self.asked.set()
                self.free.wait(LIMIT_S)
            return answer

    send(broker, 3)
    network = Hanging()
    with ShareConsumer(transport=network, **QUICK, consumer_timeout_ms=300) as one:
        assert one.poll(timeout_s=0.05) == [] and network.asked.is_set()
        one._state.on_silent_broker()  # as a heartbeat does that no broker answers
        got = [next(one)]
        network.free.set()
        got += [*one]
        assert sorted(numbers(got)) == [0, 1, 2] and {m.deliveries for m in got} == {1}
        one.commit()
    assert committed(broker) == 3
    assert [seen.body.get("recover") for seen in broker.seen(PULL)][:2] == [None, True]


def test_nothing_begins_after_the_lease_until_a_broker_has_renewed_it(
    broker: FakeBroker, make: Make
) -> None:
    send(broker, 3)
    begun: list[str] = []
    free = threading.Event()

    def handle(message: ShareMessage) -> None:
        begun.append(message.text)
        free.wait(LIMIT_S)

    with Running(make(prefetch=5), handle, threads=1) as running:
        book = running.consumer._state
        until(lambda: begun and book.in_flight() == 3)
        broker.fail("/share", ConnectFailed("away"), times=100_000)
        with book.changed:
            for run in book.runs.values():
                run.lease_until = lease_clock() - 0.1
            book.changed.notify_all()
        free.set()
        assert not book.wait(0.3, lambda: len(begun) > 1) or len(begun) == 1
        broker.heal()
        until(lambda: committed(broker) == 3)
    assert sorted(begun) == ["0", "1", "2"]


def test_a_renewed_lease_begins_when_the_renewal_was_sent(broker: FakeBroker) -> None:
    arrived_at: list[float] = []

    class Noting:
        """Notes when a renewal arrives."""

        def request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
            if any("renew" in done for done in more.get("body", {}).get("done", ())):
                arrived_at.append(lease_clock())
            return broker.request(method, path, **more)

    send(broker, 1)
    with ShareConsumer(transport=Noting(), **QUICK, auto_accept=False) as one:
        (message,) = one.poll(timeout_s=LIMIT_S)
        assert message.renew(60)
        until(lambda: arrived_at and not message.run.sending)
        assert message.run.lease_until - message.run.lease_s < arrived_at[-1]
        assert message.accept()


def test_what_somebody_else_has_by_then_is_not_begun(
    broker: FakeBroker, make: Make
) -> None:
    send(broker, 6)
    free = threading.Event()
    with Running(
        make(name="one", prefetch=5), lambda m: free.wait(LIMIT_S), threads=1
    ) as frozen:
        book = frozen.consumer._state
        until(lambda: book.in_flight() == 6 and frozen.got)
        broker.cut_off("one")
        with book.changed:
            for run in book.runs.values():
                run.lease_until = lease_clock() - 0.1
            book.changed.notify_all()
        broker.advance(31)
        with Running(make(), lambda m: None, threads=2) as other:
            until(lambda: committed(broker) == 6)
        broker.heal()
        free.set()
        until(lambda: book.in_flight() == 0)
    assert len(frozen.got) == 1 and sorted(numbers(other.got)) == [*range(6)]


def test_a_run_that_comes_back_to_its_member_goes_on(
    broker: FakeBroker, make: Make
) -> None:
    send(broker, 3)
    one = make(auto_accept=False, max_in_flight=10)
    got = one.poll(1, timeout_s=LIMIT_S)
    got += one.poll(2, timeout_s=LIMIT_S)
    grants = {message.run.grant for message in got}
    broker.advance(31)
    until(
        lambda: (
            not one.poll(5, timeout_s=0.05)
            and {m.run.grant for m in got}.isdisjoint(grants)
        )
    )
    while len(got) < 3:
        got += one.poll(1, timeout_s=LIMIT_S)
    assert sorted(numbers(got)) == [0, 1, 2], "nothing came twice"
    assert all(message.is_held and message.accept() for message in got)
    one.commit()
    assert committed(broker) == 3


@pytest.mark.parametrize(
    ("rows", "is_same"),
    [([0, 1, 2], True), ([1], True), ([0, 1, 2, 3], False), ([3], False)],
)
def test_a_run_with_messages_that_had_left_it_before_a_reset_is_another_run(
    rows: list[int], is_same: bool
) -> None:
    def item(grant: str, offsets: list[int]) -> dict[str, Any]:
        view = [[offset, None, None, None, b"", None, 0, 0] for offset in offsets]
        bounds = {"topic": "t", "queue": 1, "first": 0, "end": 4, "grant": grant}
        return {**bounds, "deliveries": 1, "lease_ms": 30_000, "rows": view}

    run = HeldRun(item("before", [0, 1, 2]), serial=1, sent_at=lease_clock())
    source = Source("t", 1, 1)
    run.fill(parse_messages(item("before", [0, 1, 2]), source, Message))
    run.finish(0, 0)
    assert run.is_same_run(item("after", rows)) is is_same


def test_a_dead_members_messages_come_again_after_its_lease(
    broker: FakeBroker, make: Make
) -> None:
    send(broker, 200)
    members = [
        Running(make(name=f"m{n}"), lambda m: time.sleep(0.005), threads=4)
        for n in range(3)
    ]
    with members[0], members[1], members[2]:
        until(lambda: all(len(one.got) > 5 for one in members))
        broker.cut_off("m0")
        until(
            lambda: all(run.owner.startswith("m0.") for run in broker.runs("g")),
            limit_s=LIMIT_S,
        )
        broker.advance(31)
        until(lambda: committed(broker) == 200)
        broker.heal()
    counts = Counter(int(message.body) for one in members for message in one.got)
    assert sorted(counts) == [*range(200)]
    assert sum(counts.values()) - 200 <= 40, "only what the dead one held was repeated"


def test_a_poison_message_is_dead_after_five_leases_and_repeats_no_others(
    broker: FakeBroker,
) -> None:
    send(broker, 100)
    handled: Counter[int] = Counter()
    with sharing(broker) as make:
        for life in range(8):
            one = make(name=f"m{life}", auto_accept=False, consumer_timeout_ms=500)
            for message in one:
                handled[int(message.body)] += 1
                if message.text == "50":
                    broker.cut_off(f"m{life}")
                    break
                message.accept()
                one.commit()
            broker.advance(31)
            if broker.dead("g"):
                break
    (dead,) = broker.dead("g")
    assert dead.message.body == b"50" and dead.error.startswith("LeaseLost: ")
    assert handled == Counter(range(100)) + Counter({50: 4})


def test_nothing_is_held_beside_a_message_that_was_lost_twice(
    broker: FakeBroker, make: Make
) -> None:
    send(broker, 20)
    for life in range(2):
        one = make(name=f"m{life}", auto_accept=False)
        assert one.poll(10, timeout_s=LIMIT_S)
        broker.cut_off(f"m{life}")
        broker.advance(31)
    free = threading.Event()
    with Running(make(name="m2"), lambda m: free.wait(LIMIT_S), threads=4) as running:
        until(lambda: running.got)
        running.consumer._state.wait(0.2)  # it would have pulled by then
        mine = [run for run in broker.runs("g") if run.owner.startswith("m2.")]
        assert [(run.first, run.end, run.deliveries) for run in mine] == [(0, 1, 3)]
        free.set()
        until(lambda: committed(broker) == 20)


def test_a_member_that_expired_registers_again_and_may_finish(
    broker: FakeBroker, make: Make
) -> None:
    send(broker, 1)
    one = make(auto_accept=False)
    (message,) = one.poll(timeout_s=LIMIT_S)
    broker.fail("/heartbeat$", Gone("expired", code="expired", status=410))
    one._state.want_heartbeat()
    until(lambda: len(broker.seen("/consumers$")) == 2)
    assert message.accept()
    one.commit()
    assert committed(broker) == 1


def test_nothing_begins_under_leases_that_ended_with_the_session(
    broker: FakeBroker, make: Make
) -> None:
    send(broker, 6)
    free = threading.Event()
    with Running(
        make(name="one", prefetch=5), lambda m: free.wait(LIMIT_S), threads=1
    ) as expired:
        book = expired.consumer._state
        until(lambda: expired.got and book.in_flight() == 6)
        broker.fail("/share", ConnectFailed("away"), times=100_000)
        broker.change(lambda: broker.find_group("g").leave(book.consumer_id or ""))
        book.want_heartbeat()
        until(lambda: len(broker.seen("/consumers$")) == 2)
        free.set()
        book.wait(0.3, lambda: len(expired.got) > 1)
        assert len(expired.got) == 1
        broker.heal()
        until(lambda: committed(broker) == 6)


class HoldingBack:
    """A transport that holds back the first answer to a request whose path ends so."""

    def __init__(self, broker: FakeBroker, path: str) -> None:
        self._broker, self._path = broker, path
        self.held, self.free = threading.Event(), threading.Event()

    def request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        answer = self._broker.request(method, path, **more)
        if path.endswith(self._path) and not self.held.is_set():
            self.held.set()
            self.free.wait(LIMIT_S)
        return answer


def end_session(broker: FakeBroker, one: ShareConsumer) -> None:
    """Let the session of a member end, and wait until it has registered again."""
    broker.fail("/heartbeat$", Gone("expired", code="expired", status=410))
    one._state.want_heartbeat()
    until(lambda: len(broker.seen("/consumers$")) == 2)


def test_a_renewal_that_was_under_way_when_the_session_ended_revives_no_lease(
    broker: FakeBroker,
) -> None:
    send(broker, 2)
    network = HoldingBack(broker, "/share/done")
    with ShareConsumer(transport=network, **QUICK, auto_accept=False) as one:
        (message,) = one.poll(1, timeout_s=LIMIT_S)
        assert message.renew(60)
        assert network.held.wait(LIMIT_S)
        end_session(broker, one)
        broker.fail("/share", ConnectFailed("away"), times=100_000)
        reports = len(broker.seen(DONE))
        network.free.set()
        until(lambda: len(broker.seen(DONE)) > reports)  # so the held answer has been read
        assert message.lease_left_s == 0
        broker.heal()
        until(lambda: message.lease_left_s > 0)


def test_what_a_pull_brings_after_its_session_ended_is_renewed_before_it_begins(
    broker: FakeBroker,
) -> None:
    send(broker, 1)
    network = HoldingBack(broker, "/share")
    with ShareConsumer(transport=network, **QUICK) as one:
        assert one.poll(timeout_s=0.05) == []
        assert network.held.wait(LIMIT_S)
        end_session(broker, one)
        broker.fail(DONE, ConnectFailed("away"), times=100_000)
        network.free.set()
        state: Any = one._state
        until(lambda: state.runs)
        assert one.poll(timeout_s=0.05) == []
        broker.heal()
        assert numbers(one.poll(timeout_s=LIMIT_S)) == [0]


def test_closing_while_brokers_are_away_ends_in_time(
    broker: FakeBroker, make: Make
) -> None:
    send(broker, 2)
    one = make()
    one.poll(1, timeout_s=LIMIT_S)
    one._state.away_since = None
    broker.fail(".*", ConnectFailed("away"), times=100_000)
    begun = time.monotonic()
    one.poll(1, timeout_s=0.05)
    one.close(timeout_s=0.3)
    assert time.monotonic() - begun < 5.0


def test_a_pull_that_waits_takes_nothing_once_its_member_has_left(
    broker: FakeBroker, make: Make
) -> None:
    one = make()
    one.poll(timeout_s=0.05)
    until(lambda: broker.seen(PULL))
    one.close()
    send(broker, 3)
    two = make(consumer_timeout_ms=300)
    assert sorted((int(m.body), m.deliveries) for m in two) == [(0, 1), (1, 1), (2, 1)]


def test_what_comes_after_the_end_of_a_member_that_could_not_leave_goes_back(
    broker: FakeBroker, make: Make
) -> None:
    one = make()
    one.poll(timeout_s=0.05)
    until(lambda: broker.seen(PULL))
    broker.fail("^DELETE", Conflict("not now", status=409))
    one.close()
    send(broker, 1)
    until(lambda: broker.seen(DONE))
    two = make(consumer_timeout_ms=300)
    assert [(m.text, m.deliveries) for m in two] == [("0", 1)]
