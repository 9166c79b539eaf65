"""Commits are told to the relay, which then need not look into the outbox all the time."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connections, transaction

from catmq_client.contrib.django_outbox import notify, outbox
from catmq_client.contrib.django_outbox.claims import Claims
from catmq_client.contrib.django_outbox.models import OutboxMessage, OutboxRelay
from catmq_client.contrib.django_outbox.notify import Listener, listening
from catmq_client.contrib.django_outbox.relay import Relay
from catmq_client.contrib.django_outbox.relay_loop import NOTIFIED_POLL_S, RelayLoop
from tests.support import outboxes
from tests.support.outboxes import bodies, commit
from tests.support.simulated import SimulatedBroker
from tests.support.waiting import until

pytestmark = pytest.mark.one_engine

# Nothing but a notification brings a relay back within the time of a test.
NEVER_S = 600.0


@pytest.fixture
def broker(django_db_setup: None, django_db_blocker: Any) -> Iterator[SimulatedBroker]:
    made = SimulatedBroker()
    made.create_topic("t", queues=2, nodes=["a", "b"])
    notify._addresses.clear()
    with django_db_blocker.unblock():
        outboxes.forget_all()
        yield made
        outboxes.forget_all()
        connections.close_all()
    notify._addresses.clear()


@contextmanager
def running(broker: SimulatedBroker, *, poll_s: float = NEVER_S) -> Iterator[RelayLoop]:
    """A relay in a thread, which found the outbox empty once."""
    stop, said = threading.Event(), list[str]()
    with listening("default") as listener:
        assert listener is not None
        relay = Relay(broker, Claims("mine", address=listener.address))
        made = RelayLoop(
            relay,
            say=said.append,
            stop=stop,
            poll_s=poll_s,
            report_s=60.0,
            listener=listener,
        )

        def run() -> None:
            made.run()
            connections.close_all()

        thread = threading.Thread(target=run)
        thread.start()
        try:
            until(lambda: OutboxRelay.objects.filter(holder="mine").exists())
            yield made
        finally:
            stop.set()
            thread.join(10)
    assert not thread.is_alive(), (
        "a relay that waits for a notification hears that it is to stop"
    )
    assert OutboxRelay.objects.get().address == ""


def test_a_commit_wakes_the_relay(broker: SimulatedBroker) -> None:
    with running(broker):
        for body in ("a", "b"):
            commit(body)
            until(lambda body=body: body in bodies(broker), limit_s=15)  # type: ignore[misc]


def test_a_rollback_tells_nobody(broker: SimulatedBroker) -> None:
    with listening("default") as listener:
        assert (
            listener is not None
            and Claims("mine", address=listener.address).acquire() == ""
        )
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            outbox.send("t", "a")
            raise ZeroDivisionError
        assert not listener.wait(0.0)


def test_a_transaction_tells_once_and_a_savepoint_takes_nothing_back(
    broker: SimulatedBroker,
) -> None:
    with listening("default") as listener:
        assert (
            listener is not None
            and Claims("mine", address=listener.address).acquire() == ""
        )
        with transaction.atomic():
            connection: Any = transaction.get_connection()
            with pytest.raises(ZeroDivisionError), transaction.atomic():
                outbox.send("t", "dropped")
                raise ZeroDivisionError
            assert len(connection.run_on_commit) == 0
            with transaction.atomic():
                outbox.send("t", "a")
            with pytest.raises(ZeroDivisionError), transaction.atomic():
                outbox.send("t", "dropped")
                raise ZeroDivisionError
            for body in "bcd":
                outbox.send("t", body)
            assert len(connection.run_on_commit) == 2
        assert listener.wait(5.0)


def test_who_does_not_know_the_word_of_the_address_wakes_for_nothing(
    broker: SimulatedBroker,
) -> None:
    with (
        listening("default") as listener,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger,
    ):
        assert listener is not None
        host, port, word = listener.address.split()
        stranger.sendto(b"x" * 1000, (host, int(port)))
        assert listener.wait(5.0) is False
        stranger.sendto(b"x", (host, int(port)))
        stranger.sendto(word.encode(), (host, int(port)))
        stranger.sendto(word.encode(), (host, int(port)))
        assert until(lambda: listener.wait(1.0), limit_s=5)
        assert listener.wait(0.0) is False


def test_a_relay_that_is_told_looks_seldom_until_a_commit_is_not_told(
    broker: SimulatedBroker, settings: Any
) -> None:
    with running(broker, poll_s=0.01) as made:
        assert made._poll_interval_s() == 0.01
        commit("a")
        until(lambda: "a" in bodies(broker))
        made._missed_at = float("-inf")  # its first look may have come in between
        commit("told")
        until(lambda: made._poll_interval_s() == NOTIFIED_POLL_S and not made._notified)
        settings.CATMQ_OUTBOX = {"NOTIFY": False}  # as if a firewall dropped it
        commit("b")
        until(lambda: "b" in bodies(broker))
        until(lambda: made._poll_interval_s() == 0.01)


@pytest.mark.parametrize(
    "address", ["", "127.0.0.1 1 x", "nonsense", "256.0.0.1 1 x", "::1 9 x"]
)
def test_an_address_where_nobody_listens_hinders_no_commit(
    broker: SimulatedBroker, address: str
) -> None:
    assert Claims("mine", address=address).acquire() == ""
    commit("a")
    assert OutboxMessage.objects.count() == 1


def test_without_a_network_the_relay_looks_by_itself(
    broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    def refuse(*_: Any) -> Any:
        raise OSError("no network")

    monkeypatch.setattr(notify, "_bind_socket", refuse)
    with listening("default") as listener:
        assert listener is None
    monkeypatch.undo()
    settings.CATMQ_OUTBOX = {"NOTIFY": False}
    with listening("default") as listener:
        assert listener is None


def test_the_address_is_on_the_network_of_the_database() -> None:
    for host in ("", "127.0.0.1"):
        with notify._bind_socket(host) as way:
            assert Listener(way).address.startswith("127.0.0.1 ")


def test_the_address_is_read_seldom(
    broker: SimulatedBroker, django_assert_num_queries: Any
) -> None:
    assert Claims("mine", address="127.0.0.1 9 x").acquire() == ""
    with django_assert_num_queries(1):
        for _ in range(3):
            notify.notify("default")
    read_at, address = notify._addresses["default"]
    notify._addresses["default"] = read_at - notify.ADDRESS_MAX_AGE_S, address
    assert time.monotonic() >= read_at
    with django_assert_num_queries(1):
        notify.notify("default")


def test_datagrams_without_end_keep_no_relay_from_its_work() -> None:
    taken = 0

    class Flooded(socket.socket):
        def recv(self, *_: Any) -> bytes:
            nonlocal taken
            taken += 1
            assert taken <= notify.MAX_DATAGRAMS, "it goes on for ever"
            return b"noise"

    with Flooded(socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.bind(("127.0.0.1", 0))
        assert Listener(way).wait(1.0) is False
