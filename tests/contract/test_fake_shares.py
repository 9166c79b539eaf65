"""Share groups: one story told to FakeBroker and to a broker, and what each answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from catmq_client import HttpTransport
from catmq_client.errors import CatmqError
from catmq_client.http.transport import Transport, api_path
from catmq_client.http.wire import JsonCodec
from catmq_client.testing import FakeBroker
from messagestore.pool import node_pools
from messagestore.retries import lost_leases
from messagestore.shares import known_queues
from messagestore.tables.shares import run_sql
from metadata.cache import snapshot
from tests.support.broker import Broker

# Lets the leases of all runs that begin at these offsets be over, and whatever follows from
# it happen.
Expire = Callable[..., object]
COUNT = 24


class Story:
    """Members of share group `g`, which read the only queue of topic `orders`."""

    def __init__(self, transport: Transport, queue: int, expire: Expire) -> None:
        self._transport = transport
        self._queue = queue
        self._expire = expire
        self.told: list[Any] = []
        self._runs: dict[tuple[str, int], dict[str, Any]] = {}
        self._ids: dict[str, str] = {}

    def tell(self) -> list[Any]:
        """All of it; what was answered."""
        self._tell_of_one_member()
        self._tell_of_two_members()
        self._tell_of_what_kills_its_workers()
        self._tell_of_what_never_began()
        self._tell_of_failures()
        self._tell_of_other_groups()
        return self.told

    def _tell_of_one_member(self) -> None:
        self._join("a", lease_ms=5_000)
        self._join("b", lease_ms=6_000)
        self._lease("a", max_messages=4)
        self._done("a", 0, finished=[[0, 2], [1, 2]])
        self._done("a", 0, finished=[[3, 3]])
        self._done("a", 0, finished=[[3, 5]])
        self._done("a", 0, release=[9])
        self._done("a", 0, renew=True)
        self._done("a", 0, release=[2])
        self._lease("a", max_messages=1)
        self._done("a", 2, all=True)
        self._done("a", 2, all=True)
        self._lease("a", recover=True, holding=[])
        self._done("a", 0, all=True)
        self._lease("a", topics=["none"])

    def _tell_of_two_members(self) -> None:
        self._join("b")
        self._lease("a", max_messages=3)
        self._expire(4)
        self._done("a", 4, renew=True)
        self._expire(4)
        self._lease("b", max_messages=3)
        self._done("a", 4, all=True)
        self._done("b", 4, finished=[[4, 5]])
        self._done("b", 4, release=[5, 6])
        self._done("b", 4, all=True)
        for offset in (5, 6):  # at its third delivery a message comes alone
            self._lease("a", max_messages=9)
            self._done("a", offset, all=True)

    def _tell_of_what_kills_its_workers(self) -> None:
        self._lease("a", max_messages=2)
        for member in ("b", "a", "b", "a", "b"):
            self._expire(7, 8)
            self._lease(member, max_messages=2)
        self._done("b", 8, all=True)

    def _tell_of_what_never_began(self) -> None:
        self._lease("a", max_messages=2, count_begun=True)
        self._done("a", 9, renew=True, begun=False, delivery=1)
        self._expire(9)
        self._lease("b", max_messages=2, count_begun=True)
        self._expire(9)
        self._lease("a", max_messages=2, count_begun=True)
        self._done("a", 9, begun=True)
        self._done("a", 9, begun=True, delivery=7)
        self._done("a", 9, begun=True, delivery=1)
        self._done("a", 9, begun=True, delivery=1)
        self._done("a", 9, release=[9], unseen=[10], delivery=1)
        self._lease("b", max_messages=9, count_begun=True)
        self._done("b", 9, all=True)
        self._done("b", 10, all=True)

    def _tell_of_failures(self) -> None:
        self._lease("b", max_messages=5)
        first = min(place for member, place in self._runs if member == "b" and place > 10)
        self._fail(
            "b",
            first,
            {"offset": first, "error": "ValueError: bad"},
            {"offset": first + 1, "final": True},
        )
        self._fail("b", first, {"offset": first + 2, "delay_ms": 60_000}, {"offset": first})
        self._fail("a", 4, {"offset": 4})
        self._done("b", first, all=True)
        self._fail("b", first, {"offset": first + 3})

    def _tell_of_other_groups(self) -> None:
        place = {"queue": self._queue, "epoch": 1}
        pull = {
            "generation": 0,
            "wait_ms": 0,
            "max_messages": 9,
            "queues": [{**place, "offset": 0}],
        }
        self._of("a", "pull", pull)
        self._of("a", "acquire", {"queues": [place]})
        self._of("a", "commit", {"offsets": [{**place, "offset": 0}]})
        self._call(
            "POST", ("groups", "plain", "consumers"), {**_name("p"), "topics": ["orders"]}
        )
        self._join("p", group="plain")

    def _join(self, member: str, *, group: str = "g", **more: Any) -> None:
        body = {**_name(member), "topics": ["orders"], "mode": "share", **more}
        answer = self._call("POST", ("groups", group, "consumers"), body)
        if answer is not None:
            self._ids[member] = answer["consumer_id"]
            self._expire()
            told = self._of(member, "heartbeat", {"generation": 0, "owned": []})
            self.told.append(
                (told["assigned"], told["revoked"], sorted(told["subscriptions"]))
            )

    def _lease(self, member: str, **asked: Any) -> None:
        answer = self._of(member, "share", asked)
        if answer is None:
            return
        for run in answer["runs"]:
            self._runs[member, run["first"]] = run
            offsets = [message["offset"] for message in run["messages"]]
            names = (
                "topic",
                "first",
                "end",
                "deliveries",
                "lease_ms",
                "skipped",
                "recovered",
                "origin_topic",
                "uncounted",
            )
            self.told.append((offsets, {name: run[name] for name in names if name in run}))
        self.told.append((answer["done"], answer["queues"]))

    def _done(self, member: str, first: int, **report: Any) -> None:
        run = self._runs[member, first]
        one = {"queue": self._queue, "first": first, "grant": run["grant"], **report}
        answer = self._of(member, "share/done", {"done": [one]})
        if answer is not None:
            (told,) = answer["done"]
            assert (told["queue"], told["first"], told["grant"]) == (
                self._queue,
                first,
                run["grant"],
            )
            self.told.append(
                (told["state"], told.get("lease_ms"), bool(told.get("detail")))
            )

    def _fail(self, member: str, first: int, *messages: dict[str, Any]) -> None:
        grant = self._runs[member, first]["grant"]
        named = [{"queue": self._queue, "grant": grant, **message} for message in messages]
        answer = self._of(member, "failures", {"messages": named})
        if answer is not None:
            lists = {
                verdict: sorted(
                    (one["offset"], one.get("attempt"), one.get("state"))
                    for one in answer[verdict]
                )
                for verdict in ("retried", "dead", "refused")
            }
            self.told.append(lists)

    def _of(self, member: str, verb: str, body: dict[str, Any]) -> Any:
        return self._call("POST", ("consumers", self._ids[member], *verb.split("/")), body)

    def _call(self, method: str, parts: tuple[str, ...], body: dict[str, Any]) -> Any:
        try:
            return self._transport.request(method, api_path(*parts), body=body)
        except CatmqError as error:
            self.told.append((error.status, error.code))
            return None


def _name(member: str) -> dict[str, Any]:
    return {"name": member, "incarnation": "00000000-0000-7000-8000-000000000001"}


@pytest.fixture
def real(failure_node: str, broker: Broker) -> list[Any]:
    made = broker.ok("POST", "/topics", {"name": "orders", "queues": 1})
    queue = made["queues"][0]["queue"]
    broker.ok(
        "POST",
        "/topics/orders/messages",
        {"messages": [{"body": str(n)} for n in range(COUNT)]},
    )
    transport = HttpTransport(broker.url, api_key=broker.api_key, codec=JsonCodec())

    def expire(*firsts: int) -> None:
        group = snapshot.find_group("g")
        with node_pools.node_of(queue).writing() as session:
            for first in firsts:
                run_sql.end_leases(session, group_id=group.id, queue=queue, first=first)
        known_queues.forget(group.id, queue)
        lost_leases.sweep()
        snapshot.refresh()  # as the loops of a worker would

    told = Story(transport, queue, expire).tell()
    transport.close()
    return told


@pytest.fixture
def fake() -> list[Any]:
    broker = FakeBroker()
    (queue,) = broker.create_topic("orders", queues=1).queues
    body = {"messages": [{"body": str(n), "queue": queue.id} for n in range(COUNT)]}
    broker.request("POST", "/api/v1/topics/orders/messages", body=body)

    def expire(*firsts: int) -> None:
        for first in firsts:
            broker.find_group("g").free(queue.id, first)  # type: ignore[attr-defined] # it shares

    return Story(broker, queue.id, expire).tell()


def test_the_fake_broker_shares_as_a_broker_does(real: list[Any], fake: list[Any]) -> None:
    assert len(real) > 40
    assert fake == real
