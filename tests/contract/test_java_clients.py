"""Java clients of PMQ and CatMQ against a real broker: what each call answers, and what a
group does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from brokerapi.endpoint import Call
from brokerapi.java import endpoint, failing, holds, polling, reading, sending
from messagestore.consume import node_owners
from messagestore.heads.heads import board
from metadata.cache import snapshot
from metadata.config import config
from metadata.errors import NodeUnavailable, OutcomeUnknown
from metadata.membership import java_members
from tests.support.broker import Broker
from tests.support.java_client import CONSUMER, Failed, JavaClient, Timing, Wire
from tests.support.waiting import until

QUICK = Timing(commit=0.1, first_beat=0.2, beat=1.0)
Clients = Callable[..., JavaClient]
pytestmark = pytest.mark.usefixtures("java_let_in")


@pytest.fixture
def group(broker: Broker, queue: int) -> str:
    """The name of a group that reads topic `single` from its beginning."""
    broker.ok("POST", "/groups", {"name": "readers"})
    broker.ok(
        "POST", "/groups/readers/subscriptions", {"topic": "single", "start": "earliest"}
    )
    return "readers"


@pytest.fixture
def client(broker: Broker) -> Iterator[Clients]:
    """A function that starts a client; all are closed at the end."""
    made: list[JavaClient] = []

    def start(handle: Any, **more: Any) -> JavaClient:
        one = JavaClient(broker.url, {"readers": ["single"]}, handle, timing=QUICK, **more)
        made.append(one)
        one.start()
        return one

    yield start
    for one in made:
        if not one.stopped.is_set():
            one.close()


def send(broker: Broker, *bodies: str) -> None:
    wire = Wire(broker.url)
    body = {
        "topicName": "single",
        "synFlag": 1,
        "msgs": [{"id": 0, "body": one} for one in bodies],
    }
    assert wire.call(CONSUMER + "publish", body)["suc"] is True
    wire.close()


def committed(broker: Broker) -> int:
    (row,) = [
        one
        for one in broker.ok("GET", "/groups/readers/offsets")["queues"]
        if one["topic"] == "single"
    ]
    return int(row["committed"])


def ask(broker: Broker, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The answer to one call."""
    wire = Wire(broker.url)
    try:
        return wire.call(path, body)
    finally:
        wire.close()


def test_a_client_reads_what_another_sent_and_commits_it(
    broker: Broker, group: str, client: Clients
) -> None:
    got: list[dict[str, Any]] = []
    send(broker, "a", "b", "c")
    client(lambda message, queue: got.append(message) or True)
    until(lambda: len(got) == 3)
    assert [one["body"] for one in got] == ["a", "b", "c"]
    assert [one["id"] for one in got] == [1, 2, 3]
    until(lambda: committed(broker) == 3)


def test_a_closed_client_leaves_at_once_and_the_next_goes_on(
    broker: Broker, group: str, client: Clients
) -> None:
    got: list[str] = []
    send(broker, "a", "b")
    first = client(lambda message, queue: got.append(message["body"]) or True)
    until(lambda: committed(broker) == 2)
    done = threading.Event()
    threading.Thread(target=lambda: (first.close(), done.set())).start()
    assert done.wait(3), "its poll was not ended by flag 1"
    assert broker.ok("GET", "/groups/readers")["members"] == []
    send(broker, "c")
    client(lambda message, queue: got.append(message["body"]) or True)
    until(lambda: got == ["a", "b", "c"])


def poll(broker: Broker, java_id: int, version: int = 0) -> dict[str, Any]:
    body = {"consumerId": java_id, "consumerGroupVersion": {"readers": version}}
    return ask(broker, CONSUMER + "getConsumerGroupPolling", body)


def join(broker: Broker, name: str = "127.0.0.1|1|7|8080") -> int:
    """The number of a client that joined group `readers`."""
    java_id = int(ask(broker, CONSUMER + "register", {"name": name})["id"])
    groups = {"consumerGroupNames": {"readers": ["single"]}}
    body = {"consumerId": java_id, "consumerName": name, **groups}
    assert ask(broker, CONSUMER + "registerConsumerGroup", body)["suc"] is True
    return java_id


def told(
    broker: Broker, java_id: int, version: int = 0
) -> tuple[dict[str, int], dict[str, Any]]:
    """(versions, queue of topic `single`) as a poll tells them."""
    group = poll(broker, java_id, version)["consumerGroups"]["readers"]
    return group["meta"], next(
        one for one in group["queues"].values() if one["topicName"] == "single"
    )


def commit(
    broker: Broker, queue: dict[str, Any], offset: int, *, flag: int = 0
) -> dict[str, Any]:
    one = {name: queue[name] for name in ("queueOffsetId", "offsetVersion", "topicName")}
    return ask(
        broker,
        CONSUMER + "commitOffset",
        {"queueOffsets": [{**one, "offset": offset}], "flag": flag},
    )


def pull(broker: Broker, queue: dict[str, Any], start: int = 0) -> list[str]:
    body = {"queueId": queue["queueId"], "offsetStart": start, "offsetEnd": start + 50}
    return [one["body"] for one in ask(broker, CONSUMER + "pullData", body)["msgs"]]


def test_flag_1_that_moved_an_offset_tells_where_to_go_on(
    broker: Broker, group: str
) -> None:
    send(broker, "a", "b", "c")
    java_id = join(broker)
    meta, queue = told(broker, java_id)
    assert commit(broker, queue, 2, flag=1)["suc"] is True
    after, moved = until(lambda: told(broker, java_id, meta["version"]))
    assert (moved["offset"], moved["offsetVersion"]) == (2, queue["offsetVersion"] + 1)
    assert after["rbVersion"] == meta["rbVersion"], "it must not stop once more"
    assert after["metaVersion"] > meta["metaVersion"]
    assert commit(broker, queue, 3)["suc"] is True
    assert committed(broker) == 2, "a commit of the former offsetVersion counts no more"


def test_flag_1_ends_a_waiting_poll(
    broker: Broker, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling, "START_HOLD_S", 7.0)
    broker.ok("PATCH", "/groups/readers", {"session_timeout_ms": 60_000})
    send(broker, "a")
    java_id = join(broker)
    meta, queue = told(broker, java_id)
    commit(broker, queue, 1)
    begun, ended = time.monotonic(), threading.Event()
    threading.Thread(
        target=lambda: (poll(broker, java_id, meta["version"]), ended.set())
    ).start()
    assert not ended.wait(0.7)
    commit(broker, queue, 1, flag=1)
    assert ended.wait(2) and time.monotonic() - begun < 4


def timed_commit(
    broker: Broker, queue: dict[str, Any], offset: int
) -> tuple[threading.Thread, list[float]]:
    """A commit on its way, and a list that gets how long it took."""
    took: list[float] = []

    def run() -> None:
        begun = time.monotonic()
        commit(broker, queue, offset)
        took.append(time.monotonic() - begun)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, took


def test_a_commit_that_says_nothing_new_waits_for_a_message_or_flag_1(
    broker: Broker, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "IDLE_HOLD_S", 0.2)
    send(broker, "a")
    _, queue = told(broker, join(broker))
    commit(broker, queue, 1)
    snapshot.refresh()  # as the loop of a worker would
    waiting, took = timed_commit(broker, queue, 1)
    waiting.join(0.5)
    assert not took
    send(broker, "b")
    waiting.join(2)
    assert took and 0.4 < took[0] < 3, (
        "the client has the new message, and must commit it soon"
    )
    behind, took = timed_commit(broker, queue, 1)
    behind.join(2)
    assert took and took[0] < 2, "a message is there already"
    commit(broker, queue, 2)
    waiting, took = timed_commit(broker, queue, 2)
    waiting.join(0.5)
    assert not took
    commit(broker, queue, 2, flag=1)
    snapshot.refresh()  # as the loop of a worker would
    board.wake_group(snapshot.find_group(group).id)
    waiting.join(2)
    assert took and took[0] < 3, "a client that stops waits for it"


def test_a_waiting_poll_ends_when_its_client_hangs_up(
    broker: Broker, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holds, "CHECK_S", 0.1)
    monkeypatch.setattr(polling, "START_HOLD_S", 7.0)
    broker.ok("PATCH", "/groups/readers", {"session_timeout_ms": 60_000})
    java_id = join(broker)
    meta, _ = told(broker, java_id)
    gone = threading.Event()
    monkeypatch.setattr(Call, "has_hung_up", lambda call: gone.is_set())
    begun, ended = time.monotonic(), threading.Event()
    threading.Thread(
        target=lambda: (poll(broker, java_id, meta["version"]), ended.set())
    ).start()
    assert not ended.wait(0.8)
    gone.set()
    assert ended.wait(2) and time.monotonic() - begun < 4


def test_more_threads_come_with_a_rebalance_and_other_settings_without(
    broker: Broker, group: str
) -> None:
    broker.ok("PATCH", "/groups/readers/subscriptions/single", {"threads": 2})
    java_id = join(broker)
    meta, queue = until(
        lambda: (found := told(broker, java_id)) and found[1]["threadSize"] == 2 and found
    )
    broker.ok("PATCH", "/groups/readers/subscriptions/single", {"handler_batch": 5})
    second, queue = until(
        lambda: (
            poll(broker, java_id, meta["version"])["consumerGroups"]
            and told(broker, java_id)
        )
    )
    assert queue["consumerBatchSize"] == 5
    assert (
        second["rbVersion"] == meta["rbVersion"]
        and second["metaVersion"] > meta["metaVersion"]
    )
    broker.ok("PATCH", "/groups/readers/subscriptions/single", {"threads": 8})
    third, queue = until(
        lambda: (
            poll(broker, java_id, second["version"])["consumerGroups"]
            and told(broker, java_id)
        )
    )
    assert queue["threadSize"] == 8 and third["rbVersion"] > second["rbVersion"]


def test_an_offset_that_was_reset_reaches_a_running_client(
    broker: Broker, group: str, client: Clients
) -> None:
    got: list[str] = []
    send(broker, "a", "b")
    client(lambda message, queue: got.append(message["body"]) or True)
    until(lambda: committed(broker) == 2)
    broker.ok("PATCH", "/groups/readers/offsets", {"to": "earliest"})
    until(lambda: got == ["a", "b", "a", "b"])


def test_a_pull_from_beyond_a_reset_does_not_wait_for_the_end_of_its_hold(
    broker: Broker, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to the poll that tells the client of the reset, and a pull from the old
    offset, cross.
    """
    monkeypatch.setattr(reading, "HOLD_MS", 1_000)
    send(broker, "a", "b")
    java_id = join(broker)
    meta, queue = told(broker, java_id)
    commit(broker, queue, 2)
    assert pull(broker, queue, 2) == []  # waits, and is remembered as empty
    monkeypatch.setattr(reading, "HOLD_MS", 60_000)
    broker.ok("PATCH", "/groups/readers/offsets", {"to": "earliest"})
    assert told(broker, java_id, meta["version"])[1]["offset"] == 0
    for _ in range(3):  # each queue that is reset wakes one
        assert pull(broker, queue, 2) == []


def test_a_pull_that_a_reset_has_ended_does_not_wait_again_as_it_did(
    broker: Broker, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client asks once more before its poll tells it of the reset, by the same request."""
    send(broker, "a", "b")
    java_id = join(broker)
    meta, queue = told(broker, java_id)
    commit(broker, queue, 2)
    monkeypatch.setattr(reading, "HOLD_MS", 60_000)

    def pulling() -> threading.Thread:
        one = threading.Thread(target=lambda: got.append(pull(broker, queue, 2)))
        one.start()
        return one

    got: list[list[str]] = []
    first = pulling()
    until(lambda: board.waiters() > 0)
    broker.ok("PATCH", "/groups/readers/offsets", {"to": "earliest"})
    first.join()
    second = pulling()
    assert told(broker, java_id, meta["version"])[1]["offset"] == 0
    second.join()
    assert got == [[], []]


def test_a_client_that_hears_of_a_rebalance_by_its_check_starts_as_soon(
    broker: Broker, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It starts when its poll, which comes later, and further ones are answered."""
    # polls wait for half of it at most
    broker.ok("PATCH", "/groups/readers", {"session_timeout_ms": 60_000})
    broker.ok("POST", "/topics", {"name": "wide", "queues": 4})
    broker.ok("POST", "/groups/readers/subscriptions", {"topic": "wide"})
    java_id = join(broker)
    before = told(broker, java_id)[0]["version"]
    for _ in range(polling.START_ANSWERS):
        poll(broker, java_id, before)
    join(broker, "127.0.0.1|2|7|8081")
    version = until(lambda: told(broker, java_id)[0]["version"] - before) + before
    monkeypatch.setattr(polling, "HOLD_S", 60.0)
    assert told(broker, java_id, before)[0]["version"] == version
    for _ in range(polling.START_ANSWERS):
        assert poll(broker, java_id, version)["consumerDeleted"] == 0


def test_two_polls_of_one_client_wait_side_by_side(broker: Broker, group: str) -> None:
    java_id = join(broker)
    meta, _ = told(broker, java_id)
    done: list[dict[str, Any]] = []
    waiting = threading.Thread(
        target=lambda: done.append(poll(broker, java_id, meta["version"]))
    )
    waiting.start()
    assert told(broker, java_id)[0] == meta, (
        "the check is answered at once, with the same versions"
    )
    waiting.join()
    assert done[0]["consumerGroups"] == {} and done[0]["consumerDeleted"] == 0


def test_a_client_of_whom_nobody_knows_waits_for_its_answer_and_hears_it_from_each_beat(
    broker: Broker, group: str
) -> None:
    begun = time.monotonic()
    answer = poll(broker, 1)
    assert answer["consumerDeleted"] == 1 and answer["consumerGroups"] == {}
    assert 1 < time.monotonic() - begun < 3
    for asyn in (0, 1):
        assert (
            ask(broker, CONSUMER + "heartbeat", {"consumerId": 1, "asyn": asyn})["deleted"]
            == 1
        )


def test_a_client_that_has_just_registered_is_not_deleted(
    broker: Broker, group: str
) -> None:
    java_id = ask(broker, CONSUMER + "register", {"name": "127.0.0.1|1|7null "})["id"]
    assert (
        ask(broker, CONSUMER + "heartbeat", {"consumerId": java_id, "asyn": 0})["deleted"]
        == 0
    )


@pytest.mark.parametrize(("age_s", "deleted"), [(15, 0), (30, 1)])
def test_a_client_that_expired_soon_after_it_registered_is_told_to_register_anew(
    broker: Broker, group: str, age_s: int, deleted: int
) -> None:
    java_id = int((time.time() - age_s) * 1000) << java_members.RANDOM_BITS
    assert (
        ask(broker, CONSUMER + "heartbeat", {"consumerId": java_id, "asyn": 1})["deleted"]
        == deleted
    )


@pytest.mark.parametrize("checks", [False, True])
def test_heartbeats_without_polls_keep_nobody_alive(
    broker: Broker, group: str, monkeypatch: pytest.MonkeyPatch, checks: bool
) -> None:
    """The thread that compares what a client was told goes on when the one that polls has
    ended.
    """
    monkeypatch.setattr(java_members, "SILENT_S", 0.5)
    broker.ok("PATCH", "/groups/readers", {"session_timeout_ms": 2_000})
    java_id = join(broker)
    told(broker, java_id)

    def is_deleted() -> bool:
        if checks:
            answer = poll(broker, java_id)
            assert (
                answer["consumerDeleted"] or answer["consumerGroups"]["readers"]["queues"]
            )
        return bool(
            ask(broker, CONSUMER + "heartbeat", {"consumerId": java_id, "asyn": 1})[
                "deleted"
            ]
        )

    assert not is_deleted()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(java_members, "JOIN_S", 0.0)
        until(is_deleted, every_s=0.1)
    assert broker.ok("GET", "/groups/readers")["members"] == []


def test_queues_that_go_to_another_than_was_told_are_given_up_too(
    broker: Broker, topic: str
) -> None:
    """The second rebalance leaves the first client what it was told, and sends a queue to
    the third.
    """
    broker.ok("POST", "/topics", {"name": "wide", "queues": 4})
    broker.ok("POST", "/groups", {"name": "readers"})
    broker.ok(
        "POST", "/groups/readers/subscriptions", {"topic": "wide", "start": "earliest"}
    )
    first = join(broker, "127.0.0.1|1|7|8081")
    before = poll(broker, first)["consumerGroups"]["readers"]
    assert len(before["queues"]) == 4
    join(broker, "127.0.0.1|2|7|8082")
    kept = until(lambda: poll(broker, first, before["meta"]["version"])["consumerGroups"])[
        "readers"
    ]
    assert len(kept["queues"]) == 2
    join(broker, "127.0.0.1|3|7|8083")
    poll(broker, first, kept["meta"]["version"])

    def owners() -> list[str]:
        return [
            one["owner"] for one in broker.ok("GET", "/groups/readers/offsets")["queues"]
        ]

    until(lambda: len(set(owners())) == 3)


def test_a_former_owner_gets_no_messages_and_commits_nothing(
    broker: Broker, group: str
) -> None:
    send(broker, "a", "b")
    java_id = join(broker)
    _, queue = told(broker, java_id)
    assert pull(broker, queue) == ["a", "b"]
    ask(broker, CONSUMER + "deRegister", {"id": java_id})
    _, mine = until(lambda: told(broker, join(broker, "127.0.0.1|2|7|8081")))
    assert pull(broker, queue) == []
    assert commit(broker, queue, 2)["suc"] is True
    assert committed(broker) == 0
    assert pull(broker, mine) == ["a", "b"]


def test_messages_of_other_clients_come_with_all_they_carry(
    broker: Broker, group: str
) -> None:
    message = {
        "body": "ü",
        "key": "k",
        "tag": "red",
        "trace_id": "t",
        "headers": {"h": "1"},
    }
    binary = {"body_base64": "/w==", "headers": None}
    broker.ok("POST", "/topics/single/messages", {"messages": [message, binary]})
    _, queue = told(broker, join(broker))
    body = {"queueId": queue["queueId"], "offsetStart": 0, "offsetEnd": 50}
    first, second = ask(broker, CONSUMER + "pullData", body)["msgs"]
    assert [first[name] for name in ("id", "bizId", "body", "tag", "traceId", "head")] == [
        *(1, "k", "ü", "red", "t", {"h": "1"})
    ]
    assert isinstance(first["sendTime"], int) and first["retryCount"] == 0
    assert (second["body"], second["head"]) == ("/w==", {"catmq-body": "base64"})
    assert (second["bizId"], second["tag"]) == ("", ""), "as PMQ delivers them"
    assert second["traceId"].endswith("-1"), "the id of the message"


@pytest.mark.parametrize("wanted", [{"tags": "red"}, {"headers": {"colour": ["red"]}}])
def test_a_filter_moves_on_although_the_client_gets_nothing(
    broker: Broker, group: str, wanted: dict[str, Any]
) -> None:
    broker.ok("PATCH", "/groups/readers/subscriptions/single", wanted)
    snapshot.refresh()  # as the loop of a worker would
    messages = [{"body": "x", "tag": "blue"}] * 3
    broker.ok("POST", "/topics/single/messages", {"messages": messages})
    _, queue = told(broker, join(broker))
    assert pull(broker, queue) == []
    assert committed(broker) == 3


def test_failures_come_again_and_the_last_one_is_dead(
    failure_node: str, broker: Broker, group: str, client: Clients
) -> None:
    settings = {"retries": 1, "retry_delays_s": [1]}
    broker.ok("PATCH", "/groups/readers/subscriptions/single", settings)
    snapshot.refresh()  # as the loop of a worker would
    tries: list[tuple[str, int, int]] = []

    def handle(message: dict[str, Any], queue: dict[str, Any]) -> bool:
        tries.append((message["body"], message["retryCount"], queue["topicType"]))
        return message["body"] != "bad"

    send(broker, "bad", "good")
    client(handle)
    until(
        lambda: len(broker.ok("GET", "/groups/readers/dead")["messages"]) == 1, limit_s=30
    )
    assert sorted(tries) == [("bad", 0, 1), ("bad", 1, 2), ("good", 0, 1)]


def test_a_failure_is_not_taken_while_the_node_of_its_queue_is_away(
    failure_node: str, broker: Broker, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.ok("PATCH", "/groups/readers/subscriptions/single", {"retries": 0})
    snapshot.refresh()  # as the loop of a worker would
    send(broker, "bad")
    _, queue = told(broker, join(broker))
    assert pull(broker, queue) == ["bad"]
    body = {"queueId": queue["queueId"], "failMsg": {"msgs": [{"id": 1}]}}
    path = CONSUMER + "publishAndUpdateResultFailMsg"
    with monkeypatch.context() as outage:
        outage.setattr(failing, "TRY_S", 0.2)
        outage.setattr(node_owners, "_read_rows", away)
        with pytest.raises(Failed, match="503"):
            ask(broker, path, body)
    assert ask(broker, path, body)["suc"] is True
    (dead,) = broker.ok("GET", "/groups/readers/dead")["messages"]
    assert dead["topic"] == "single"


def away(*_: Any) -> Any:
    raise NodeUnavailable("away")


def test_every_client_of_a_broadcasting_group_gets_everything(
    broker: Broker, queue: int
) -> None:
    broker.ok("POST", "/groups", {"name": "all", "mode": "broadcasting"})
    broker.ok("POST", "/groups/all/subscriptions", {"topic": "single", "start": "earliest"})
    got: list[tuple[int, str]] = []
    send(broker, "a", "b")
    clients = [
        JavaClient(
            broker.url,
            {"all": ["single"]},
            lambda m, q, n=n: got.append((n, m["body"])) or True,
            timing=QUICK,
        )
        for n in (1, 2)
    ]
    try:
        for one in clients:
            one.start()
        until(lambda: sorted(got) == [(1, "a"), (1, "b"), (2, "a"), (2, "b")])
    finally:
        for one in clients:
            one.close()


def test_a_send_that_got_no_answer_is_stored_once(
    broker: Broker, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first answer says 503, as after a lost connection to the node; the client sends
    the same bytes.
    """
    real = sending.publish.send

    def stored_but_unknown(**given: Any) -> Any:
        real(**given)
        raise OutcomeUnknown("the connection broke")

    body = {"topicName": "single", "msgs": [{"id": 0, "body": "once", "bizId": "b"}]}
    monkeypatch.setattr(sending.publish, "send", stored_but_unknown)
    with pytest.raises(Failed):
        ask(broker, CONSUMER + "publish", body)
    monkeypatch.setattr(sending.publish, "send", real)
    assert ask(broker, CONSUMER + "publish", body)["suc"] is True
    assert [
        one["body"]
        for one in broker.ok("GET", f"/topics/single/messages?{here(broker)}")["messages"]
    ] == ["once"]
    assert ask(broker, CONSUMER + "publish", body)["suc"] is True
    assert (
        len(broker.ok("GET", f"/topics/single/messages?{here(broker)}")["messages"]) == 2
    ), "a send of its own"


def here(broker: Broker) -> str:
    (queue,) = broker.ok("GET", "/topics/single/queues")["queues"]
    return f"queue={queue['queue']}&offset=0"


def test_who_sends_too_fast_is_told_how_long_to_sleep(broker: Broker, queue: int) -> None:
    broker.ok("PATCH", "/topics/single", {"max_messages_per_s": 1})
    body = {"topicName": "single", "msgs": [{"id": 0, "body": "x"}]}

    def refused() -> dict[str, Any] | None:
        answer = ask(broker, CONSUMER + "publish", body)
        return answer if not answer["suc"] else None

    assert until(refused)["sleepTime"] > 0


def test_the_key_of_java_clients_limits_what_they_may(
    broker: Broker, queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"topicName": "single", "msgs": [{"id": 0, "body": "x"}]}
    monkeypatch.setattr(endpoint, "config", replace(config, java_key="services"))
    answer = ask(broker, CONSUMER + "publish", body)
    assert answer["suc"] is False and "services" in answer["msg"]
    broker.ok("POST", "/keys", {"name": "services", "rights": {"produce": ["others"]}})
    refused = until(
        lambda: (
            "produce" in (found := ask(broker, CONSUMER + "publish", body))["msg"] and found
        )
    )
    assert refused["suc"] is False
    token = broker.as_key({"produce": ["single"]}).api_key
    assert ask(broker, CONSUMER + "publish", {**body, "token": token})["suc"] is True


def test_a_topic_with_send_tokens_takes_only_messages_that_name_one(
    broker: Broker, queue: int
) -> None:
    body = {"topicName": "single", "msgs": [{"id": 0, "body": "x"}]}

    def publish(**more: str) -> dict[str, Any]:
        snapshot.refresh()  # as the loop of a worker would
        return ask(broker, CONSUMER + "publish", {**body, **more})

    assert publish()["suc"] is True
    first = broker.ok("POST", "/topics/single/send-tokens")
    second = broker.ok("POST", "/topics/single/send-tokens")
    for wrong in ({}, {"token": ""}, {"token": "other"}):
        answer = publish(**wrong)
        assert (
            answer["suc"] is False
            and answer["sleepTime"] == 0
            and "send token" in answer["msg"]
        )
    assert publish(token=first["token"])["suc"] is True
    assert publish(token=second["token"])["suc"] is True
    assert publish(token=broker.as_key({"produce": ["single"]}).api_key)["suc"] is True
    assert publish(token=broker.as_key({"produce": ["other"]}).api_key)["suc"] is False
    assert [
        one["id"] for one in broker.ok("GET", "/topics/single/send-tokens")["tokens"]
    ] == [*(first["id"], second["id"])]
    broker.ok("DELETE", f"/topics/single/send-tokens/{first['id']}?confirm={first['id']}")
    assert publish(token=first["token"])["suc"] is False
    broker.ok("DELETE", f"/topics/single/send-tokens/{second['id']}?confirm={second['id']}")
    assert publish()["suc"] is True
