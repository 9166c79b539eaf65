"""Two brokers on one MariaDB: one is drained or stops while clients work, and they notice
nothing.

The clients run in this process and begin at the first broker. Busy ones send and read all
the time; idle ones wait in long polls for messages that never come.
"""

from __future__ import annotations

import http.client
import json
import os
import secrets
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count, cycle
from typing import Any

import pytest
from cryptography.fernet import Fernet

from catmq_client import Consumer, Producer
from catmq_client.errors import CatmqError
from tests.acceptance.conftest import url_of
from tests.support.mariadb import MariaDB
from tests.support.server import Server, alive
from tests.support.waiting import until

IDLE = 3  # consumers that only wait
# of a long poll; so long the broker also waits for clients that a test before has closed
WAIT_MS = 10_000
MOVED_S = 2.0  # until all long polls wait at the other broker
FORGOTTEN_S = 2.0  # until the other broker no longer calls one alive that stops
_names = (f"load-{number}" for number in count())


@dataclass
class Pair:
    """Two servers of one installation, and their names in the registry; the second has one
    worker.
    """

    first: Server
    second: Server
    mariadb: MariaDB
    schema: str  # of the metadata
    names: dict[str, str] = field(default_factory=dict)  # by URL

    def brokers(self, *, asked: Server) -> dict[str, dict[str, Any]]:
        """The list that a broker answers, by URL."""
        status, answer = asked.call("GET", "/api/v1/brokers")
        assert status == 200, answer
        return {one["url"]: one for one in answer["brokers"]}

    def are_named(self) -> bool:
        """Whether the names of both are known; the workers of a broker do not hear of
        another at once.
        """
        self.names |= {
            one["url"]: one["name"] for one in self.brokers(asked=self.first).values()
        }
        return len(self.names) == 2

    def topic(self, queues: int = 1) -> str:
        """A new topic."""
        name = next(_names)
        assert (
            self.first.call("POST", "/api/v1/topics", {"name": name, "queues": queues})[0]
            == 201
        )
        return name

    def pull(self, server: Server, state: str, *, asked: Server) -> None:
        """Pulls a broker in or out, by a request to one of them."""
        path = f"/api/v1/brokers/{self.names[server.url]}"
        status, answer = asked.call("PATCH", path, {"state": state})
        assert status == 200, answer

    def said_good_bye(self, server: Server) -> bool:
        """Whether the registry's row says that a broker stopped."""
        where = f"{self.schema}.metadata_broker WHERE name = %s"
        ((stopped_at,),) = self.mariadb.execute(
            f"SELECT stopped_at FROM {where}", [self.names[server.url]]
        )
        return stopped_at is not None

    def all_in(self) -> None:
        """Returns when both brokers serve and know that."""
        for server in (self.first, self.second):
            until(lambda asked=server: connects(asked), limit_s=60)
        for server in (self.first, self.second):
            self.pull(server, "in", asked=self.first)
        for server in (self.first, self.second):
            # Many times, because each of a broker's workers has a picture of its own.
            until(
                lambda asked=server: all(self._both(asked) for _ in range(10)), limit_s=30
            )

    def _both(self, asked: Server) -> bool:
        listed = self.brokers(asked=asked).values()
        return (
            sum(one["alive"] and one["state"] == "in" for one in listed) == 2
            and asked.serves()
        )


@pytest.fixture(scope="module")
def running(mariadb: MariaDB, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """The two servers with a node."""
    with ExitStack() as stack:
        schemas = [stack.enter_context(mariadb.schema()) for _ in range(2)]
        environ = {
            "CATMQ_DATABASE_URL": url_of(mariadb, schemas[0]),
            "CATMQ_SECRET_KEY": secrets.token_hex(32),
            "CATMQ_ENCRYPTION_KEYS": Fernet.generate_key().decode(),
        }
        servers = [
            Server(
                tmp_path_factory.mktemp("broker"),
                environ=environ | {"CATMQ_WORKERS": workers},
            )
            for workers in ("2", "1")
        ]
        for server in servers:
            stack.callback(server.clear_away)
            if server is not servers[0]:
                server.join(servers[0])
            server.start()
        account = {"username": "catmq", "password": mariadb.password, "host": "127.0.0.1"}
        node = {
            "name": "main",
            "engine": "mysql",
            "database": schemas[1],
            "port": mariadb.port,
            **account,
        }
        assert servers[0].call("POST", "/api/v1/nodes", node)[0] == 201
        first, second = servers
        made = Pair(first, second, mariadb, schemas[0])
        until(made.are_named)
        yield made


@pytest.fixture
def pair(running: Pair) -> Pair:
    """The two servers, both in."""
    running.all_in()
    return running


class Load:
    """A producer, busy and idle consumers, and what they met."""

    def __init__(self, pair: Pair, urls: list[str]) -> None:
        self.pair = pair
        self.topic, silent = pair.topic(4), pair.topic(IDLE)
        self.sent: list[bytes] = []
        self.handled: list[bytes] = []
        self.errors: list[str] = []
        self.done = threading.Event()
        given: dict[str, Any] = {"urls": urls, "api_key": pair.first.api_key}
        self.producer = Producer(**given)
        reading = given | {"fetch_max_wait_ms": WAIT_MS}
        self.busy = [
            Consumer(**reading, group=self.topic, topics=[self.topic]) for _ in range(2)
        ]
        self.idle = [
            Consumer(**reading, group=silent, topics=[silent]) for _ in range(IDLE)
        ]
        for client in self._clients():
            # Each client would start at a random broker otherwise.
            client._transport._brokers.current = pair.first.url

    def _clients(self) -> list[Any]:
        return [self.producer, *self.busy, *self.idle]

    @contextmanager
    def running(self) -> Iterator[Load]:
        """The load for the length of a block; afterwards everything that was sent has been
        handled.
        """
        sender = self._thread(self._send)
        readers = [
            self._thread(lambda one=one: self._read(one))
            for one in (*self.busy, *self.idle)
        ]
        try:
            until(lambda: len(self.handled) > 10, limit_s=60)
            yield self
            self.done.set()
            sender.join(30)
            until(lambda: len(set(self.handled)) == len(self.sent), limit_s=30)
        finally:
            self.done.set()
            for consumer in (*self.busy, *self.idle):
                consumer.stop()
            for thread in readers:
                thread.join(30)
            self.producer.close()
        assert self.errors == []

    def goes_on(self) -> None:
        """Returns when what is sent from now on has been handled."""
        mark = len(self.sent)
        until(lambda: len(self.sent) > mark + 10, limit_s=30)
        until(lambda: set(self.sent[: mark + 10]) <= set(self.handled), limit_s=30)

    def repeated(self) -> list[bytes]:
        """What was handled more than once."""
        return [body for body, times in Counter(self.handled).items() if times > 1]

    def knows_both(self) -> bool:
        """Whether every client knows both brokers."""
        return all(
            len(client._transport._brokers._all_urls()) == 2 for client in self._clients()
        )

    def polls(self, server: Server) -> bool:
        """Whether all long polls go to that broker."""
        idle: list[Any] = [consumer._transport for consumer in self.idle]
        return all(transport._brokers.current == server.url for transport in idle)

    def _thread(self, work: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                work()
            except CatmqError as error:
                self.errors.append(repr(error))

        thread = threading.Thread(target=guarded)
        thread.start()
        return thread

    def _send(self) -> None:
        for number in count():
            if self.done.wait(0.03):
                return
            body = b"%d" % number
            self.producer.send(self.topic, body)
            self.sent.append(body)

    def _read(self, consumer: Consumer) -> None:
        with consumer:
            for message in consumer:
                self.handled.append(message.body)


@contextmanager
def under_load(pair: Pair) -> Iterator[list[Load]]:
    """Clients that were told of both brokers, and clients that know the first and found the
    second.
    """
    with ExitStack() as stack:
        both, one = [pair.first.url, pair.second.url], [pair.first.url]
        loads = [stack.enter_context(Load(pair, urls).running()) for urls in (both, one)]
        until(lambda: all(load.knows_both() for load in loads))
        moved(loads, to=pair.first, pair=pair)
        yield loads
    for load in loads:
        assert load.repeated() == []


def moved(loads: list[Load], *, to: Server, pair: Pair) -> float:
    """Seconds until all long polls go to that broker; returns when they wait there and
    nowhere else.
    """
    other = pair.first if to is pair.second else pair.second
    begun = time.monotonic()
    until(lambda: all(load.polls(to) for load in loads), limit_s=20)
    took_s = time.monotonic() - begun
    until(
        lambda: waiters(to) >= len(loads) * IDLE and waiters(other) == 0,
        limit_s=20,
        every_s=0.05,
    )
    for load in loads:
        load.goes_on()
    return took_s


def waiters(server: Server) -> int:
    """How many pulls wait at a broker; it samples that every second. 0 while it does not
    answer.
    """
    try:
        text = server.call("GET", "/metrics")[1]
    except (OSError, http.client.HTTPException):
        return 0
    lines = [line for line in text.splitlines() if line.startswith("catmq_waiters ")]
    return int(float(lines[0].split()[1])) if lines else 0


def test_a_broker_is_pulled_out_and_in_under_load_and_nobody_notices(pair: Pair) -> None:
    first, second = pair.first, pair.second
    with under_load(pair) as loads:
        pair.pull(first, "out", asked=first)
        took_s = moved(loads, to=second, pair=pair)

        assert not first.serves()
        pair.pull(first, "in", asked=second)
        until(first.serves)
        pair.pull(second, "out", asked=first)
        moved(loads, to=first, pair=pair)
    assert took_s < MOVED_S


def test_a_broker_stops_under_load_and_nobody_notices(pair: Pair) -> None:
    first, second = pair.first, pair.second
    with under_load(pair) as loads:
        before = pair.brokers(asked=second)[first.url]

        os.kill(first.broker_pid, signal.SIGTERM)
        begun = time.monotonic()
        until(lambda: not pair.brokers(asked=second)[first.url]["alive"])
        left_s = time.monotonic() - begun
        moved(loads, to=second, pair=pair)

        until(
            lambda: pair.brokers(asked=second)[first.url]["alive"], limit_s=60, every_s=0.05
        )
        after = pair.brokers(asked=second)[first.url]
        for load in loads:
            load.goes_on()
    assert left_s < FORGOTTEN_S
    assert after["started_at_ms"] > before["started_at_ms"]
    assert after["stopped_at_ms"] is None


def test_a_broker_that_replaces_its_workers_stays_in_the_list_and_refuses_nothing(
    pair: Pair,
) -> None:
    first = pair.first
    before, seen = first.workers(), []
    send = (f"/api/v1/topics/{pair.topic()}/messages", {"messages": [{"body": ""}]})

    def replaced() -> bool:
        seen.append(pair.brokers(asked=pair.second)[first.url])
        return not set(first.workers()) & set(before) and first.serves()

    with Kept(first) as kept:
        os.kill(first.broker_pid, signal.SIGHUP)
        turns = cycle(kept.open)
        until(
            lambda: kept.ask(next(turns), "POST", *send).getheader("Connection") == "close"
        )
        until(replaced, limit_s=60, every_s=0.05)
    assert set(kept.told) == {200}, (
        "a worker that leaves serves what comes on connections it has"
    )
    assert {one["stopped_at_ms"] for one in seen} == {None}


class Kept:
    """Connections, open for a block, to a broker on which one request was answered."""

    def __init__(self, server: Server, number: int = 40) -> None:
        self.server = server
        self.told: list[int] = []
        self.open = [
            http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
            for _ in range(number)
        ]

    def __enter__(self) -> Kept:
        for connection in self.open:
            assert self.ask(connection, "GET", "/livez").status == 200
        return self

    def __exit__(self, *exc: object) -> None:
        for connection in self.open:
            connection.close()

    def ask(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: object = None,
    ) -> http.client.HTTPResponse:
        """The answer to one more request on a connection."""
        headers = {
            "Authorization": f"Bearer {self.server.api_key}",
            "Content-Type": "application/json",
        }
        connection.request(
            method, path, json.dumps(body) if body is not None else None, headers
        )
        response = connection.getresponse()
        response.read()
        self.told.append(response.status)
        return response


def test_a_broker_that_stops_refuses_cleanly_on_kept_connections_and_new_ones_at_once(
    pair: Pair,
) -> None:
    server, topic = pair.second, pair.topic()  # its only worker has all connections
    workers = server.workers()
    sends = f"/api/v1/topics/{topic}/messages"
    with Kept(server) as kept:
        os.kill(server.broker_pid, signal.SIGTERM)
        until(
            lambda: (
                kept.ask(kept.open[0], "GET", "/readyz").getheader("Connection") == "close"
            )
        )
        assert kept.told[-1] == 503
        for connection in kept.open[1:]:
            refused = kept.ask(
                connection, "POST", sends, {"messages": [{"body": "x" * 100_000}]}
            )
            assert (refused.status, refused.getheader("Connection")) == (503, "close")
        until(lambda: not connects(server))
        assert set(server.workers()) & set(workers), "the old workers have not ended yet"
    assert pair.first.call("GET", f"/api/v1/topics/{topic}")[1]["queues"][0]["head"] == 0


def test_a_broker_that_is_ended_in_a_hurry_leaves_the_list_too(running: Pair) -> None:
    master = running.first.broker_pid
    os.kill(master, signal.SIGQUIT)
    until(lambda: running.said_good_bye(running.first))
    until(lambda: not alive(master))  # who connects from now on does not reach it


def connects(server: Server) -> bool:
    """Whether somebody listens at the broker's port."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    try:
        connection.connect()
    except ConnectionRefusedError:
        return False
    finally:
        connection.close()
    return True
