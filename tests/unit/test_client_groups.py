"""Hand-overs: news travels in answers, not with the next regular heartbeat, and waits for
nothing else.

Heartbeats are so far apart here that what waits for the next one never happens within a
test.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from catmq_client import Consumer, Message, NewMessage, Producer
from catmq_client.errors import ConnectFailed, Unavailable
from catmq_client.options import ConsumerOptions
from catmq_client.reading.acquirer import Acquirer
from catmq_client.reading.owned import OwnedQueue
from catmq_client.reading.state import GroupState
from tests.support.becoming import becomes, owns
from tests.support.held import HeldTransport
from tests.support.simulated import SimulatedBroker

LIMIT_S = 10.0
Make = Callable[..., Consumer]
PULL = "/pull$"
HEARTBEAT = "/heartbeat$"
COMMIT = "/commit$"
ACQUIRE = "/acquire$"


@pytest.fixture
def broker() -> SimulatedBroker:
    made = SimulatedBroker(session_timeout_ms=300_000)
    made.create_topic("t", queues=4)
    made.subscribe("g", "t").heartbeat_interval_ms = 100_000
    return made


@pytest.fixture
def held(broker: SimulatedBroker) -> HeldTransport:
    """The way of member `one` to the broker; the others go straight."""
    return HeldTransport(broker)


@pytest.fixture
def make(broker: SimulatedBroker, held: HeldTransport) -> Iterator[Make]:
    made: list[Consumer] = []

    def consumer(name: str = "one", **options: Any) -> Consumer:
        options = {
            "group": "g",
            "retry_backoff_ms": 1,
            "retry_backoff_max_ms": 5,
            **options,
        }
        made.append(
            Consumer(transport=held if name == "one" else broker, name=name, **options)
        )
        return made[-1]

    yield consumer
    broker.heal()
    held.open_all()
    for one in made:
        one.close()


def send(broker: SimulatedBroker, *, queue: int, count: int = 1, topic: str = "t") -> None:
    with Producer(transport=broker) as producer:
        producer.send_batch(
            topic, [NewMessage(b"%d" % n, queue=queue) for n in range(count)]
        )


def join(consumer: Consumer) -> Consumer:
    """Begins without waiting for a message."""
    assert consumer.poll(timeout_s=0.0) == []
    return consumer


def owners(broker: SimulatedBroker) -> Counter[str | None]:
    group = broker.find_group("g")
    names = {member.consumer_id: member.name for member in group.members.values()}
    return Counter(
        names.get(p.owner or "") for p in group.positions.values() if p.owner == p.target
    )


def long_pull(broker: SimulatedBroker, consumer: Consumer, queues: int) -> bool:
    """Waits until the consumer's last pull names so many queues and waits long."""

    def waits() -> bool:
        pulls = [seen for seen in broker.requests if seen.path.endswith("/pull")]
        mine = [
            seen for seen in pulls if seen.path.split("/")[4] == consumer._state.consumer_id
        ]
        return (
            bool(mine)
            and len(mine[-1].body["queues"]) == queues
            and mine[-1].body["wait_ms"] > 5_000
        )

    return broker.wait_until(waits)


def reads(queue: int) -> Callable[[Mapping[str, Any]], bool]:
    """Whether a request names the queue."""
    return lambda body: (
        queue in [asked["queue"] for asked in body.get("queues", body.get("offsets", ()))]
    )


def test_queues_revoked_before_they_were_taken_up_are_given_back_at_once(
    broker: SimulatedBroker, held: HeldTransport, make: Make
) -> None:
    first_heartbeat = held.hold(HEARTBEAT)
    join(make("one"))
    first_heartbeat.wait()
    join(make("two"))
    assert broker.wait_until(lambda: len(broker.find_group("g").members) == 2)
    first_heartbeat.open()
    assert broker.wait_until(lambda: owners(broker) == {"one": 2, "two": 2})


def test_a_release_that_a_later_generation_overtook_is_repeated_at_once(
    broker: SimulatedBroker, held: HeldTransport, make: Make
) -> None:
    one = join(make("one"))
    assert owns(one, 4)
    confirms = held.hold(HEARTBEAT, lambda body: len(body["owned"]) == 2)
    join(make("two"))
    confirms.wait()
    join(make("three"))
    assert broker.wait_until(lambda: len(broker.find_group("g").members) == 3)
    confirms.open()
    assert broker.wait_until(lambda: owners(broker) == {"one": 2, "two": 1, "three": 1})


def test_the_answer_to_a_commit_tells_of_news(
    broker: SimulatedBroker, held: HeldTransport, make: Make
) -> None:
    one = join(make("one", auto_commit_interval_ms=1))
    assert owns(one, 4) and long_pull(broker, one, 4)
    answers = held.hold(PULL, after=True)
    send(broker, queue=1)
    answers.wait()
    join(make("two"))
    assert broker.wait_until(lambda: len(broker.find_group("g").members) == 2)
    with one._state.changed:
        # as if the answer had come, and its message were done
        one._state.queues[1].position = 1
    assert broker.wait_until(lambda: owners(broker) == {"one": 2, "two": 2})
    assert answers.held == 1


def test_the_answer_to_an_acquire_tells_of_news(
    broker: SimulatedBroker, held: HeldTransport, make: Make
) -> None:
    held.hold(PULL)
    acquires = held.hold(ACQUIRE)
    one = join(make("one"))
    acquires.wait()
    broker.stop("g", queue=1)
    acquires.open()
    assert becomes(one, lambda: one._state.queues[1].stopped)


def test_answers_without_a_generation_are_understood(
    broker: SimulatedBroker, make: Make
) -> None:
    class Older:
        """A broker that tells the generation in heartbeats and pulls only."""

        def request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
            answer = broker.request(method, path, **more)
            if path.endswith(("/acquire", "/commit")):
                del answer["generation"]
            return answer

    send(broker, queue=1)
    with Consumer(transport=Older(), group="g") as consumer:
        assert len(consumer.poll(timeout_s=LIMIT_S)) == 1
        consumer.commit()
    assert broker.committed("g")[1] == 1


def test_a_consumer_whose_buffer_is_full_hears_of_a_join(
    broker: SimulatedBroker, make: Make
) -> None:
    send(broker, queue=1, count=100)
    one = make("one", max_poll_records=10, auto_commit_interval_ms=60_000)
    assert one.poll(1, timeout_s=LIMIT_S)
    assert becomes(one, lambda: one._state.full_since is not None)
    join(make("two"))
    assert broker.wait_until(lambda: owners(broker)["two"] == 2)


def test_listening_takes_no_messages_and_delays_no_pull(
    broker: SimulatedBroker, held: HeldTransport, make: Make
) -> None:
    listening = held.hold(PULL, lambda body: body["wait_ms"] == 0 and not body["queues"])
    send(broker, queue=1, count=100)
    one = make("one", max_poll_records=10)
    taken = one.poll(1, timeout_s=LIMIT_S)
    listening.wait()
    while len(taken) < 100:
        got = one.poll(timeout_s=LIMIT_S)
        assert got
        taken += got
    assert listening.held == 1
    assert [message.offset for message in taken] == list(range(100))


def test_a_slow_acquire_does_not_hold_up_the_queues_that_stay(
    broker: SimulatedBroker, held: HeldTransport, make: Make
) -> None:
    one = join(make("one"))
    assert owns(one, 4)
    acquires = held.hold(ACQUIRE)
    broker.create_topic("u", queues=1)
    broker.subscribe("g", "u")
    acquires.wait()
    for _ in range(3):
        send(broker, queue=1)
        assert len(one.poll(timeout_s=LIMIT_S)) == 1
    send(broker, queue=5, topic="u")
    acquires.open()
    assert [message.queue for message in one.poll(timeout_s=LIMIT_S)] == [5]


def test_an_acquired_queue_is_read_although_a_pull_of_the_others_waits(
    broker: SimulatedBroker, held: HeldTransport, make: Make
) -> None:
    one = join(make("one"))
    assert owns(one, 4)
    acquires = held.hold(ACQUIRE)
    broker.create_topic("u", queues=1)
    broker.subscribe("g", "u")
    acquires.wait()
    one._state.changed_at = 0.0  # the news is old: pulls wait long again
    assert long_pull(broker, one, 4)
    send(broker, queue=5, topic="u")
    acquires.open()
    assert [message.queue for message in one.poll(timeout_s=LIMIT_S)] == [5]


def test_a_queue_that_cannot_be_acquired_holds_up_none_that_comes_later(
    broker: SimulatedBroker, held: HeldTransport, make: Make
) -> None:
    one = join(make("one"))
    assert owns(one, 4)
    first = held.hold(ACQUIRE, reads(5))
    broker.create_topic("u", queues=1)
    broker.subscribe("g", "u")
    first.wait()
    broker.fail(
        ACQUIRE, Unavailable("the node is slow", code="node_unavailable", status=503)
    )
    again = held.hold(ACQUIRE, reads(5))
    first.open()
    again.wait()
    broker.create_topic("v", queues=1)
    broker.subscribe("g", "v")
    assert owns(one, 5)
    assert 6 in [owned.queue for owned in one.assignment()]
    again.open()
    assert owns(one, 6)


def test_a_move_does_not_wait_for_a_commit_that_is_under_way(
    broker: SimulatedBroker, held: HeldTransport, make: Make
) -> None:
    for queue in (1, 2, 3, 4):
        send(broker, queue=queue)
    one = make("one", auto_commit_interval_ms=1)
    slow = held.hold(COMMIT, reads(1))
    taken: list[Message] = []
    while len(taken) < 4:
        taken += one.poll(timeout_s=LIMIT_S)
    one.poll(timeout_s=0.0)
    slow.wait()
    join(make("two"))
    assert broker.wait_until(lambda: owners(broker)["two"] == 2)
    moved = [q for q, p in broker.find_group("g").positions.items() if q not in (1, 2)]
    assert [broker.committed("g")[queue] for queue in moved] == [1, 1]


def test_a_move_does_not_wait_for_the_interval_of_commits(
    broker: SimulatedBroker, make: Make
) -> None:
    for queue in (1, 2, 3, 4):
        send(broker, queue=queue)
    one = make("one", auto_commit_interval_ms=600_000)
    taken: list[Message] = []
    while len(taken) < 4:
        taken += one.poll(timeout_s=LIMIT_S)
    one.poll(timeout_s=0.0)
    join(make("two"))
    assert broker.wait_until(lambda: owners(broker)["two"] == 2)
    assert sum(broker.committed("g").values()) == 2


def test_while_a_heartbeat_fetches_the_news_the_queues_that_stay_are_read(
    broker: SimulatedBroker, held: HeldTransport, make: Make
) -> None:
    one = join(make("one"))
    assert owns(one, 4) and long_pull(broker, one, 4)
    heartbeat = held.hold(HEARTBEAT)
    join(make("two"))
    heartbeat.wait()
    pulls = len(broker.seen(PULL))
    for _ in range(5):
        send(broker, queue=1)
        assert len(one.poll(timeout_s=0.9)) == 1
    # Each message ends one pull, and a few ends come by themselves; a pull that spins would
    # come in hundreds.
    assert len(broker.seen(PULL)) - pulls < 100


def test_a_queue_given_back_before_it_went_repeats_nothing(
    broker: SimulatedBroker, make: Make
) -> None:
    send(broker, queue=4, count=10)
    one = make("one")
    taken = one.poll(5, timeout_s=LIMIT_S)
    two = join(make("two"))
    assert becomes(one, lambda: one._state.queues[4].revoked_until is not None)
    two.close()
    assert becomes(one, lambda: one._state.queues[4].next_grant is not None)
    while len(taken) < 10:
        got = one.poll(timeout_s=LIMIT_S)
        assert got
        taken += got
    one.commit()
    assert [message.offset for message in taken] == list(range(10))
    assert {message.epoch for message in taken[:5]} < {message.epoch for message in taken}
    assert broker.committed("g")[4] == 10


def test_a_queue_whose_going_and_coming_back_was_not_seen_repeats_nothing(
    broker: SimulatedBroker, held: HeldTransport, make: Make
) -> None:
    send(broker, queue=4, count=10)
    one = make("one")
    taken = one.poll(5, timeout_s=LIMIT_S)
    heartbeat = held.hold(HEARTBEAT)
    two = join(make("two"))
    heartbeat.wait()
    two.close()
    heartbeat.open()
    while len(taken) < 10:
        got = one.poll(timeout_s=LIMIT_S)
        assert got
        taken += got
    assert [message.offset for message in taken] == list(range(10))


def test_in_run_a_queue_given_back_is_handled_once(
    broker: SimulatedBroker, make: Make
) -> None:
    send(broker, queue=4, count=20)
    at_work, go_on = threading.Event(), threading.Event()
    handled: list[int] = []
    one = make("one")

    def handler(message: Message) -> None:
        at_work.set()
        assert go_on.wait(LIMIT_S)
        handled.append(message.offset)
        if message.offset == 19:
            one.stop()

    thread = threading.Thread(target=lambda: one.run(handler, threads=1))
    thread.start()
    assert at_work.wait(LIMIT_S)
    two = join(make("two"))
    assert becomes(one, lambda: one._state.queues[4].revoked_until is not None)
    two.close()
    assert becomes(one, lambda: one._state.queues[4].next_grant is not None)
    go_on.set()
    thread.join(LIMIT_S)
    assert handled == list(range(20))
    assert broker.committed("g")[4] == 20


def test_an_heir_that_is_taken_back_never_comes(
    broker: SimulatedBroker, make: Make
) -> None:
    send(broker, queue=4, count=2)
    one = make("one")
    assert one.poll(1, timeout_s=LIMIT_S)
    two = join(make("two"))
    assert becomes(one, lambda: one._state.queues[4].revoked_until is not None)
    two.close()
    assert becomes(one, lambda: one._state.queues[4].next_grant is not None)
    three = join(make("three"))
    assert becomes(one, lambda: one._state.queues[4].next_grant is None)
    one.poll(timeout_s=0.0)
    assert [message.offset for message in three.poll(timeout_s=LIMIT_S)] == [1]


def test_a_pull_that_its_broker_no_longer_answers_is_given_up_when_a_heartbeat_finds_out(
    broker: SimulatedBroker, held: HeldTransport, make: Make
) -> None:
    one = join(make("one"))
    assert owns(one, 4) and long_pull(broker, one, 4)
    frozen = held.hold(PULL, after=True)
    send(broker, queue=1)
    frozen.wait()
    frozen.spare_others()
    broker.fail(HEARTBEAT, ConnectFailed("no answer"))
    one._state.want_heartbeat()
    assert len(one.poll(timeout_s=LIMIT_S)) == 1
    assert frozen.held == 1


def test_a_queue_that_comes_ends_the_back_off_of_pulls(
    broker: SimulatedBroker, make: Make
) -> None:
    one = join(make("one"))
    assert owns(one, 4)
    away = Unavailable(
        "the node is away", code="node_unavailable", retry_after_ms=60_000, status=503
    )
    broker.fail(PULL, away)
    send(broker, queue=1)
    assert broker.wait_until(lambda: not any(fault.left for fault in broker._faults))
    broker.create_topic("u", queues=1)
    send(broker, queue=5, topic="u")
    broker.subscribe("g", "u")
    one._state.want_heartbeat()
    taken: list[Message] = []
    while len(taken) < 2:
        got = one.poll(timeout_s=LIMIT_S)
        assert got
        taken += got
    assert {message.queue for message in taken} == {1, 5}


def test_what_failed_to_be_acquired_does_not_travel_with_what_is_new() -> None:
    state = GroupState(ConsumerOptions())
    failed, new = (
        OwnedQueue(topic="t", queue=queue, epoch=1, stopped=False) for queue in (1, 2)
    )
    state.add(failed)
    failed.back_off(max_s=0.0)
    acquirer = Acquirer(
        transport=SimulatedBroker(),
        state=state,
        handle_error=lambda error, consumer_id: False,
    )
    assert acquirer._due() == [failed]
    state.add(new)
    assert acquirer._due() == [new]
