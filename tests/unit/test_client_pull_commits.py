"""Commits that go with pulls: which do, and what becomes of those that fail."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from catmq_client import Consumer, Message, NewMessage, Producer
from catmq_client.errors import AnswerLost, CatmqError, CommitFailed, Unavailable
from catmq_client.reading import pull_commits
from tests.support.consumers import Make, making
from tests.support.simulated import SimulatedBroker
from tests.support.waiting import until

ALONE = r"POST .*/commit$"
ABOUT = r"GET /api/v1$"
LIMIT_S = 10.0
NEVER_S = 600.0


class Watched(SimulatedBroker):
    """Notes the commits of pulls. `plant` may raise for a pull that has some, or change the
    answer.
    """

    def __init__(self) -> None:
        super().__init__()
        self.carried: list[list[dict[str, int]]] = []
        self.plant: Callable[[str, dict[str, Any]], None] = lambda when, answer: None

    def request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        commits = (more.get("body") or {}).get("commit") if path.endswith("/pull") else None
        if commits is None:
            return super().request(method, path, **more)
        self.carried.append(commits)
        self.plant("before", {})
        answer = super().request(method, path, **more)
        self.plant("after", answer)
        return answer


@pytest.fixture
def broker() -> Watched:
    made = Watched()
    made.create_topic("t", queues=1)
    return made


@pytest.fixture
def make(broker: Watched) -> Iterator[Make]:
    with making(broker) as made:
        yield made


@pytest.fixture
def pulls_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Due commits wait for a pull as long as a test may take."""
    monkeypatch.setattr(pull_commits, "TAKE_S", NEVER_S)


@pytest.fixture
def alone_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Due commits wait for no pull."""
    monkeypatch.setattr(pull_commits, "TAKE_S", 0.0)


def send(broker: Watched, count: int) -> None:
    with Producer(transport=broker) as producer:
        producer.send_batch("t", [NewMessage(b"x", key="k")] * count)


def knowing(consumer: Consumer) -> Consumer:
    """The consumer has asked its broker, as it does after its first commit."""
    consumer._committer._pull_commits.learn()
    return consumer


def take(consumer: Consumer, count: int) -> list[Message]:
    taken: list[Message] = []
    while len(taken) < count:
        taken += consumer.poll(count - len(taken), timeout_s=LIMIT_S)
    return taken


def stored(broker: Watched) -> int:
    return sum(broker.committed("g").values())


def becomes_stored(broker: Watched, offset: int) -> bool:
    return broker.wait_until(lambda: stored(broker) == offset)


def await_pulls(broker: Watched, count: int) -> None:
    """Returns when so many pulls were sent: the last one has no commit of what comes later."""
    assert broker.wait_until(lambda: len(broker.seen(r"/pull$")) == count)


def test_a_consumer_asks_after_its_first_commit_and_from_then_on_pulls_carry_them(
    broker: Watched, make: Make
) -> None:
    consumer = make(auto_commit_interval_ms=0, max_poll_records=10)
    send(broker, 10)
    take(consumer, 10)
    assert not broker.seen(ABOUT)
    consumer.poll(timeout_s=0.0)
    assert broker.wait_until(lambda: bool(broker.seen(ABOUT)))
    assert stored(broker) == 10
    assert not broker.carried
    until(lambda: bool(consumer._committer._pull_commits._is_supported))
    send(broker, 50)
    take(consumer, 50)
    assert broker.wait_until(lambda: bool(broker.carried))
    assert len(broker.seen(ABOUT)) == 1


def test_each_pull_commits_the_batch_before_and_no_request_is_for_commits_alone(
    broker: Watched, make: Make, pulls_only: None
) -> None:
    consumer = knowing(make(auto_commit_interval_ms=0, max_poll_records=10))
    send(broker, 100)
    for batch in range(10):
        assert len(take(consumer, 10)) == 10
        # The pull for the next batch was sent when this batch was handed out.
        assert stored(broker) <= 10 * batch
    consumer.poll(timeout_s=0.0)
    assert not broker.seen(ALONE)
    offsets = [commit["offset"] for (commit,) in broker.carried]
    assert offsets == sorted(set(offsets)) and len(offsets) >= 8
    consumer.close()
    assert stored(broker) == 100
    assert len(broker.seen(ALONE)) == 1, "close() sends the last one alone"


def test_a_commit_is_stored_before_its_pull_waits_for_messages(
    broker: Watched, make: Make, pulls_only: None
) -> None:
    consumer = knowing(make(auto_commit_interval_ms=0, max_poll_records=2))
    send(broker, 4)
    take(consumer, 2)
    await_pulls(broker, 2)
    take(consumer, 2)
    # The pull that follows has nothing to read, and waits with the first two committed.
    assert becomes_stored(broker, 2)
    assert len(broker.carried) == 1


def test_a_commit_that_falls_due_while_a_pull_waits_is_sent_alone(
    broker: Watched, make: Make
) -> None:
    consumer = knowing(make(auto_commit_interval_ms=0))
    send(broker, 1)
    take(consumer, 1)
    await_pulls(broker, 2)
    consumer.poll(timeout_s=0.0)
    assert becomes_stored(broker, 1)
    assert not broker.carried and len(broker.seen(ALONE)) == 1


def test_the_results_of_a_pull_that_waits_are_asked_for_alone(
    broker: Watched, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull_commits, "TAKE_S", 0.5)
    monkeypatch.setattr(pull_commits, "ANSWER_S", 0.05)
    # While queues may come, a pull waits only for moments.
    monkeypatch.setattr("catmq_client.reading.fetcher.UNSETTLED_S", 0.0)
    consumer = knowing(make(auto_commit_interval_ms=0, max_poll_records=2))
    send(broker, 4)
    (queue,) = {message.queue for message in take(consumer, 2)}
    await_pulls(broker, 2)
    take(consumer, 2)
    assert becomes_stored(broker, 2)
    assert broker.wait_until(lambda: len(broker.seen(ALONE)) == 1)
    until(lambda: consumer.committed(queue) == 2)
    # The late answer takes nothing back.
    send(broker, 1)
    take(consumer, 1)
    assert consumer.committed(queue) >= 2


def test_by_default_a_pull_carries_commits_once_an_interval(
    broker: Watched, make: Make, pulls_only: None
) -> None:
    consumer = knowing(make(auto_commit_interval_ms=600_000, max_poll_records=10))
    send(broker, 100)
    take(consumer, 50)
    assert not broker.carried
    # The interval is over.
    with consumer._state.changed:
        consumer._committer._pull_commits._due_at = 0.0
    take(consumer, 50)
    consumer.poll(timeout_s=0.0)
    assert broker.wait_until(lambda: len(broker.carried) == 1)
    assert not broker.seen(ALONE)


def test_commit_waits_for_no_pull(broker: Watched, make: Make, pulls_only: None) -> None:
    consumer = knowing(make(auto_commit_interval_ms=0))
    send(broker, 3)
    take(consumer, 3)
    consumer.commit()
    assert stored(broker) == 3
    assert len(broker.seen(ALONE)) == 1 and not broker.carried


def test_without_auto_commit_no_pull_commits(
    broker: Watched, make: Make, pulls_only: None
) -> None:
    consumer = knowing(
        make(auto_commit_interval_ms=0, enable_auto_commit=False, max_poll_records=5)
    )
    send(broker, 20)
    for _ in range(4):
        take(consumer, 5)
    consumer.close()
    assert (stored(broker), broker.carried, broker.seen(ALONE)) == (0, [], [])


def test_the_commits_of_handlers_ride_too(broker: Watched, make: Make) -> None:
    consumer = knowing(make(auto_commit_interval_ms=0, max_poll_records=20))
    send(broker, 200)
    broker.subscribe("g", "t")
    handled: list[Message] = []
    thread = threading.Thread(target=lambda: consumer.run(handled.append, threads=2))
    thread.start()
    assert becomes_stored(broker, 200)
    consumer.stop()
    thread.join(LIMIT_S)
    assert len(handled) == 200
    assert broker.carried


@pytest.mark.parametrize("features", [(), ("something_else",)])
def test_a_broker_without_the_feature_gets_no_commits_with_pulls(
    broker: Watched, make: Make, features: tuple[str, ...], alone_at_once: None
) -> None:
    broker.features = features
    consumer = make(auto_commit_interval_ms=1, max_poll_records=5)
    send(broker, 50)
    for _ in range(10):
        take(consumer, 5)
        consumer.commit()
    assert broker.wait_until(lambda: bool(broker.seen(ALONE)))
    take_nothing = consumer.poll(timeout_s=0.0)
    assert take_nothing == [] and stored(broker) == 50
    assert not broker.carried


def test_a_broker_that_cannot_be_asked_gets_commits_alone(
    broker: Watched, make: Make
) -> None:
    broker.fail(ABOUT, Unavailable("not now", status=503), times=1_000)
    consumer = make(auto_commit_interval_ms=0)
    send(broker, 5)
    take(consumer, 5)
    consumer.poll(timeout_s=0.0)
    assert becomes_stored(broker, 5)
    assert broker.wait_until(lambda: bool(broker.seen(ABOUT)))
    send(broker, 5)
    take(consumer, 5)
    consumer.poll(timeout_s=0.0)
    assert becomes_stored(broker, 10)
    assert len(broker.seen(ABOUT)) == 1 and not broker.carried


def test_an_earlier_release_that_takes_over_refuses_one_pull_and_loses_nothing(
    broker: Watched, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = knowing(make(auto_commit_interval_ms=0, max_poll_records=5))
    broker.features = ()
    send(broker, 50)
    got = [message.offset for _ in range(10) for message in take(consumer, 5)]
    consumer.poll(timeout_s=0.0)
    assert becomes_stored(broker, 50)
    assert got == [*range(50)]
    assert len(broker.carried) <= 1, "refused once, it is not tried again for a while"
    assert "fetching failed" not in caplog.text


def test_a_stale_commit_in_a_pull_loses_the_queue_and_commit_says_so(
    broker: Watched, make: Make, pulls_only: None
) -> None:
    consumer = knowing(make(auto_commit_interval_ms=0, max_poll_records=2, name="me"))
    send(broker, 8)
    (queue,) = {message.queue for message in take(consumer, 2)}

    def other_takes_over(when: str, _answer: dict[str, Any]) -> None:
        if when == "before":
            position = broker.find_group("g").positions[queue]
            broker.change(lambda: setattr(position, "fence", (9, "other")))
            broker.plant = lambda when, answer: None

    broker.plant = other_takes_over
    take(consumer, 2)
    until(lambda: bool(consumer._state.unannounced_losses))
    assert stored(broker) == 0
    with pytest.raises(CommitFailed, match="moved to another member"):
        consumer.commit()


def fails_once(broker: Watched, when: str, error: CatmqError) -> threading.Event:
    """The first pull with commits fails, before or after the broker has carried it out."""
    failed = threading.Event()

    def fail(now: str, _answer: dict[str, Any]) -> None:
        if now == when and not failed.is_set():
            failed.set()
            raise error

    broker.plant = fail
    return failed


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_commits_of_a_pull_that_fails_are_sent_alone(
    broker: Watched, make: Make, pulls_only: None, when: str
) -> None:
    consumer = knowing(make(auto_commit_interval_ms=0, max_poll_records=5))
    failed = fails_once(broker, when, AnswerLost("the connection was cut"))
    send(broker, 30)
    got = [message.offset for _ in range(6) for message in take(consumer, 5)]
    assert failed.is_set()
    assert broker.wait_until(lambda: bool(broker.seen(ALONE)))
    assert got == [*range(30)], "and nothing is read twice or skipped"
    consumer.poll(timeout_s=0.0)
    consumer.close()
    assert stored(broker) == 30


@pytest.mark.parametrize("state", ["unavailable", "out_of_range", None])
def test_what_a_pull_could_not_commit_is_repeated_alone_and_pulls_go_on(
    broker: Watched, make: Make, pulls_only: None, state: str | None
) -> None:
    consumer = knowing(make(auto_commit_interval_ms=0, max_poll_records=5))

    def refuse(when: str, answer: dict[str, Any]) -> None:
        if when == "after":
            answer["commit"] = [{**one, "state": state} for one in answer["commit"]]
            broker.plant = lambda when, answer: None
            if state is None:
                del answer["commit"]

    broker.plant = refuse
    send(broker, 30)
    got = [message.offset for _ in range(6) for message in take(consumer, 5)]
    assert got == [*range(30)]
    assert broker.wait_until(lambda: bool(broker.seen(ALONE)))
    consumer.poll(timeout_s=0.0)
    consumer.close()
    assert stored(broker) == 30


def test_an_abandoned_pull_still_tells_what_it_committed(
    broker: Watched, make: Make, pulls_only: None
) -> None:
    consumer = knowing(make(auto_commit_interval_ms=0, max_poll_records=2))
    send(broker, 4)
    (queue,) = {message.queue for message in take(consumer, 2)}
    await_pulls(broker, 2)
    take(consumer, 2)
    assert becomes_stored(broker, 2)
    # Abandons the pull that waits, whose answer comes with the next message.
    consumer.seek(queue, 3)
    send(broker, 1)
    # Only when that answer is applied, another pull carries commits.
    until(lambda: consumer.committed(queue) >= 2)


def test_a_revoked_queue_is_committed_by_its_release(
    broker: Watched, make: Make, pulls_only: None
) -> None:
    consumer = knowing(make(auto_commit_interval_ms=0, name="one"))
    send(broker, 3)
    (queue,) = {message.queue for message in take(consumer, 3)}
    with consumer._state.changed:
        consumer._state.revoke(consumer._state.queues[queue])
        consumer._finish_taken()
        assert consumer._committer.take_for_pull() == []
    assert becomes_stored(broker, 3)
    assert len(broker.seen(ALONE)) == 1
