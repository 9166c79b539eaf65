"""Who a member is: static identity, what it says of its group, broadcasting, brokers that
are drained.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from catmq_client import Consumer, Message, NewMessage, Producer
from catmq_client.errors import (
    Conflict,
    ConsumerReplaced,
    InvalidRequest,
    OptionError,
    Unavailable,
)
from tests.support.becoming import becomes, owns
from tests.support.held import HeldTransport
from tests.support.simulated import SimulatedBroker
from tests.support.waiting import until

LIMIT_S = 10.0
Make = Callable[..., Consumer]
JOIN = "POST .*/consumers$"


@pytest.fixture
def broker() -> SimulatedBroker:
    made = SimulatedBroker()
    made.create_topic("t", queues=6)
    return made


@pytest.fixture
def make(broker: SimulatedBroker) -> Iterator[Make]:
    made: list[Consumer] = []

    def consumer(**options: Any) -> Consumer:
        options = {
            "group": "g",
            "topics": ["t"],
            "transport": broker,
            "retry_backoff_ms": 1,
            **options,
        }
        made.append(Consumer(**options))
        return made[-1]

    yield consumer
    broker.heal()
    for one in made:
        one.close()


def send(broker: SimulatedBroker, count: int) -> None:
    with Producer(transport=broker) as producer:
        producer.send_batch("t", [NewMessage(b"%d" % n, key=str(n)) for n in range(count)])


def take(consumer: Consumer, count: int) -> list[Message]:
    taken: list[Message] = []
    while len(taken) < count:
        got = consumer.poll(count - len(taken), timeout_s=LIMIT_S)
        assert got, f"only {len(taken)} of {count} messages came"
        taken += got
    return taken


def join(consumer: Consumer, queues: int) -> list[int]:
    """Lets it begin, and returns its queues once it has so many."""
    consumer.poll(0, timeout_s=0.0)
    assert owns(consumer, queues)
    return sorted(owned.queue for owned in consumer.assignment())


def identities(broker: SimulatedBroker) -> list[str]:
    return sorted(member.name for member in broker.find_group("g").members.values())


def test_a_static_member_that_closes_commits_and_keeps_its_place(
    broker: SimulatedBroker, make: Make
) -> None:
    send(broker, 10)
    first = make(instance_id="a")
    take(first, 10)
    first.poll(timeout_s=0.0)
    owned = {name.queue for name in first.assignment()}
    first.close()
    assert identities(broker) == ["a"]
    assert not broker.seen("DELETE")
    assert sum(broker.committed("g").values()) == 10
    successor = make(instance_id="a")
    assert set(join(successor, 6)) == owned
    assert {name.epoch for name in successor.assignment()} == {2}


def test_a_rolling_restart_of_static_members_moves_nothing(
    broker: SimulatedBroker, make: Make
) -> None:
    names = ["a", "b", "c"]
    members = {name: make(instance_id=name) for name in names}
    for consumer in members.values():
        consumer.poll(timeout_s=0.0)
    owned = {name: join(consumer, 2) for name, consumer in members.items()}
    group = broker.find_group("g")
    assert broker.wait_until(
        lambda: all(p.owner == p.target for p in group.positions.values())
    )
    generation = group.generation
    for name in names:
        members[name].close()
        members[name] = make(instance_id=name)
        assert join(members[name], 2) == owned[name]
    assert group.generation == generation


def test_a_static_member_that_closes_gives_up_what_was_on_its_way_to_others(
    broker: SimulatedBroker, make: Make
) -> None:
    send(broker, 60)
    first = make(instance_id="a")
    take(first, 60)
    second = make(instance_id="b")
    second.poll(timeout_s=0.0)
    state = first._state
    assert becomes(
        first, lambda: any(owned.revoked_until for owned in state.queues.values())
    )
    first.close()
    join(second, 3)


def test_a_member_without_static_identity_leaves(
    broker: SimulatedBroker, make: Make
) -> None:
    consumer = make()
    join(consumer, 6)
    consumer.close()
    assert identities(broker) == []


def test_a_static_member_whose_application_is_silent_leaves(
    broker: SimulatedBroker, make: Make
) -> None:
    consumer = make(instance_id="a", max_poll_interval_ms=1)
    join(consumer, 6)
    consumer._state.away_since = time.monotonic() - 1
    consumer._state.want_heartbeat()
    assert broker.wait_until(lambda: identities(broker) == [])


@pytest.mark.parametrize("identity", [{"instance_id": "a"}, {"name": "a"}])
def test_the_second_holder_of_an_identity_replaces_the_first(
    broker: SimulatedBroker, make: Make, identity: dict[str, str]
) -> None:
    first = make(**identity)
    join(first, 6)
    second = make(**identity)
    assert len(join(second, 6)) == 6
    first._state.want_heartbeat()
    with pytest.raises(ConsumerReplaced):
        first.poll(timeout_s=LIMIT_S)
    first.close()
    assert identities(broker) == ["a"]
    send(broker, 5)
    assert len(take(second, 5)) == 5


def test_a_replaced_process_does_not_come_back(broker: SimulatedBroker) -> None:
    group = broker.subscribe("g", "t")
    first = group.join("a", "1")
    assert group.join("a", "1") is first
    group.join("a", "2")
    with pytest.raises(Exception, match="replaced"):
        group.join("a", "1")


def test_what_a_consumer_does_not_say_of_its_group_is_not_sent(
    broker: SimulatedBroker, make: Make
) -> None:
    join(make(), 6)
    (asked,) = broker.seen(JOIN)
    assert not {"mode", "session_timeout_ms"} & set(asked.body)


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_the_first_member_makes_the_group_as_it_says(
    broker: SimulatedBroker, make: Make, start: str
) -> None:
    consumer = make(
        mode="broadcasting",
        instance_id="a",
        session_timeout_ms=6_000,
        auto_offset_reset=start,
    )
    join(consumer, 6)
    group = broker.find_group("g")
    assert (group.mode, group.session_timeout_ms) == ("broadcasting", 6_000)
    assert (consumer._state.session_timeout_s, consumer._state.heartbeat_interval_s) == (
        6.0,
        2.0,
    )


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"session_timeout_ms": 6_000}, "session_timeout_ms 15000.* 6000"),
        (
            {"session_timeout_ms": 6_000, "auto_offset_reset": "latest"},
            "session_timeout_ms 15000.* 6000",
        ),
        ({"mode": "broadcasting", "instance_id": "a"}, "mode clustering.* broadcasting"),
    ],
)
def test_a_group_that_is_otherwise_ends_the_consumer(
    broker: SimulatedBroker, make: Make, options: dict[str, Any], told: str
) -> None:
    broker.subscribe("g", "t")
    with pytest.raises(Conflict, match=told) as caught:
        make(**options).poll(timeout_s=LIMIT_S)
    assert caught.value.code == "group_settings_differ"
    assert identities(broker) == []


def test_a_broadcasting_group_asks_for_an_instance(
    broker: SimulatedBroker, make: Make
) -> None:
    broker.subscribe("g", "t", mode="broadcasting")
    with pytest.raises(InvalidRequest, match="instance_id"):
        make().poll(timeout_s=LIMIT_S)
    with pytest.raises(OptionError, match="without instance_id"):
        make(mode="broadcasting")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"mode": "broadcast"}, "clustering, broadcasting"),
        ({"session_timeout_ms": 1_999}, "2000 to 300000"),
        ({"session_timeout_ms": 300_001}, "2000 to 300000"),
        ({"session_timeout_ms": True}, "2000 to 300000"),
    ],
)
def test_wrong_settings_of_a_group_are_refused(
    make: Make, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(OptionError, match=told):
        make(**options)
    assert make(mode=None, session_timeout_ms=300_000).options.mode is None


def test_two_members_that_make_the_same_group_at_the_same_time_both_join(
    broker: SimulatedBroker,
) -> None:
    held = HeldTransport(broker)
    options: dict[str, Any] = {"group": "g", "topics": ["t"], "auto_offset_reset": "latest"}
    makes_group = held.hold("POST .*/groups$")
    with (
        Consumer(transport=held, **options) as one,
        Consumer(transport=broker, **options) as two,
    ):
        one.poll(timeout_s=0.0)
        makes_group.wait()
        assert len(join(two, 6)) == 6
        makes_group.open()
        join(one, 3)


def test_each_instance_of_a_broadcasting_group_reads_everything(
    broker: SimulatedBroker, make: Make
) -> None:
    send(broker, 20)
    options = {"mode": "broadcasting"}
    one, two = make(**options, instance_id="a"), make(**options, instance_id="b")
    assert {message.message_id for message in take(one, 20)} == {
        m.message_id for m in take(two, 20)
    }
    one.commit()
    assert sum(broker.committed("g", "a").values()) == 20
    assert sum(broker.committed("g", "b").values()) == 0
    one.close()
    send(broker, 5)
    assert len(take(make(**options, instance_id="a"), 5)) == 5
    assert len(take(two, 5)) == 5


def test_a_draining_broker_is_waited_for_quietly(
    broker: SimulatedBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "catmq.consumer")
    consumer = make(retry_backoff_max_ms=20)
    join(consumer, 6)
    assert broker.wait_until(lambda: bool(broker.seen("/pull$")))
    send(broker, 1)
    broker.drain()
    with pytest.raises(Unavailable, match="drained"):
        broker.request(
            "POST", "/api/v1/topics/t/messages", body={"messages": [{"body": "x"}]}
        )
    refused = len(broker.seen("/pull$"))
    assert broker.wait_until(lambda: len(broker.seen("/pull$")) > refused + 1)
    late = make(name="late", retry_backoff_max_ms=20)
    late.poll(timeout_s=0.0)
    assert broker.wait_until(lambda: len(broker.seen(JOIN)) >= 3)
    consumer._state.want_heartbeat()
    broker.drain(False)
    # Its queue may have moved to the late one before it was fetched.
    until(lambda: consumer.poll(timeout_s=0.0) or late.poll(timeout_s=0.0))
    consumer.poll(timeout_s=0.0)
    assert owns(late, 3)
    assert {record.levelname for record in caplog.records} == {"INFO"}


def test_a_lone_member_of_a_very_large_group_stays_within_the_limits_of_a_request(
    broker: SimulatedBroker,
) -> None:
    topic = broker.create_topic("many", queues=1_100)
    with Producer(transport=broker) as producer:
        futures = [
            producer.send_async("many", b"x", queue=queue.id) for queue in topic.queues
        ]
        assert all(future.result(LIMIT_S) for future in futures)
    with Consumer(transport=broker, group="h", topics=["many"]) as consumer:
        assert {message.queue for message in take(consumer, 1_100)} == {
            queue.id for queue in topic.queues
        }
        consumer.commit()
        assert set(broker.committed("h").values()) == {1}
        # At the end of all of them each part still has its turn.
        with Producer(transport=broker) as producer:
            for queue in topic.queues[::100]:
                producer.send("many", b"y", queue=queue.id)
                assert take(consumer, 1)[0].queue == queue.id
    for verb, what in (("pull", "queues"), ("acquire", "queues"), ("commit", "offsets")):
        assert max(len(seen.body[what]) for seen in broker.seen(f"/{verb}$")) <= 1_000
