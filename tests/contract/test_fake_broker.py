"""SimulatedBroker, and FakeBroker with one member, answer as a broker does: one story told
to all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from catmq_client import HttpTransport
from catmq_client.errors import CatmqError, NotBuilt
from catmq_client.http.transport import Transport, api_path
from catmq_client.http.wire import JsonCodec
from catmq_client.testing import FakeBroker
from metadata.cache import snapshot
from tests.support.broker import Broker
from tests.support.simulated import SimulatedBroker

INCARNATION = "00000000-0000-7000-8000-00000000000"
Stop = Callable[[bool, dict[str, Any]], object]


class Story:
    """Calls of a group's members, and what was answered: queues by number, epochs from 0
    on.
    """

    def __init__(self, transport: Transport, queues: list[int]) -> None:
        self._transport = transport
        self._numbers = {queue: number for number, queue in enumerate(queues)}
        self.queues = queues
        self._epoch: int | None = None
        self.ids: dict[str, str] = {}
        self._generations: dict[str, int] = {}
        self.heard: list[int] = []
        self.told: list[Any] = []

    def register(
        self, member: str, incarnation: int = 1, group: str = "g", **more: Any
    ) -> None:
        """A later process of the same name takes the earlier one's place in the story."""
        body = {
            "name": member,
            "incarnation": f"{INCARNATION}{incarnation}",
            "topics": ["orders"],
            **more,
        }
        answer = self._call("POST", ("groups", group, "consumers"), body)
        if answer is not None:
            self.ids[member] = answer["consumer_id"]
            self._generations[member] = 0
            self.told.append(
                (answer["session_timeout_ms"], answer["heartbeat_interval_ms"])
            )

    def heartbeat(self, member: str, holds: dict[int, int]) -> None:
        """`holds`: epoch by the queue's number."""
        owned = [
            {"queue": self.queues[n], "epoch": self._real(epoch)}
            for n, epoch in holds.items()
        ]
        answer = self._of(
            member, "heartbeat", {"generation": self._generations[member], "owned": owned}
        )
        if answer is not None:
            self._generations[member] = answer["generation"]
            assigned = [
                (self._numbers[one["queue"]], self._told(one["epoch"]), one["stopped"])
                for one in answer["assigned"]
            ]
            self.told.append(
                (
                    sorted(assigned),
                    sorted(self._numbers[queue] for queue in answer["revoked"]),
                )
            )

    def acquire(self, member: str, number: int, epoch: int) -> None:
        body = {"queues": [{"queue": self.queues[number], "epoch": self._real(epoch)}]}
        answer = self._of(member, "acquire", body)
        if answer is not None:
            self.heard.append(answer["generation"])
            self.told += [(one["state"], one["offset"]) for one in answer["queues"]]

    def commit(self, member: str, number: int, epoch: int, offset: int) -> None:
        body = {
            "offsets": [
                {"queue": self.queues[number], "epoch": self._real(epoch), "offset": offset}
            ]
        }
        answer = self._of(member, "commit", body)
        if answer is not None:
            self.heard.append(answer["generation"])
            self.told += [one["state"] for one in answer["results"]]

    def pull(self, member: str, number: int, epoch: int, offset: int) -> None:
        asked = {"queue": self.queues[number], "epoch": self._real(epoch), "offset": offset}
        body = {
            "generation": self._generations[member],
            "queues": [asked],
            "wait_ms": 0,
            "max_messages": 9,
        }
        answer = self._of(member, "pull", body)
        if answer is not None:
            assert answer["assignment_changed"] == (
                answer["generation"] > self._generations[member]
            )
            for one in answer["queues"]:
                offsets = [message["offset"] for message in one["messages"]]
                self.told.append((one["state"], offsets, one["next_offset"]))

    def leave(self, member: str) -> None:
        self._call("DELETE", ("consumers", self.ids[member]), None)

    def begin_epochs(self) -> None:
        """The next epoch that is told counts as 0."""
        self._epoch = None

    def _of(self, member: str, verb: str, body: dict[str, Any]) -> Any:
        return self._call("POST", ("consumers", self.ids[member], verb), body)

    def _call(
        self, method: str, parts: tuple[str, ...], body: dict[str, Any] | None
    ) -> Any:
        try:
            return self._transport.request(method, api_path(*parts), body=body)
        except CatmqError as error:
            self.told.append(
                (error.status, error.code, [one.field for one in error.errors])
            )
            return None

    def _told(self, epoch: int) -> int:
        if self._epoch is None:
            self._epoch = epoch
        return epoch - self._epoch

    def _real(self, epoch: int) -> int:
        return epoch + (self._epoch or 0)


def tell_of_positions(story: Story) -> None:
    """One member alone: what it may acquire, read and commit."""
    story.register("a")
    story.heartbeat("a", {})
    story.acquire("a", 0, 0)
    story.acquire("a", 1, 0)
    story.acquire("a", 1, 1)
    story.pull("a", 0, 0, 0)
    story.pull("a", 0, 0, 9)
    story.commit("a", 0, 0, 1)
    story.commit("a", 0, 0, 9)
    story.commit("a", 0, 1, 1)


def tell_of_moves(story: Story) -> None:
    """Another one comes, goes, and comes again."""
    story.register("b")
    story.heartbeat("b", {})
    story.heartbeat("a", {0: 0, 1: 0})
    story.acquire("a", 1, 0)
    # What goes back to its owner before it left comes under the next epoch.
    story.leave("b")
    story.heartbeat("a", {0: 0, 1: 0})
    story.commit("a", 1, 0, 0)
    story.acquire("a", 1, 1)
    story.register("b", incarnation=2)
    story.heartbeat("a", {0: 0, 1: 1})
    story.heartbeat("a", {0: 0})
    story.heartbeat("b", {})
    story.acquire("b", 1, 2)
    story.commit("a", 1, 1, 0)
    story.pull("a", 1, 1, 0)


def tell_of_stops(story: Story, stop: Stop) -> None:
    """Consumption is stopped and started, of a queue, of a topic, of the group."""
    for where in ({"queue": story.queues[0]}, {"topic": "orders"}, {}):
        stop(True, where)
        story.heartbeat("a", {0: 0})
        story.pull("a", 0, 0, 0)
        stop(False, where)
        story.heartbeat("a", {0: 0})
    story.pull("a", 0, 0, 0)


def tell_of_identities(story: Story) -> None:
    """The same process again, the next process of the same name, and the former one that
    did not end.
    """
    story.register("a")
    former = story.ids["a"]
    story.register("a", incarnation=4)
    story.heartbeat("a", {})
    successor, story.ids["a"] = story.ids["a"], former
    story.heartbeat("a", {0: 0})
    story.acquire("a", 0, 0)
    story.pull("a", 0, 0, 0)
    story.register("a")
    story.ids["a"] = successor
    story.acquire("a", 0, 1)
    story.pull("a", 0, 0, 0)
    story.register("c", mode="broadcasting", instance_id="c")
    story.register("c", session_timeout_ms=2_000)


def tell_of_broadcasting(story: Story) -> None:
    """Two instances of another group, and what the second process of one finds."""
    story.register("x", group="all", mode="broadcasting", session_timeout_ms=6_000)
    for name in ("x", "y"):
        story.register(
            name,
            group="all",
            mode="broadcasting",
            session_timeout_ms=6_000,
            instance_id=name,
        )
        story.begin_epochs()
        story.heartbeat(name, {})
        story.acquire(name, 0, 0)
    story.commit("x", 0, 0, 1)
    story.pull("x", 0, 0, 1)
    story.pull("y", 0, 0, 0)
    former = story.ids["x"]
    story.register("x", incarnation=2, group="all", instance_id="x")
    story.heartbeat("x", {})
    story.acquire("x", 0, 1)
    story.ids["x"] = former
    story.heartbeat("x", {0: 0})
    story.commit("x", 0, 0, 2)
    story.register("z", group="all", mode="clustering", instance_id="z")


def tell(story: Story, stop: Stop) -> Story:
    """All of it."""
    tell_of_positions(story)
    tell_of_moves(story)
    tell_of_stops(story, stop)
    tell_of_identities(story)
    tell_of_broadcasting(story)
    return story


@pytest.fixture
def real(broker: Broker, topic: str) -> Story:
    transport = HttpTransport(broker.url, api_key=broker.api_key, codec=JsonCodec())
    queues = [row["queue"] for row in broker.ok("GET", f"/topics/{topic}")["queues"]]
    for queue in queues[:1]:
        broker.ok(
            "POST",
            f"/topics/{topic}/messages",
            {"messages": [{"body": "x", "queue": queue}] * 2},
        )
    story = Story(transport, queues)

    def stop(stopped: bool, where: dict[str, Any]) -> None:
        path = "/groups/g" if not where else f"/groups/g/subscriptions/{topic}"
        body = (
            {"stopped_queues": [where["queue"]] * stopped}
            if "queue" in where
            else {"stopped": stopped}
        )
        broker.ok("PATCH", path, body)
        snapshot.refresh()  # as the loop of a worker would

    tell(story, stop)
    transport.close()
    return story


def filled(broker: FakeBroker) -> list[int]:
    """The queues of a new topic, two messages in the first."""
    queues = [queue.id for queue in broker.create_topic("orders", queues=2).queues]
    path = "/api/v1/topics/orders/messages"
    broker.request("POST", path, body={"messages": [{"body": "x", "queue": queues[0]}] * 2})
    return queues


@pytest.fixture
def simulated() -> Story:
    broker = SimulatedBroker()
    story = Story(broker, filled(broker))

    def stop(stopped: bool, where: dict[str, Any]) -> None:
        (broker.stop if stopped else broker.start)("g", **where)

    return tell(story, stop)


@pytest.fixture
def fake() -> Story:
    broker = FakeBroker()
    story = Story(broker, filled(broker))
    tell_of_positions(story)
    return story


def test_the_simulated_broker_answers_as_a_broker_does(
    real: Story, simulated: Story
) -> None:
    assert len(real.told) > 60
    assert simulated.told == real.told
    assert len(simulated.heard) == len(real.heard)


def test_the_fake_broker_answers_a_lone_member_as_a_broker_does(
    simulated: Story, fake: Story
) -> None:
    assert len(fake.told) == 10
    assert fake.told == simulated.told[:10]


def test_what_the_fake_broker_does_not_do_is_refused_with_what_to_do_instead() -> None:
    broker = FakeBroker()
    queues = filled(broker)
    body = {"name": "a", "incarnation": INCARNATION, "topics": ["orders"]}

    def refused(*call: str, **more: Any) -> None:
        with pytest.raises(NotBuilt, match="start a real one"):
            broker.request(*call, body={**body, **more})

    register = ("POST", "/api/v1/groups/g/consumers")
    broker.request(*register, body=body)
    refused(*register, name="b")
    refused(*register, mode="broadcasting", instance_id="x")
    refused("POST", "/api/v1/groups/g/dead/redrive")
    refused("PATCH", f"/api/v1/topics/orders/queues/{queues[0]}")
