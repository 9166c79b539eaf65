"""ShareConsumer against the real views: what it leases, says of it, and gets again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from catmq_client import (
    Consumer,
    HttpTransport,
    NewMessage,
    Producer,
    ShareConsumer,
    ShareMessage,
)
from catmq_client.admin.api import Admin
from catmq_client.contrib.django_tasks.conf import TaskSettings
from catmq_client.contrib.django_tasks.working import topology
from catmq_client.contrib.django_tasks.working.worker import TaskConsumer
from catmq_client.errors import AnswerLost, Conflict, ConnectFailed
from catmq_client.http import wire
from catmq_client.http.transport import Transport
from messagestore.pool import node_pools
from messagestore.tables.shares import run_sql
from metadata.cache import snapshot
from tests.support.broker import Broker
from tests.support.environment import ROOT
from tests.support.shares import LIMIT_S, Running, numbers
from tests.support.waiting import until

CODECS: dict[str, wire.Codec] = {"json": wire.JsonCodec(), "msgpack": wire.MsgpackCodec()}


@pytest.fixture
def transport(broker: Broker) -> Iterator[HttpTransport]:
    made = HttpTransport(broker.url, api_key=broker.api_key)
    yield made
    made.close()


def send(transport: Transport, count: int, topic: str = "single", **more: Any) -> None:
    with Producer(transport=transport) as producer:
        producer.send_batch(topic, [NewMessage(b"%d" % n, **more) for n in range(count)])


def member(transport: Transport, **options: Any) -> ShareConsumer:
    given = {"group": "mails", "topics": ["single"], "lease_ms": 5_000, **options}
    return ShareConsumer(transport=transport, **given)


def is_all_committed(broker: Broker, count: int) -> bool:
    told = broker.call("GET", "/groups/mails/offsets").json().get("queues", ())
    return (
        sum(one["committed"] or 0 for one in told if not one["topic"].endswith("_fail"))
        == count
    )


def test_workers_of_tasks_that_start_at_once_for_the_first_time_all_find_what_they_need(
    broker: Broker, transport: HttpTransport, in_threads: Callable[..., list[Any]]
) -> None:
    settings, barrier = TaskSettings(queues=("mails",)), threading.Barrier(6)

    def start() -> int:
        barrier.wait()
        return len(topology.create_missing(Admin(transport), settings))

    in_threads([start] * 6)
    assert topology.create_missing(Admin(transport), settings) == []


def test_a_worker_of_tasks_drops_what_it_rejects_where_no_retry_node_is(
    broker: Broker, queue: int, transport: HttpTransport
) -> None:
    send(transport, 6)
    with TaskConsumer(
        transport=transport,
        group="mails",
        topics=["single"],
        lease_ms=5_000,
        auto_accept=False,
    ) as worker:
        seen = 0
        while seen < 6:
            for message in worker.poll(1, timeout_s=LIMIT_S):
                seen += 1
                message.reject("wrong \ud83d")  # half of a character, as a body may have it
        until(lambda: is_all_committed(broker, 6))
        assert worker.poll(1, timeout_s=0.1) == []


@pytest.mark.parametrize("codec", CODECS)
def test_two_members_see_everything_once(broker: Broker, queue: int, codec: str) -> None:
    transport = HttpTransport(broker.url, api_key=broker.api_key, codec=CODECS[codec])
    send(transport, 200, tag="t", headers={"h": "ä"})
    members = [
        Running(member(transport, name=f"m{n}"), lambda m: None, threads=3)
        for n in range(2)
    ]
    with members[0], members[1]:
        until(lambda: is_all_committed(broker, 200))
    seen = [message for one in members for message in one.got]
    assert Counter(numbers(seen)) == Counter(range(200))
    message = seen[0]
    assert (message.topic, message.tag, message.headers, message.deliveries) == (
        "single",
        "t",
        {"h": "ä"},
        1,
    )
    assert all(one.raised == [] for one in members)
    transport.close()


def test_what_a_consumer_leaves_unfinished_comes_again_at_once(
    broker: Broker, queue: int, transport: HttpTransport
) -> None:
    send(transport, 3)
    with member(transport) as one:
        assert next(one).text == "0" and next(one).text == "1"
    begun = time.monotonic()
    with member(transport, consumer_timeout_ms=3_000) as two:
        got = [next(two), next(two)]
        assert sorted(numbers(got)) == [1, 2]
    assert time.monotonic() - begun < 4.0, "it did not wait for the lease"


def test_what_waited_when_a_member_closed_counts_as_not_delivered(
    failure_node: str, broker: Broker, queue: int, transport: HttpTransport
) -> None:
    send(transport, 8)
    seen = []
    for _ in range(6):  # more often than a message may be delivered
        with member(transport, prefetch=8) as one:
            seen += one.poll(1, timeout_s=10)
            one.commit()
    with member(transport) as last:
        while len(seen) < 8:
            seen += last.poll(timeout_s=10)
    assert sorted(numbers(seen)) == [*range(8)]
    assert {message.deliveries for message in seen} == {1}


def test_a_message_that_kills_each_process_that_begins_with_it_is_dead_after_the_last_delivery(
    failure_node: str, broker: Broker, queue: int, tmp_path: Path
) -> None:
    """kill -9 at once when it begins: nothing but the report before tells that it did."""
    times = {"lease_ms": 5_000, "session_timeout_ms": 6_000}  # as the program has them
    broker.ok(
        "POST", "/groups", {"name": "mails", "mode": "share", "max_deliveries": 3, **times}
    )
    broker.ok("POST", "/topics/single/messages", {"messages": [{"body": "0"}]})
    log, group_id = tmp_path / "log", snapshot.find_group("mails").id
    words = ["mails", "single", str(log), "1", "0", "0"]
    environment = {**os.environ, "CATMQ_URL": broker.url, "CATMQ_API_KEY": broker.api_key}
    for _ in range(3):
        command = [sys.executable, "tests/acceptance/programs/sharer.py", *words]
        process = subprocess.Popen(command, cwd=ROOT, env=environment)
        assert process.wait(60) == -signal.SIGKILL
        with node_pools.node_of(queue).writing() as session:
            run_sql.end_leases(session, group_id=group_id, queue=queue, first=0)
    (letter,) = until(lambda: broker.ok("GET", "/groups/mails/dead")["messages"])
    assert letter["error"] == "LeaseLost: 3 leases ended without a result"
    assert log.read_text().count('"begin"') == 3


def test_what_a_pull_brings_after_its_consumer_closed_goes_to_others_at_once(
    broker: Broker, queue: int, transport: HttpTransport
) -> None:
    with member(transport, name="one") as one:
        one.poll(timeout_s=0.5)  # its next pull waits, also when it has left
    with member(transport, name="two", consumer_timeout_ms=3_000) as two:
        send(transport, 4)
        got = [next(two) for _ in range(4)]
    assert sorted(numbers(got)) == [*range(4)]


def test_a_message_is_released_rejected_and_retried(
    failure_node: str, broker: Broker, queue: int, transport: HttpTransport
) -> None:
    def handle(message: ShareMessage) -> None:
        if message.text == "1" and message.deliveries == 1:
            message.release()
        elif message.text == "2":
            message.reject("never")
        elif message.text == "3" and message.attempt == 0:
            message.release(delay_s=0.5)
        elif message.text == "4" and message.attempt == 0:
            raise ValueError("bad")

    send(transport, 6)
    broker.ok("POST", "/groups", {"name": "mails", "mode": "share", "lease_ms": 5_000})
    broker.ok(
        "POST", "/groups/mails/subscriptions", {"topic": "single", "start": "earliest"}
    )
    broker.ok("PATCH", "/groups/mails/subscriptions/single", {"retry_delays_s": [1]})
    snapshot.refresh()
    with Running(member(transport), handle, threads=2) as running:
        until(lambda: len(running.got) == 9, limit_s=30)
        until(lambda: is_all_committed(broker, 6))
    assert sorted(numbers(running.got)) == [0, 1, 1, 2, 3, 3, 4, 4, 5]
    again = {m.text: m for m in running.got if m.attempt}
    assert again.keys() == {"3", "4"} and again["4"].origin is not None
    assert again["4"].topic == "single" and again["4"].origin.error == "ValueError: bad"
    dead = Admin(transport).dead_letters.messages("mails", topic="single")
    assert [one["error"] for one in dead] == ["never"]


def test_a_message_held_past_several_leases_stops_nobody(
    broker: Broker, queue: int, transport: HttpTransport
) -> None:
    free = threading.Event()

    def handle(message: ShareMessage) -> None:
        if message.text == "0":
            free.wait(60)

    send(transport, 50)
    with (
        Running(member(transport, name="a"), handle, threads=1) as one,
        Running(member(transport, name="b"), handle, threads=1) as two,
    ):
        both = lambda: one.got + two.got  # noqa: E731
        until(lambda: len({int(m.body) for m in both()}) == 50, limit_s=30)
        begun = time.monotonic()
        until(lambda: time.monotonic() - begun > 12, limit_s=20, every_s=0.2)
        (held,) = [message for message in both() if message.text == "0"]
        assert held.is_held and held.deliveries == 1 and held.lease_left_s > 0
        free.set()
        until(lambda: is_all_committed(broker, 50))


def test_a_lost_answer_costs_no_lease(
    broker: Broker, queue: int, transport: HttpTransport
) -> None:
    class Losing:
        """Loses the first answer that has runs."""

        left = 1

        def request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
            answer = transport.request(method, path, **more)
            if answer.get("runs") and self.left:
                self.left -= 1
                raise AnswerLost("gone")
            return answer

    send(transport, 5)
    begun = time.monotonic()
    with member(Losing(), consumer_timeout_ms=3_000) as consumer:
        got = [next(consumer) for _ in range(5)]
    assert sorted(numbers(got)) == [*range(5)] and {m.deliveries for m in got} == {1}
    assert time.monotonic() - begun < 3.0


def test_what_somebody_else_leased_meanwhile_is_lost(
    broker: Broker, queue: int, transport: HttpTransport
) -> None:
    class Cut:
        """A network that may be down."""

        is_down = False

        def request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
            if self.is_down:
                raise ConnectFailed("down")
            return transport.request(method, path, **more)

    network = Cut()
    send(transport, 1)
    with member(network, name="one", auto_accept=False, max_in_flight=1) as one:
        (message,) = one.poll(timeout_s=LIMIT_S)
        network.is_down = True
        group = snapshot.find_group("mails")
        with node_pools.node_of(queue).writing() as session:
            run_sql.end_leases(session, group_id=group.id, queue=queue, first=0)
        with member(transport, name="two", auto_accept=False) as two:
            (again,) = two.poll(timeout_s=LIMIT_S)
            assert (again.offset, again.deliveries) == (0, 2)
            network.is_down = False
            assert message.renew(1)
            until(lambda: not message.is_held)
            assert again.accept()
            two.commit()


def test_a_hundred_threads_work_on_one_queue(
    broker: Broker, queue: int, transport: HttpTransport
) -> None:
    send(transport, 1_000)
    begun = time.monotonic()
    with Running(member(transport), lambda m: time.sleep(0.1), threads=100) as running:
        until(lambda: len(running.got) == 1_000, limit_s=60)
        took_s = time.monotonic() - begun
        until(lambda: is_all_committed(broker, 1_000))
    assert Counter(numbers(running.got)) == Counter(range(1_000))
    assert took_s < 20, "one after the other they would take 100 s"


def test_a_group_of_the_other_kind_is_refused(
    broker: Broker, queue: int, transport: HttpTransport
) -> None:
    with member(transport) as one:
        one.poll(timeout_s=0.5)
        with (
            Consumer(
                transport=transport, group="mails", topics=["single"], mode="clustering"
            ) as other,
            pytest.raises(Conflict),
        ):
            other.poll(timeout_s=LIMIT_S)
    with Consumer(transport=transport, group="plain", topics=["single"]) as plain:
        plain.poll(timeout_s=0.5)
    with member(transport, group="plain") as wrong, pytest.raises(Conflict) as raised:
        wrong.poll(timeout_s=LIMIT_S)
    assert raised.value.code == "group_settings_differ"
