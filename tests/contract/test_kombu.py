"""The kombu transport against the real views: queues, exchanges, leases, delays and what
goes wrong.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from queue import Empty
from typing import Any

import kombu
import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker
from kombu.asynchronous.hub import Hub
from kombu.exceptions import ChannelError, OperationalError
from kombu.transport.virtual.base import NotEquivalentError

import catmq_client.contrib.kombu  # registers catmq://
from catmq_client import HttpTransport
from catmq_client.admin.api import Admin
from catmq_client.errors import (
    Closed,
    ConnectFailed,
    NotFound,
    OptionError,
    Unauthenticated,
)
from tests.support.broker import Broker
from tests.support.tls_front import tls_front
from tests.support.waiting import until

assert catmq_client.contrib.kombu.Transport.driver_type == "catmq"
QUICK = {"topic_queues": 1, "lease_s": 5}
MAILS = kombu.Queue("mails", kombu.Exchange("mails"), routing_key="mails")
Connect = Callable[..., kombu.Connection]


@pytest.fixture
def connect(broker: Broker, node: str) -> Iterator[Connect]:
    made: list[kombu.Connection] = []

    def connection(url: str = "", **options: Any) -> kombu.Connection:
        url = url or broker.url.replace("http://", f"catmq://:{broker.api_key}@") + "/shop"
        made.append(kombu.Connection(url, transport_options={**QUICK, **options}))
        return made[-1]

    yield connection
    for one in made:
        one.close()


def admin(broker: Broker) -> Admin:
    return Admin(HttpTransport(broker.url, api_key=broker.api_key))


def send(
    connection: kombu.Connection, *bodies: Any, queue: kombu.Queue = MAILS, **more: Any
) -> None:
    with connection.channel() as channel:
        producer = kombu.Producer(
            channel, exchange=queue.exchange, routing_key=queue.routing_key
        )
        for body in bodies:
            producer.publish(body, declare=[queue], **more)


def drained(connection: kombu.Connection, count: int = 1, *, seconds: float = 10.0) -> None:
    """Deliver so many messages, or those that come in time."""
    for _ in range(count):
        try:
            connection.drain_events(timeout=seconds)
        except TimeoutError:
            return


def received(
    connection: kombu.Connection,
    count: int,
    queue: kombu.Queue = MAILS,
    *,
    then_s: float = 0.5,
) -> list[Any]:
    """So many messages of a queue, and those that come within a moment after them,
    acknowledged.
    """
    got: list[Any] = []
    with kombu.Consumer(
        connection, [queue], on_message=lambda message: (got.append(message), message.ack())
    ):
        drained(connection, count)
        drained(connection, seconds=then_s)
    return got


def bodies(messages: list[Any]) -> list[Any]:
    return [message.payload for message in messages]


def test_a_message_is_delivered_once_and_found_by_task_and_id(
    broker: Broker, connect: Connect
) -> None:
    send(connect(), {"n": 1}, headers={"task": "shop.mail", "id": "4711"})
    assert bodies(received(connect(), 1)) == [{"n": 1}]
    assert received(connect(), 0) == []
    found = admin(broker).find("shop.mails", trace_id="4711", tag="shop.mail")["messages"]
    assert [one["trace_id"] for one in found] == ["4711"]


def test_what_was_not_acknowledged_comes_again_when_the_connection_closes(
    connect: Connect,
) -> None:
    one = connect()
    send(one, "a", "b")
    first: list[Any] = []
    with kombu.Consumer(one, [MAILS], on_message=first.append):
        drained(one, 2)
        first[0].ack()
    one.close()
    again = received(connect(), 1)
    assert bodies(again) == bodies(first[1:])
    assert [message.delivery_info["redelivered"] for message in again] == [True]
    assert not first[0].delivery_info["redelivered"]


def test_a_lease_is_renewed_while_the_process_lives(connect: Connect) -> None:
    one, two = connect(), connect()
    send(one, "long")
    held: list[Any] = []
    with kombu.Consumer(one, [MAILS], on_message=held.append):
        drained(one)
        assert received(two, 0, then_s=8.0) == [], "longer than the lease"
        held[0].ack()


def test_another_thread_acknowledges(connect: Connect) -> None:
    one = connect()
    send(one, "a")
    held: list[Any] = []
    with kombu.Consumer(one, [MAILS], on_message=held.append):
        drained(one)
        thread = threading.Thread(target=held[0].ack)
        thread.start()
        thread.join()
    one.close()
    assert received(connect(), 0, then_s=1.0) == []


def test_multiple_acknowledges_all_before(connect: Connect) -> None:
    one = connect()
    send(one, *range(4))
    held: list[Any] = []
    with kombu.Consumer(one, [MAILS], on_message=held.append):
        drained(one, 4)
        held[2].ack(multiple=True)
    one.close()
    assert bodies(received(connect(), 1)) == bodies(held[3:])


def test_no_more_is_leased_than_the_prefetch_count(
    broker: Broker, connect: Connect
) -> None:
    one = connect()
    send(one, *range(6))
    held: list[Any] = []
    with kombu.Consumer(one, [MAILS], on_message=held.append, prefetch_count=2):
        drained(one, 2)
        drained(one, seconds=0.5)
        assert len(held) == 2
        runs = admin(broker).share_runs("shop")["runs"]
        assert sum(run["messages"] for run in runs if run["owner"]) == 2
        held[0].ack()
        drained(one)
        assert len(held) == 3


def test_what_comes_for_a_consumer_that_was_cancelled_goes_to_others_at_once(
    connect: Connect,
) -> None:
    one, other = connect(lease_s=60), connect(lease_s=60)
    with kombu.Consumer(one, [MAILS], on_message=print):
        drained(one, seconds=1.0)  # its pull waits at the broker still
    send(other, "a")
    assert bodies(received(other, 1)) == ["a"]


def test_rejected_messages_are_dropped_requeued_or_dead(
    failure_node: str, broker: Broker, connect: Connect
) -> None:
    one = connect(dead_on_reject=True)
    with closing(one.SimpleQueue("mails")) as queue:
        queue.put("a")
        message = queue.get_nowait()
        message.reject(requeue=True)
        again = queue.get_nowait()
        assert again.payload == "a" and again.delivery_info["redelivered"]
        again.reject()
        with pytest.raises(Empty):
            queue.get_nowait()
    until(lambda: len([*admin(broker).dead_letters.messages("shop")]) == 1)


def test_priorities_come_first(connect: Connect) -> None:
    one = connect(priority_steps=[0, 5, 9])
    queue = kombu.Queue(
        "urgent", kombu.Exchange("urgent"), routing_key="urgent", max_priority=9
    )
    for priority in (0, 9, 5, 6):
        send(one, priority, queue=queue, priority=priority)
    assert bodies(received(one, 4, queue)) == [9, 5, 6, 0]


def test_a_priority_that_does_nothing_is_logged_once(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    send(connect(), "a", "b", priority=5)
    assert caplog.text.count("priorities are ignored; set priority_steps") == 1


def test_exchanges_route_between_processes_that_did_not_declare_the_queues(
    connect: Connect,
) -> None:
    topic, everywhere = (
        kombu.Exchange("events", type="topic"),
        kombu.Exchange("all", type="fanout"),
    )
    queues = [
        kombu.Queue("paid", topic, routing_key="order.paid"),
        kombu.Queue("orders", topic, routing_key="order.#"),
        kombu.Queue("copies", everywhere),
    ]
    one = connect()
    for queue in queues:
        queue(one.default_channel).declare()
    other = connect(send_timeout_s=11)  # other options: nothing is shared in memory
    producer = kombu.Producer(other.default_channel)
    for key in ("order.paid", "order.made"):
        producer.publish(key, exchange="events", routing_key=key)
    producer.publish("x", exchange="all", routing_key="whatever")
    got = [
        bodies(received(other, count, queue))
        for queue, count in zip(queues, (1, 2, 1), strict=True)
    ]
    assert [sorted(one) for one in got] == [
        ["order.paid"],
        ["order.made", "order.paid"],
        ["x"],
    ]


def test_a_broadcast_reaches_every_process_and_replies_find_their_asker(
    connect: Connect,
) -> None:
    from kombu.pidbox import Mailbox

    workers, asker = [connect(topic_queues=n) for n in (1, 2)], connect(topic_queues=3)
    nodes, stop = [], threading.Event()
    for number, connection in enumerate(workers):
        mailbox = Mailbox("test", type="fanout", connection=connection)
        node = mailbox.Node(f"w{number}", channel=connection.channel())
        node.handlers["add"] = lambda state, a, b: a + b
        node.listen()
        nodes.append((node, connection))

    def work(connection: kombu.Connection) -> None:
        while not stop.is_set():
            drained(connection, seconds=0.2)

    threads = [threading.Thread(target=work, args=(connection,)) for _, connection in nodes]
    for thread in threads:
        thread.start()
    try:
        mailbox = Mailbox("test", type="fanout", connection=asker)
        replies = mailbox.multi_call("add", {"a": 2, "b": 3}, timeout=3, limit=2)
        assert sorted(replies, key=str) == [{"w0": 5}, {"w1": 5}]
        assert mailbox.call(["w1"], "add", {"a": 1, "b": 1}, timeout=3) == [{"w1": 2}]
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_task_with_an_eta_is_delayed_by_the_broker(
    broker: Broker, connect: Connect
) -> None:
    one = connect()
    MAILS(one.default_channel).declare()
    due = datetime.now(UTC) + timedelta(seconds=6)
    send(one, "later", headers={"task": "t", "id": "1", "eta": due.isoformat()})
    waits = admin(broker).delayed("shop.mails")["messages"]
    assert len(waits) == 1
    assert received(one, 0, then_s=1.0) == []
    (got,) = received(one, 1)
    assert datetime.now(UTC) >= due and got.headers["eta"] == due.isoformat()


def test_an_eta_beyond_the_longest_delay_is_delayed_as_long_as_may_be(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = connect()
    due = datetime.now(UTC) + timedelta(days=500)
    send(one, "much later", headers={"task": "t", "id": "1", "eta": due.isoformat()})
    (waits,) = admin(broker).delayed("shop.mails")["messages"]
    left_s = waits["due_at_ms"] / 1000 - time.time()
    assert timedelta(days=365) < timedelta(seconds=left_s) < timedelta(days=367)


def test_a_task_that_arrives_before_its_eta_is_delayed_again(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "catmq_client.contrib.kombu.messages.MAX_DELAY", timedelta(minutes=10, seconds=1)
    )
    one = connect()
    monkeypatch.setattr(
        "catmq_client.contrib.kombu.cluster.messages.MAX_DELAY", timedelta(seconds=1)
    )
    due = datetime.now(UTC) + timedelta(days=1)
    send(one, "later", headers={"task": "t", "id": "1", "eta": due.isoformat()})
    monkeypatch.setattr(
        "catmq_client.contrib.kombu.messages.MAX_DELAY", timedelta(days=366)
    )
    assert received(one, 0, then_s=4.0) == []
    (waits,) = admin(broker).delayed("shop.mails")["messages"]
    assert waits["due_at_ms"] == int(due.timestamp() * 1000)


def test_native_eta_may_be_switched_off(broker: Broker, connect: Connect) -> None:
    one = connect(native_eta=False)
    due = datetime.now(UTC) + timedelta(hours=1)
    send(one, "x", headers={"task": "t", "id": "1", "eta": due.isoformat()})
    assert len(received(one, 1)) == 1


def test_an_event_loop_is_woken_by_messages_and_broadcasts(connect: Connect) -> None:
    one, other = connect(), connect(topic_queues=2)
    hub, got, heard = Hub(), [], []
    news = kombu.Queue("news", kombu.Exchange("news", type="fanout"), auto_delete=True)
    full = kombu.Consumer(one.channel(), [MAILS], on_message=got.append, prefetch_count=1)
    free = kombu.Consumer(one.channel(), [news], on_message=heard.append, no_ack=True)
    with full, free:
        one.register_with_event_loop(hub)

        def runs_until(true: Callable[[], bool]) -> None:
            until(lambda: hub.run_once() or true(), limit_s=20.0)

        send(other, 1, 2)
        runs_until(lambda: len(got) == 1)
        kombu.Producer(other.default_channel).publish("hear", exchange="news")
        runs_until(lambda: len(heard) == 1)
        assert len(got) == 1, "no more than the prefetch count"
        got[0].ack()
        runs_until(lambda: len(got) == 2)
        got[1].ack()
        pipe = one.transport._pipe
    one.close()
    hub.close()
    for end in pipe:
        with pytest.raises(OSError):
            os.fstat(end)


def test_expired_messages_are_not_delivered(connect: Connect) -> None:
    one = connect()
    send(one, "old", expiration=0.5)
    send(one, "new")
    until(lambda: time.sleep(0.7) is None)
    assert bodies(received(one, 1)) == ["new"]


def test_size_and_purge_count_what_is_not_delivered(connect: Connect) -> None:
    one = connect()
    send(one, *range(3))
    with closing(one.SimpleQueue("mails")) as queue:
        assert queue.qsize() == 3
        held = queue.get_nowait()
        until(lambda: queue.qsize() == 2)
        assert queue.clear() == 2
        assert queue.qsize() == 0
        held.ack()
        # Brokers believe for a second what they know of a share group.
        until(lambda: is_empty(queue), every_s=0.2)


def is_empty(queue: Any) -> bool:
    try:
        queue.get_nowait().ack()
    except Empty:
        return True
    return False


def test_a_deleted_queue_gets_no_messages(connect: Connect) -> None:
    one = connect()
    send(one, "a")
    bound = MAILS(one.default_channel)
    assert bound.delete() == 1
    with pytest.raises(ChannelError, match="no queue 'mails'"):
        bound.queue_declare(passive=True)
    with pytest.raises(NotFound, match="There is no queue mails: declare it"):
        kombu.Producer(one.default_channel).publish("b", routing_key="mails")


def test_bytes_arrive_as_they_were(connect: Connect) -> None:
    one = connect()
    send(one, b"\x00\xff", content_type="application/data", content_encoding="binary")
    (got,) = received(one, 1)
    assert got.body == b"\x00\xff"


def test_what_is_no_message_of_kombu_does_not_stop_the_queue(
    broker: Broker, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    one = connect()
    send(one, "a")
    broker.ok("POST", "/topics/shop.mails/messages", {"messages": [{"body": "what"}]})
    send(one, "b")
    assert bodies(received(one, 2)) == ["a", "b"]
    assert "is rejected: it is no JSON of kombu" in caplog.text


TASK = {
    "body": "[[], {}, {}]",
    "content-type": "application/json",
    "content-encoding": "utf-8",
    "headers": {"task": "tests.note", "id": "1"},
    "properties": {"delivery_info": {"routing_key": "tasks"}},
}
WRONG_TASKS: list[Any] = [
    {"properties": {}},
    {**TASK, "headers": {"task": ["tests.note"], "id": "1"}},
    {**TASK, "headers": {"task": "tests.note", "id": "1", "timelimit": "ab"}},
    {**TASK, "headers": {"task": "tests.note"}},
    {**TASK, "headers": {"task": "tests.unknown"}},
    {**TASK, "headers": {"task": "tests.note", "id": "1", "eta": "soon"}},
    {**TASK, "body": "[1, 2]"},
    {**TASK, "body": "{"},
    {**TASK, "body": "[" * 5_000},
    {**TASK, "body": "[[], [], {}]"},
    {**TASK, "headers": {}, "body": "5"},
    {**TASK, "headers": {}, "body": '{"task": "tests.note"}'},
    {**TASK, "headers": {}, "body": '{"task": ["tests.note"]}'},
    {**TASK, "properties": {"reply_to": {}}},
    {**TASK, "body": "abc", "properties": {"body_encoding": "base64"}},
]


# Celery's way to report it
@pytest.mark.filterwarnings("ignore:Exception raised outside body")
def test_no_message_ends_a_worker_of_celery(failure_node: str, broker: Broker) -> None:
    url = broker.url.replace("http://", f"catmq://:{broker.api_key}@") + "/shop"
    app = Celery("shop", broker=url)
    app.conf.update(broker_transport_options=QUICK, task_default_queue="tasks")
    noted: list[str] = []

    @app.task(name="tests.note")
    def note(text: str = "") -> None:
        noted.append(text)

    note.delay("first")
    bodies = [json.dumps(wrong) for wrong in WRONG_TASKS] + [
        "[" * 5_000,
        '{"properties": ' + "9" * 5_000,
    ]
    broker.ok(
        "POST",
        "/topics/shop.tasks/messages",
        {"messages": [{"body": body} for body in bodies]},
    )
    note.delay("last")
    with start_worker(app, pool="solo", perform_ping_check=False):
        until(lambda: "last" in noted)
        until(lambda: admin(broker).lag("shop")["lag"] == 0)
    app.close()
    assert {"first", "last"} <= {*noted}
    assert len([*admin(broker).dead_letters.messages("shop")]) >= 10


def test_rejected_messages_are_dropped_where_no_retry_node_is(
    broker: Broker, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    one = connect()
    send(one, "a")
    wrong = {"body": '{"properties": {}, "body": 1}'}
    for _ in range(3):
        broker.ok("POST", "/topics/shop.mails/messages", {"messages": [wrong, wrong]})
    send(one, "b")
    assert bodies(received(one, 2)) == ["a", "b"]
    until(lambda: admin(broker).lag("shop")["lag"] == 0)
    assert caplog.text.count("is dropped, there is no retry node for dead letters") == 6


FIRST_USE = """
import sys
from celery import Celery
import catmq_client.contrib.kombu

app = Celery("shop", broker=sys.argv[1])
app.conf.update(broker_transport_options={"topic_queues": 1}, task_default_queue="new")
print("ready", flush=True)
sys.stdin.readline()
for number in range(4):
    app.send_task("tests.note", countdown=0)
app.control.ping(timeout=0.5)
"""


def test_processes_that_use_a_new_queue_at_once_all_send(broker: Broker) -> None:
    url = broker.url.replace("http://", f"catmq://:{broker.api_key}@") + "/shop"
    command, pipe = [sys.executable, "-c", FIRST_USE, url], subprocess.PIPE
    processes = [
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    errors = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, errors
    assert admin(broker).lag("shop")["lag"] == 16


def test_what_brokers_do_not_take_is_refused_at_the_call(connect: Connect) -> None:
    app = Celery("shop", broker=connect().as_uri(include_password=True))
    app.conf.update(broker_transport_options=QUICK, task_publish_retry=False)
    for arguments, text in (
        ({"args": ["x" * (1024 * 1024 + 1)]}, "at most 1048576"),
        ({"queue": "q" * 101}, "at most 100"),
    ):
        with pytest.raises((OperationalError, OptionError), match=text):
            app.send_task("tests.note", **arguments)
    app.close()


def test_a_closed_channel_says_that_its_connection_is_lost(connect: Connect) -> None:
    with connect() as connection:
        channel = connection.channel()
        channel.close()
        for use in (
            channel.queue_declare,
            channel.get_exchanges,
            lambda: channel.basic_get("mails"),
        ):
            with pytest.raises(connection.connection_errors):
                use()


def test_a_fork_sends_but_does_not_touch_what_its_parent_holds(connect: Connect) -> None:
    one = connect()
    send(one, "parent's")
    held: list[Any] = []
    with kombu.Consumer(one, [MAILS], on_message=held.append):
        drained(one)
        told = multiprocessing.get_context("fork").SimpleQueue()

        def child() -> None:
            try:
                send(one, "child's")
                one.drain_events(timeout=1)
            except Closed as error:
                told.put(str(error))
            one.close()

        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join(30)
        assert process.exitcode == 0
        assert "belongs to the parent process" in told.get()
        assert bodies(received(connect(), 1)) == ["child's"]
        held[0].ack()


def test_the_second_broker_is_used_when_the_first_is_away(
    broker: Broker, connect: Connect
) -> None:
    key, host = broker.api_key, broker.url.removeprefix("http://")
    one = connect(f"catmq://:{key}@127.0.0.1:9/shop;catmq://:{key}@{host}/shop")
    one.ensure_connection(max_retries=3, interval_start=0)
    send(one, "a")
    assert bodies(received(one, 1)) == ["a"]


def test_tls_is_spoken_and_certificates_are_checked(
    broker: Broker, connect: Connect, tmp_path: Path
) -> None:
    with tls_front(tmp_path) as (port, ca):
        url = f"catmqs://:{broker.api_key}@127.0.0.1:{port}/shop"
        with pytest.raises(ConnectFailed, match="certificate"):
            connect(url).connect()
        one = connect(url, verify=str(ca))
        send(one, "secret")
        assert bodies(received(one, 1)) == ["secret"]
        by_option = kombu.Connection(
            url.replace("catmqs", "catmq"), ssl={"ca_certs": str(ca)}
        )
        by_option.connect()
        by_option.close()
        one.close()


def test_errors_say_what_is_wrong(broker: Broker, connect: Connect) -> None:
    host = broker.url.removeprefix("http://")
    with pytest.raises(ConnectFailed):
        connect("catmq://:key@127.0.0.1:9/shop").connect()
    with pytest.raises(Unauthenticated):
        connect(f"catmq://:wrong@{host}/shop").connect()
    with pytest.raises(OptionError, match="behind a colon"):
        connect(f"catmq://key@{host}/shop").connect()
    with pytest.raises(OptionError, match="did you mean lease_s"):
        connect(visibility_timeout=60).connect()
    with pytest.raises(OptionError, match="begin it with a letter"):
        connect(f"catmq://:{broker.api_key}@{host}/-x").default_channel.queue_declare("q")
    one = connect()
    with pytest.raises(OptionError, match="write one of direct, topic, fanout"):
        kombu.Exchange("h", type="headers")(one.default_channel).declare()
    kombu.Exchange("e", type="direct")(one.default_channel).declare()
    with pytest.raises(NotEquivalentError):
        kombu.Exchange("e", type="topic")(one.default_channel).declare()
    with pytest.raises(OptionError, match="choose a shorter name"):
        one.default_channel.queue_declare("q" * 100)


def test_a_group_of_another_mode_is_refused(broker: Broker, connect: Connect) -> None:
    broker.ok("POST", "/groups", {"name": "shop"})
    with pytest.raises(OptionError, match="is no share group, its mode is clustering"):
        connect().default_channel.queue_declare("mails")


def test_deliveries_are_bounded_also_in_a_group_that_was_made_without_a_bound(
    broker: Broker, connect: Connect
) -> None:
    broker.ok("POST", "/groups", {"name": "shop", "mode": "share", "max_deliveries": 0})
    connect().default_channel.queue_declare("mails")
    assert broker.ok("GET", "/groups/shop")["max_deliveries"] == 20
    connect(max_deliveries=7).default_channel.queue_declare("mails")
    assert broker.ok("GET", "/groups/shop")["max_deliveries"] == 7


def test_without_create_topics_what_is_missing_is_named(connect: Connect) -> None:
    with pytest.raises(NotFound, match="create_topics is False"):
        connect(create_topics=False).default_channel.queue_declare("mails")
