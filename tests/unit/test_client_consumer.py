"""One consumer: commit rules, positions, what is ridden out and what is raised."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from catmq_client import Consumer, Message, NewMessage, Producer
from catmq_client.errors import (
    AnswerLost,
    Closed,
    CommitFailed,
    ConnectFailed,
    ConsumerReplaced,
    MaxPollIntervalExceeded,
    NotFound,
    OffsetReset,
    OptionError,
    Unauthenticated,
    Unavailable,
)
from catmq_client.http import wire
from catmq_client.reading.state import lease_clock
from tests.support.consumers import Make, making
from tests.support.simulated import SimulatedBroker

LIMIT_S = 10.0
COMMIT = r"POST .*/commit"


@pytest.fixture(params=["json", "msgpack"])
def broker(request: pytest.FixtureRequest) -> SimulatedBroker:
    made = SimulatedBroker(
        codec=wire.JsonCodec() if request.param == "json" else wire.MsgpackCodec()
    )
    made.create_topic("t", queues=1)
    return made


@pytest.fixture
def make(broker: SimulatedBroker) -> Iterator[Make]:
    with making(broker) as made:
        yield made


def send(broker: SimulatedBroker, count: int, *, topic: str = "t") -> None:
    with Producer(transport=broker) as producer:
        producer.send_batch(
            topic, [NewMessage(b"%d" % n, key=str(n % 5)) for n in range(count)]
        )


def take(consumer: Consumer, count: int) -> list[Message]:
    taken: list[Message] = []
    while len(taken) < count:
        got = consumer.poll(count - len(taken), timeout_s=LIMIT_S)
        assert got, f"only {len(taken)} of {count} messages came"
        taken += got
    return taken


def offsets(messages: list[Message]) -> list[int]:
    return [message.offset for message in messages]


def test_iteration_gives_all_messages_in_order(broker: SimulatedBroker, make: Make) -> None:
    send(broker, 1_200)
    consumer = make()
    got = [next(consumer) for _ in range(1_200)]
    assert [message.body for message in got] == [b"%d" % n for n in range(1_200)]
    assert (got[7].topic, got[7].queue, got[7].epoch, got[7].key) == ("t", 1, 1, "2")


def test_in_iteration_the_message_before_the_one_yielded_is_done(
    broker: SimulatedBroker, make: Make
) -> None:
    send(broker, 5)
    with make() as consumer:
        for message in consumer:
            if message.offset == 3:
                break
    assert broker.committed("g") == {1: 3}


def test_in_poll_the_batch_before_is_done(broker: SimulatedBroker, make: Make) -> None:
    send(broker, 5)
    with make() as consumer:
        take(consumer, 2)
        take(consumer, 2)
    assert broker.committed("g") == {1: 2}


def test_commit_commits_all_yielded_so_far(broker: SimulatedBroker, make: Make) -> None:
    send(broker, 5)
    consumer = make()
    take(consumer, 3)
    consumer.commit()
    assert broker.committed("g") == {1: 3}
    assert (consumer.committed(1), consumer.position(1)) == (3, 3)


def test_done_messages_are_committed_at_intervals(
    broker: SimulatedBroker, make: Make
) -> None:
    send(broker, 5)
    consumer = make(auto_commit_interval_ms=10)
    take(consumer, 5)
    consumer.poll(timeout_s=0.0)
    assert broker.wait_until(lambda: broker.committed("g") == {1: 5})


def test_without_auto_commit_only_commit_commits(
    broker: SimulatedBroker, make: Make
) -> None:
    send(broker, 5)
    with make(enable_auto_commit=False, auto_commit_interval_ms=1) as consumer:
        take(consumer, 2)
        consumer.commit({1: 1})
        take(consumer, 3)
        consumer.poll(timeout_s=0.0)
    assert broker.committed("g") == {1: 1}


def test_a_restarted_consumer_goes_on_at_the_committed_offset(
    broker: SimulatedBroker, make: Make
) -> None:
    send(broker, 10)
    with make() as first:
        take(first, 4)
        first.commit()
        take(first, 2)
    assert offsets(take(make(), 6)) == [4, 5, 6, 7, 8, 9]


def test_iteration_ends_after_consumer_timeout(broker: SimulatedBroker, make: Make) -> None:
    send(broker, 3)
    assert len(list(make(consumer_timeout_ms=300))) == 3


def test_a_message_sent_later_arrives_without_delay(
    broker: SimulatedBroker, make: Make
) -> None:
    consumer = make()
    assert consumer.poll(timeout_s=0.05) == []
    send(broker, 1)
    assert offsets(take(consumer, 1)) == [0]


def test_poll_returns_nothing_after_its_timeout(make: Make) -> None:
    assert make().poll(timeout_s=0.01) == []


def test_what_is_held_ahead_is_bounded(broker: SimulatedBroker, make: Make) -> None:
    send(broker, 500)
    consumer = make(max_poll_records=20)
    take(consumer, 1)
    assert broker.wait_until(lambda: len(broker.seen(r"/pull")) >= 1)
    assert consumer._state.buffered <= 40


def test_seek_goes_back_and_forth(broker: SimulatedBroker, make: Make) -> None:
    send(broker, 10)
    consumer = make()
    take(consumer, 5)
    consumer.seek(1, 1)
    assert offsets(take(consumer, 2)) == [1, 2]
    consumer.seek(1, 8)
    assert offsets(take(consumer, 2)) == [8, 9]


def test_seek_back_at_the_end_of_a_queue_does_not_wait_for_the_long_poll(
    broker: SimulatedBroker, make: Make
) -> None:
    send(broker, 3)
    consumer = make()
    take(consumer, 3)
    assert broker.wait_until(
        lambda: any(
            seen.body["queues"][0:1] == [{"queue": 1, "epoch": 1, "offset": 3}]
            for seen in broker.requests
            if seen.path.endswith("pull")
        )
    )
    consumer.seek(1, 0)
    assert offsets(take(consumer, 3)) == [0, 1, 2]


def test_seek_back_never_lowers_the_committed_offset(
    broker: SimulatedBroker, make: Make
) -> None:
    send(broker, 5)
    with make() as consumer:
        take(consumer, 5)
        consumer.commit()
        consumer.seek(1, 0)
        take(consumer, 2)
        consumer.commit()
    assert broker.committed("g") == {1: 5}


def test_seek_to_beginning_and_end(broker: SimulatedBroker, make: Make) -> None:
    send(broker, 5)
    broker.clean(1, before=2)
    consumer = make()
    take(consumer, 1)
    consumer.seek_to_end()
    assert consumer.position(1) == 5
    consumer.seek_to_beginning(1)
    assert consumer.position(1) == 2


def test_seek_of_a_foreign_queue_or_below_zero_is_refused(make: Make) -> None:
    with pytest.raises(OptionError, match="queue 99 is not owned"):
        make().seek(99, 0)
    with pytest.raises(OptionError, match="start at 0"):
        make().seek(1, -1)


def test_a_paused_queue_gives_nothing_until_resumed(
    broker: SimulatedBroker, make: Make
) -> None:
    send(broker, 5)
    consumer = make()
    take(consumer, 1)
    consumer.pause()
    assert [queue.queue for queue in consumer.paused()] == [1]
    assert consumer.poll(timeout_s=0.05) == []
    consumer.resume(1)
    assert offsets(take(consumer, 4)) == [1, 2, 3, 4]


@pytest.mark.parametrize(("choice", "expected"), [("earliest", 4), ("latest", 10)])
def test_a_position_cleaned_away_follows_auto_offset_reset(
    broker: SimulatedBroker, make: Make, choice: str, expected: int
) -> None:
    broker.subscribe("g", "t")
    send(broker, 10)
    broker.clean(1, before=4)
    consumer = make(auto_offset_reset=choice)
    consumer.poll(timeout_s=0.0)
    assert broker.wait_until(
        lambda: any(
            q["offset"] == expected for s in broker.seen("/pull") for q in s.body["queues"]
        )
    )


def test_a_position_cleaned_away_is_raised_when_none_is_chosen(
    broker: SimulatedBroker, make: Make
) -> None:
    send(broker, 10)
    broker.clean(1, before=4)
    broker.subscribe("g", "t").positions[1].committed = 0
    with pytest.raises(OffsetReset, match="offset 0 is outside 4 to 10"):
        make(auto_offset_reset="none").poll(timeout_s=LIMIT_S)


def test_latest_subscribes_at_the_end(broker: SimulatedBroker, make: Make) -> None:
    send(broker, 5)
    consumer = make(auto_offset_reset="latest")
    assert consumer.poll(timeout_s=0.05) == []
    send(broker, 1)
    assert offsets(take(consumer, 1)) == [5]


def test_a_broker_restart_is_ridden_out(broker: SimulatedBroker, make: Make) -> None:
    send(broker, 50)
    consumer = make(max_poll_records=10)
    got = take(consumer, 10)
    broker.fail(".*", ConnectFailed("connection refused"), times=20)
    got += take(consumer, 40)
    consumer.commit()
    assert offsets(got) == list(range(50))
    assert broker.committed("g") == {1: 50}


def test_lost_answers_lose_and_repeat_nothing(broker: SimulatedBroker, make: Make) -> None:
    send(broker, 50)
    broker.fail(
        r"(pull|commit|acquire|heartbeat|consumers)$",
        AnswerLost("cut off"),
        after=True,
        times=8,
    )
    consumer = make(max_poll_records=10, auto_commit_interval_ms=1)
    assert offsets(take(consumer, 50)) == list(range(50))


def test_an_expired_member_registers_again_and_repeats_what_was_not_committed(
    broker: SimulatedBroker, make: Make
) -> None:
    send(broker, 5)
    consumer = make(name="me")
    take(consumer, 2)
    consumer.commit()
    take(consumer, 2)
    broker.expire("g", "me")
    consumer._state.want_heartbeat()
    assert broker.wait_until(lambda: len(broker.seen("POST .*/consumers$")) == 2)
    assert offsets(take(consumer, 3)) == [2, 3, 4]


def test_a_commit_after_the_queue_went_to_another_is_refused(
    broker: SimulatedBroker, make: Make
) -> None:
    send(broker, 5)
    consumer = make(name="me")
    take(consumer, 2)
    broker.change(
        lambda: setattr(broker.find_group("g").positions[1], "fence", (9, "other"))
    )
    with pytest.raises(CommitFailed, match="t queue 1 moved to another member"):
        consumer.commit()


def test_a_replaced_consumer_stops_with_an_error(
    broker: SimulatedBroker, make: Make
) -> None:
    send(broker, 5)
    old = make(name="same")
    take(old, 2)
    new = make(name="same")
    take(new, 2)
    old._state.want_heartbeat()
    assert old._state.wait(LIMIT_S, lambda: old._state.fatal is not None)
    with pytest.raises(ConsumerReplaced):
        old.poll()
    with pytest.raises(ConsumerReplaced):
        next(old)


def test_a_fenced_pull_drops_the_queue_and_asks_who_owns_it(
    broker: SimulatedBroker, make: Make
) -> None:
    send(broker, 5)
    consumer = make(max_poll_records=1)
    take(consumer, 1)
    position = broker.find_group("g").positions[1]
    broker.change(lambda: setattr(position, "fence", (9, "other")))
    # Metadata follows the node with a higher epoch, as a broker does.
    broker.change(lambda: setattr(position, "epoch", 10))
    assert take(consumer, 4)[-1].epoch == 10
    assert position.fence[0] == 10


def test_an_unknown_topic_reaches_the_application(make: Make) -> None:
    with pytest.raises(NotFound, match="catmq topic create nope"):
        make(topics=["nope"]).poll(timeout_s=LIMIT_S)


def test_a_wrong_key_reaches_the_application(broker: SimulatedBroker, make: Make) -> None:
    broker.fail(
        "consumers", Unauthenticated("no such key", code="unauthenticated", status=401)
    )
    with pytest.raises(Unauthenticated):
        make().poll(timeout_s=LIMIT_S)


def test_a_stopped_group_gives_nothing_and_goes_on_when_started(
    broker: SimulatedBroker, make: Make
) -> None:
    send(broker, 3)
    group = broker.subscribe("g", "t")
    group.stopped = True
    consumer = make()
    assert consumer.poll(timeout_s=0.05) == []
    broker.change(lambda: setattr(group, "stopped", False))
    consumer._state.want_heartbeat()
    assert len(take(consumer, 3)) == 3


def test_an_application_that_stays_away_loses_its_queues_and_is_told(
    broker: SimulatedBroker, make: Make
) -> None:
    send(broker, 5)
    consumer = make(max_poll_interval_ms=1)
    take(consumer, 2)
    group = broker.find_group("g")
    consumer._state.away_since = time.monotonic() - 1
    consumer._state.want_heartbeat()
    assert broker.wait_until(lambda: not group.members)
    with pytest.raises(MaxPollIntervalExceeded):
        consumer.poll(timeout_s=LIMIT_S)
    assert offsets(take(consumer, 1)) == [0]


def test_without_lease_nothing_is_given_out_until_a_heartbeat_is_recorded(
    broker: SimulatedBroker, make: Make
) -> None:
    send(broker, 5)
    consumer = make()
    take(consumer, 2)
    broker.fail("heartbeat", ConnectFailed("down"), times=10_000)
    consumer._state.lease_until = 0.0
    assert consumer.poll(timeout_s=0.05) == []
    broker.heal()
    consumer._state.want_heartbeat()
    assert len(take(consumer, 3)) == 3


def test_a_lease_begins_when_its_heartbeat_was_sent(broker: SimulatedBroker) -> None:
    arrived_at: list[float] = []

    class Noting:
        """Notes when heartbeats arrive."""

        def request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
            if path.endswith("/heartbeat"):
                arrived_at.append(lease_clock())
            return broker.request(method, path, **more)

    send(broker, 1)
    with Consumer(transport=Noting(), group="g", topics=["t"]) as consumer:
        assert take(consumer, 1)
        with consumer._state.changed:
            begun_at = consumer._state.lease_until - consumer._state.session_timeout_s
    assert begun_at < arrived_at[-1]


def test_callbacks_tell_of_queues_before_their_first_message_and_at_the_end(
    broker: SimulatedBroker, make: Make
) -> None:
    send(broker, 3)
    told: list[Any] = []
    options = {
        "on_assigned": lambda q: told.append(("+", q)),
        "on_revoked": lambda q: told.append(("-", q)),
    }
    with make(**options) as consumer:
        told.append(take(consumer, 1)[0].offset)
        assignment = consumer.assignment()
    assert told == [("+", assignment), 0, ("-", assignment)]


def test_on_assigned_may_seek(broker: SimulatedBroker, make: Make) -> None:
    send(broker, 5)
    consumer: Consumer = make(on_assigned=lambda queues: consumer.seek(queues[0].queue, 3))
    assert offsets(take(consumer, 2)) == [3, 4]


def test_a_closed_consumer_is_closed(broker: SimulatedBroker, make: Make) -> None:
    consumer = make()
    consumer.poll(timeout_s=0.0)
    consumer.close()
    assert list(consumer) == []
    with pytest.raises(Closed):
        consumer.poll()
    assert not broker.find_group("g").members


def test_close_commits_although_the_broker_restarts(
    broker: SimulatedBroker, make: Make
) -> None:
    send(broker, 3)
    consumer = make(auto_commit_interval_ms=60_000)
    take(consumer, 3)
    consumer.poll(timeout_s=0.0)
    broker.fail("commit", ConnectFailed("restarting"), times=3)
    broker.fail("DELETE", ConnectFailed("restarting"), times=1)
    consumer.close()
    assert broker.committed("g") == {1: 3}
    assert not broker.find_group("g").members


def test_stop_ends_a_waiting_iteration_from_another_thread(make: Make) -> None:
    consumer = make()
    got: list[Message] = []
    thread = threading.Thread(target=lambda: got.extend(consumer))
    thread.start()
    assert consumer._state.wait(LIMIT_S, lambda: consumer._state.consumer_id is not None)
    consumer.stop()
    thread.join(LIMIT_S)
    assert not thread.is_alive()


def test_a_consumer_used_after_a_fork_says_so(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = make()
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    with pytest.raises(Closed, match="fork"):
        consumer.poll()
    monkeypatch.undo()


def test_an_application_that_got_nothing_has_to_come_back_too(
    broker: SimulatedBroker, make: Make
) -> None:
    consumer = make()
    assert consumer.poll(timeout_s=0.0) == []
    assert consumer._state.away_since is not None


def test_an_idle_iteration_is_not_away(broker: SimulatedBroker, make: Make) -> None:
    consumer = make(max_poll_interval_ms=1)
    got: list[Message] = []
    thread = threading.Thread(target=lambda: got.append(next(consumer)))
    thread.start()
    assert broker.wait_until(lambda: bool(broker.seen("/pull")))
    for _ in range(3):
        beats = len(broker.seen("heartbeat"))
        consumer._state.want_heartbeat()
        assert broker.wait_until(
            lambda before=beats: len(broker.seen("heartbeat")) > before
        )  # type: ignore[misc]
    send(broker, 1)
    thread.join(LIMIT_S)
    assert offsets(got) == [0]


class CommitsAnswer:
    """A transport whose commits are answered with one state for all queues."""

    def __init__(self, broker: SimulatedBroker) -> None:
        self.broker = broker
        self.left: int = 0
        self.state = "unavailable"

    def request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        if path.endswith("/commit") and self.left:
            self.left -= 1
            queues = [asked["queue"] for asked in more["body"]["offsets"]]
            return {"results": [{"queue": queue, "state": self.state} for queue in queues]}
        return self.broker.request(method, path, **more)


@pytest.fixture
def answering(broker: SimulatedBroker) -> Iterator[tuple[CommitsAnswer, Consumer]]:
    transport = CommitsAnswer(broker)
    options: dict[str, Any] = {"retry_backoff_ms": 1, "auto_commit_interval_ms": 60_000}
    with Consumer(transport=transport, group="g", topics=["t"], **options) as consumer:
        yield transport, consumer


def test_commit_repeats_what_a_node_cannot_store_now(
    broker: SimulatedBroker, answering: tuple[CommitsAnswer, Consumer]
) -> None:
    transport, consumer = answering
    send(broker, 3)
    take(consumer, 3)
    transport.left = 2
    consumer.commit()
    assert (transport.left, broker.committed("g")) == (0, {1: 3})


def test_commit_raises_what_could_not_be_stored_in_time(
    broker: SimulatedBroker,
    answering: tuple[CommitsAnswer, Consumer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transport, consumer = answering
    monkeypatch.setattr("catmq_client.consumer.COMMIT_WITHIN_S", 0.0)
    send(broker, 3)
    take(consumer, 3)
    transport.left = 1_000
    with pytest.raises(Unavailable, match="t queue 1 offset 3"):
        consumer.commit()
    transport.left = 0


def test_close_repeats_a_commit_that_a_node_could_not_store(
    broker: SimulatedBroker, answering: tuple[CommitsAnswer, Consumer]
) -> None:
    transport, consumer = answering
    send(broker, 3)
    take(consumer, 3)
    consumer.poll(timeout_s=0.0)
    transport.left = 1
    consumer.close()
    assert broker.committed("g") == {1: 3}


def test_a_commit_above_the_last_message_is_refused(
    broker: SimulatedBroker, make: Make
) -> None:
    send(broker, 3)
    consumer = make()
    take(consumer, 1)
    with pytest.raises(OptionError, match="above the log end offset: t queue 1 offset 999"):
        consumer.commit({1: 999})


def test_commit_tells_of_a_queue_that_was_lost_since_an_earlier_poll(
    broker: SimulatedBroker, make: Make
) -> None:
    send(broker, 2)
    consumer = make(enable_auto_commit=False, name="me")
    take(consumer, 2)
    assert consumer.poll(timeout_s=0.0) == []
    broker.expire("g", "me")
    consumer._state.want_heartbeat()
    assert consumer._state.wait(LIMIT_S, lambda: bool(consumer._state.unannounced_losses))
    with pytest.raises(CommitFailed, match="t queue 1"):
        consumer.commit()
    consumer.commit()


def test_a_paused_queue_leaves_its_room_to_the_others(
    broker: SimulatedBroker, make: Make
) -> None:
    topic = broker.create_topic("p", queues=2)
    first, second = (queue.id for queue in topic.queues)
    with Producer(transport=broker) as producer:
        producer.send_batch("p", [NewMessage(b"x", queue=first)] * 100)
        consumer = make(topics=["p"], group="h", max_poll_records=20)
        assert take(consumer, 1)[0].queue == first
        consumer.pause(first)
        assert consumer._state.buffered == 0
        producer.send("p", b"y", queue=second)
        assert [message.queue for message in take(consumer, 1)] == [second]
