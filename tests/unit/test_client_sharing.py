"""Consumers that share a group, and run() with its dispatcher."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from catmq_client import Consumer, Message, NewMessage, Producer
from catmq_client.errors import (
    Conflict,
    ConnectFailed,
    ConsumerError,
    HandlerFailed,
    OptionError,
    Unavailable,
)
from tests.support.becoming import becomes
from tests.support.simulated import SimulatedBroker

LIMIT_S = 10.0
Make = Callable[..., Consumer]


@pytest.fixture
def broker() -> SimulatedBroker:
    made = SimulatedBroker()
    made.create_topic("t", queues=4)
    return made


@pytest.fixture
def make(broker: SimulatedBroker) -> Iterator[Make]:
    made: list[Consumer] = []

    def consumer(name: str = "one", **options: Any) -> Consumer:
        options = {
            "group": "g",
            "topics": ["t"],
            "retry_backoff_ms": 1,
            "retry_backoff_max_ms": 5,
            **options,
        }
        made.append(Consumer(transport=broker, name=name, **options))
        return made[-1]

    yield consumer
    for one in made:
        one.close()


def send(broker: SimulatedBroker, count: int, *, keys: int = 20) -> None:
    with Producer(transport=broker) as producer:
        producer.send_batch(
            "t", [NewMessage(b"%d" % n, key=f"k{n % keys}") for n in range(count)]
        )


def owners(broker: SimulatedBroker) -> Counter[str | None]:
    group = broker.find_group("g")
    names = {member.consumer_id: member.name for member in group.members.values()}
    return Counter(
        names.get(p.owner or "") for p in group.positions.values() if p.owner == p.target
    )


def test_two_members_share_the_queues_and_see_everything_once(
    broker: SimulatedBroker, make: Make
) -> None:
    send(broker, 400)
    one, two = make("one"), make("two")
    seen = Counter(m.message_id for m in one.poll(10, timeout_s=LIMIT_S))
    one.commit()
    give_up_at = time.monotonic() + LIMIT_S
    while sum(seen.values()) < 400 and time.monotonic() < give_up_at:
        for consumer in (one, two):
            got = consumer.poll(10, timeout_s=0.01)
            seen.update(message.message_id for message in got)
            consumer.commit()
    assert set(seen.values()) == {1}
    assert broker.wait_until(lambda: owners(broker) == {"one": 2, "two": 2})


@pytest.mark.parametrize("refused_commits", [0, 3])
def test_a_queue_is_given_up_only_when_the_application_came_back_and_its_commit_is_stored(
    broker: SimulatedBroker, make: Make, refused_commits: int
) -> None:
    send(broker, 400)
    broker.fail("POST .*/commit", Unavailable("later", status=503), times=refused_commits)
    one = make("one")
    taken = one.poll(400, timeout_s=LIMIT_S)
    two = make("two")
    two.poll(timeout_s=0.0)
    one._state.want_heartbeat()
    assert broker.wait_until(
        lambda: any(o.revoked_until for o in one._state.queues.values())
    )
    in_hand = {message.queue for message in taken}
    revoked = {queue for queue, owned in one._state.queues.items() if owned.revoked_until}
    assert revoked & in_hand <= set(one._state.queues)
    one.poll(1, timeout_s=0.0)
    assert broker.wait_until(lambda: owners(broker)["two"] == 2)
    committed = broker.committed("g")
    for queue in revoked:
        assert committed[queue] == max(
            (m.offset + 1 for m in taken if m.queue == queue), default=0
        )


def test_revoked_work_that_takes_too_long_is_given_up_uncommitted(
    broker: SimulatedBroker, make: Make
) -> None:
    send(broker, 40)
    one = make("one", rebalance_timeout_ms=1)
    one.poll(400, timeout_s=LIMIT_S)
    two = make("two")
    two.poll(timeout_s=0.0)
    one._state.want_heartbeat()
    assert broker.wait_until(lambda: owners(broker)["two"] == 2)


def test_on_revoked_is_called_before_the_queue_is_released(
    broker: SimulatedBroker, make: Make
) -> None:
    send(broker, 40)
    told: list[tuple[int, str | None]] = []

    def on_revoked(queues: list[Any]) -> None:
        position = broker.find_group("g").positions[queues[0].queue]
        told.append((queues[0].queue, position.owner))

    one = make("one", on_revoked=on_revoked)
    one.poll(400, timeout_s=LIMIT_S)
    me = one._state.consumer_id
    two = make("two")
    two.poll(timeout_s=0.0)
    one._state.want_heartbeat()
    assert one._state.wait(LIMIT_S, lambda: bool(one._state.events))
    one.poll(1, timeout_s=0.1)
    assert broker.wait_until(lambda: owners(broker)["two"] >= 1)
    assert told
    assert {owner for _, owner in told} == {me}


def test_the_queues_of_an_expired_member_move(broker: SimulatedBroker, make: Make) -> None:
    send(broker, 40)
    one, two = make("one"), make("two")
    one.poll(1, timeout_s=LIMIT_S)
    seen = {message.message_id for message in two.poll(timeout_s=0.0)}
    assert broker.wait_until(
        lambda: "two" in {m.name for m in broker.find_group("g").members.values()}
    )
    broker.fail(
        f"consumers/{one._state.consumer_id}", ConnectFailed("frozen"), times=1_000_000
    )
    broker.expire("g", "one")
    while len(seen) < 40:
        got = two.poll(timeout_s=LIMIT_S)
        assert got
        seen |= {message.message_id for message in got}
    broker.heal()


def test_an_older_answer_changes_nothing(broker: SimulatedBroker, make: Make) -> None:
    send(broker, 4)
    one = make("one")
    one.poll(1, timeout_s=LIMIT_S)
    known = one.assignment()
    stale = {"generation": 0, "assigned": [], "revoked": [1, 2, 3, 4]}
    with one._state.changed:
        assert one._membership._apply_assignment(stale) is False
    assert one.assignment() == known


def test_a_released_queue_never_comes_back_in_the_same_epoch(
    broker: SimulatedBroker, make: Make
) -> None:
    send(broker, 4)
    one = make("one")
    one.poll(1, timeout_s=LIMIT_S)
    state = one._state
    with state.changed:
        owned = state.queues[1]
        state.release(owned)
        item = {"topic": "t", "queue": 1, "epoch": owned.epoch, "stopped": False}
        answer = {"generation": state.generation, "assigned": [item], "revoked": []}
        assert one._membership._apply_assignment(answer) is False
        assert 1 not in state.queues
        item["epoch"] = owned.epoch + 1
        assert one._membership._apply_assignment(answer) is True
        assert state.queues[1].epoch == owned.epoch + 1


def test_contradictions_that_stay_make_the_member_begin_anew(
    broker: SimulatedBroker, make: Make
) -> None:
    broker.session_timeout_ms = 2_000
    one = make("one")
    one.poll(timeout_s=0.0)
    assert one._state.wait(LIMIT_S, lambda: bool(one._state.queues))
    first = one._state.consumer_id
    with one._state.changed:
        one._membership._check_consistency(False)
        one._membership._inconsistent_since -= 60  # type: ignore[operator]
        one._membership._check_consistency(False)
        assert one._state.consumer_id is None
    assert one._state.wait(LIMIT_S, lambda: one._state.consumer_id not in (None, first))


class Handled:
    """A handler that notes what it got and stops its consumer after `count` messages."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.messages: list[Message] = []
        self.consumer: Consumer | None = None
        self._lock = threading.Lock()

    def __call__(self, message: Message) -> None:
        with self._lock:
            self.messages.append(message)
            if len(self.messages) == self.count and self.consumer is not None:
                self.consumer.stop()


def run(consumer: Consumer, handled: Callable[[Message], object], **options: Any) -> None:
    if isinstance(handled, Handled):
        handled.consumer = consumer
    consumer.run(handled, **options)


@pytest.mark.parametrize("order", ["key", "queue", "none"])
def test_run_handles_every_message_once_and_commits_all(
    broker: SimulatedBroker, make: Make, order: str
) -> None:
    send(broker, 600)
    handled = Handled(600)
    run(make(), handled, threads=8, order=order)
    assert len({message.message_id for message in handled.messages}) == 600
    assert sum(broker.committed("g").values()) == 600
    assert not broker.find_group("g").members


def test_run_keeps_the_order_of_each_key_and_never_handles_one_key_twice_at_once(
    broker: SimulatedBroker, make: Make
) -> None:
    send(broker, 600, keys=7)
    at_work: set[str | None] = set()
    last: dict[str | None, int] = {}
    lock = threading.Lock()
    counted = Handled(600)

    def handler(message: Message) -> None:
        with lock:
            assert message.key not in at_work
            at_work.add(message.key)
        assert last.get(message.key, -1) < int(message.body)
        last[message.key] = int(message.body)
        with lock:
            at_work.remove(message.key)
        counted(message)

    consumer = make()
    counted.consumer = consumer
    run(consumer, handler, threads=8)
    assert len(last) == 7


def test_two_keys_of_a_queue_are_handled_in_parallel(
    broker: SimulatedBroker, make: Make
) -> None:
    broker.create_topic("one", queues=1)
    with Producer(transport=broker) as producer:
        producer.send_batch("one", [NewMessage(b"", key="a"), NewMessage(b"", key="b")])
    together = threading.Barrier(2, timeout=LIMIT_S)
    handled = Handled(2)

    def handler(message: Message) -> None:
        together.wait()
        handled(message)

    consumer = make(topics=["one"])
    handled.consumer = consumer
    run(consumer, handler, threads=2)
    assert len(handled.messages) == 2


def test_a_handler_that_fails_is_called_again_in_place(
    broker: SimulatedBroker, make: Make
) -> None:
    send(broker, 20, keys=1)
    failures = iter([True, True, False])
    handled = Handled(20)

    def handler(message: Message) -> None:
        if message.body == b"5" and next(failures):
            raise ValueError("not yet")
        handled(message)

    consumer = make(handler_attempts=3)
    handled.consumer = consumer
    run(consumer, handler)
    assert [int(message.body) for message in handled.messages] == list(range(20))


def test_without_a_retry_topic_a_handler_that_keeps_failing_stops_its_queue_and_no_other(
    broker: SimulatedBroker, make: Make
) -> None:
    broker.fail(
        "/failures$", Conflict("none", code="no_failure_topic", status=409), times=100
    )
    with Producer(transport=broker) as producer:
        producer.send_batch(
            "t", [NewMessage(b"%d" % n, queue=1 + n % 4, key=str(n % 4)) for n in range(40)]
        )
    tries: list[int] = []
    handled: set[str] = set()
    consumer = make()

    def handler(message: Message) -> None:
        if message.queue == 1 and message.offset == 2:
            tries.append(1)
            raise ValueError("never")
        if message.queue != 1:
            assert becomes(consumer, lambda: consumer._state.failure is not None)
            handled.add(message.message_id)
        if len(handled) == 30:
            consumer.stop()

    with pytest.raises(HandlerFailed, match="failed 3 times") as caught:
        run(consumer, handler)
    assert isinstance(caught.value.__cause__, ValueError)
    assert len(tries) == 1 + 3, (
        "it was tried in place when it was known that nothing else helps"
    )
    assert broker.committed("g")[1] == 2
    assert [broker.committed("g")[queue] for queue in (2, 3, 4)] == [10, 10, 10]


def test_run_ends_when_all_queues_stand_still(broker: SimulatedBroker, make: Make) -> None:
    send(broker, 40)
    broker.fail(
        "/failures$", Conflict("none", code="no_failure_topic", status=409), times=1_000
    )

    def handler(message: Message) -> None:
        raise ValueError("never")

    with pytest.raises(HandlerFailed):
        make().run(handler)
    assert set(broker.committed("g").values()) == {0}


def test_a_handler_that_exits_ends_run(broker: SimulatedBroker, make: Make) -> None:
    send(broker, 1)

    def handler(message: Message) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        make().run(handler)
    assert sum(broker.committed("g").values()) == 0


def test_the_commit_stays_below_a_slow_handler(broker: SimulatedBroker, make: Make) -> None:
    with Producer(transport=broker) as producer:
        producer.send_batch(
            "t", [NewMessage(b"%d" % n, queue=1, key=str(n)) for n in range(50)]
        )
    others_done, release = threading.Event(), threading.Event()
    handled = Handled(50)

    def handler(message: Message) -> None:
        if message.offset == 10:
            release.wait(LIMIT_S)
        handled(message)
        if len(handled.messages) == 49:
            others_done.set()

    consumer = make(auto_commit_interval_ms=1)
    handled.consumer = consumer
    thread = threading.Thread(target=lambda: run(consumer, handler, threads=4))
    thread.start()
    assert others_done.wait(LIMIT_S)
    assert broker.wait_until(lambda: broker.committed("g")[1] == 10)
    commits = len(broker.seen("commit"))
    consumer.commit()
    assert broker.committed("g")[1] == 10
    assert len(broker.seen("commit")) >= commits
    release.set()
    thread.join(LIMIT_S)
    assert broker.committed("g")[1] == 50


def test_no_handler_starts_without_a_lease(broker: SimulatedBroker, make: Make) -> None:
    send(broker, 40, keys=1)
    first, go_on = threading.Event(), threading.Event()
    handled = Handled(40)

    def handler(message: Message) -> None:
        first.set()
        go_on.wait(LIMIT_S)
        handled(message)

    consumer = make()
    handled.consumer = consumer
    thread = threading.Thread(target=lambda: run(consumer, handler))
    thread.start()
    assert first.wait(LIMIT_S)
    broker.fail("heartbeat", ConsumerError("down", retriable=True), times=100_000)
    with consumer._state.changed:
        consumer._state.lease_until = 0.0
    go_on.set()
    assert (
        not consumer._state.wait(0.1, lambda: len(handled.messages) > 1)
        or len(handled.messages) <= 1
    )
    broker.heal()
    consumer._state.want_heartbeat()
    thread.join(LIMIT_S)
    assert len(handled.messages) == 40


def test_a_handler_that_never_returns_costs_the_member_its_queues(
    broker: SimulatedBroker, make: Make
) -> None:
    send(broker, 4)
    started, release = threading.Event(), threading.Event()

    def handler(message: Message) -> None:
        started.set()
        release.wait(LIMIT_S)

    consumer = make(max_poll_interval_ms=1)
    raised: list[BaseException] = []

    def run_it() -> None:
        try:
            consumer.run(handler, threads=1)
        except ConsumerError as error:
            raised.append(error)

    thread = threading.Thread(target=run_it)
    thread.start()
    assert started.wait(LIMIT_S)
    with consumer._state.changed:
        at_work, before = consumer._state.handlers, time.monotonic() - 1
        consumer._state.handlers = {
            thread: one._replace(since=before) for thread, one in at_work.items()
        }
    consumer._state.want_heartbeat()
    assert broker.wait_until(lambda: not broker.find_group("g").members)
    release.set()
    thread.join(LIMIT_S)
    assert [error.code for error in raised if isinstance(error, ConsumerError)] == [
        "max_poll_interval"
    ]


def test_wrong_arguments_of_run_are_refused(make: Make) -> None:
    with pytest.raises(OptionError, match="key, queue, none"):
        make("a").run(print, order="keys")
    with pytest.raises(OptionError, match="at least 1"):
        make("b").run(print, threads=0)
