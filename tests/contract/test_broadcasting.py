"""Broadcasting groups over HTTP."""

from __future__ import annotations

import uuid
from typing import Any

from metadata.cache import snapshot
from tests.support.broker import Broker, problem
from tests.support.members import Member, reader
from tests.support.waiting import until


def instance(broker: Broker, name: str) -> Member:
    """An instance of group `readers` that has acquired every queue of topic `single`."""
    return reader(broker, name=f"host-{name}", mode="broadcasting", instance_id=name)


def send(broker: Broker, *bodies: str) -> None:
    broker.ok(
        "POST", "/topics/single/messages", {"messages": [{"body": body} for body in bodies]}
    )


def bodies(member: Member, queue: int, offset: int = 0) -> list[str]:
    (pulled,) = member.pull(member.position(queue, offset))["queues"]
    assert pulled["state"] == "ok"
    return [message["body"] for message in pulled["messages"]]


def test_every_instance_gets_every_message_and_has_offsets_of_its_own(
    broker: Broker, queue: int
) -> None:
    send(broker, "a", "b")
    one, two = instance(broker, "one"), instance(broker, "two")

    assert bodies(one, queue) == bodies(two, queue) == ["a", "b"]
    assert one.commit(one.position(queue, 2)) == ["ok"]

    shown = broker.ok("GET", "/groups/readers/offsets")
    assert [(row["instance"], row["owner"], row["lag"]) for row in shown["queues"]] == [
        ("one", "host-one", 0),
        ("two", "host-two", 2),
    ]
    assert shown["lag"] == 2
    group = broker.ok("GET", "/groups/readers")
    assert group["mode"] == "broadcasting"
    assert [member["instance_id"] for member in group["members"]] == ["one", "two"]


def test_a_registration_makes_a_broadcasting_group_with_its_session_timeout(
    broker: Broker, queue: int
) -> None:
    body = {
        "name": "c",
        "incarnation": str(uuid.uuid4()),
        "topics": ["single"],
        "instance_id": "one",
    }
    settings = {"mode": "broadcasting", "session_timeout_ms": 6000}

    made = broker.ok("POST", "/groups/readers/consumers", {**body, **settings})

    assert made["created"] == ["group:readers", "subscription:readers/single"]
    assert (made["session_timeout_ms"], made["heartbeat_interval_ms"]) == (6000, 2000)
    assert (
        broker.ok("POST", "/groups/readers/consumers", body)["consumer_id"]
        == made["consumer_id"]
    )


def test_an_instance_goes_on_where_it_was_and_its_former_holder_is_told(
    broker: Broker, queue: int
) -> None:
    send(broker, "a", "b")
    old = instance(broker, "one")
    old.commit(old.position(queue, 1))

    new = Member.join(broker, name="host-one", instance_id="one")
    new.heartbeat()

    assert new.acquire() == [{"queue": queue, "state": "ok", "offset": 1}]
    beat = broker.call("POST", f"{old.path}/heartbeat", {"generation": 0, "owned": []})
    problem(beat, 410, "replaced")
    assert old.pull(old.position(queue, 0))["queues"][0]["state"] == "fenced"
    assert old.commit(old.position(queue, 2)) == ["fenced"]


def test_one_instance_is_moved_by_hand(broker: Broker, queue: int) -> None:
    send(broker, "a", "b")
    one, two = instance(broker, "one"), instance(broker, "two")
    broker.ok("PATCH", "/groups/readers", {"stopped": True})

    move = {"topic": "single", "to": "latest", "instance": "two"}
    moved = broker.ok("PATCH", "/groups/readers/offsets", move)
    broker.ok("PATCH", "/groups/readers", {"stopped": False})
    until(lambda: one.pull(one.position(queue, 0))["queues"][0]["state"] == "ok")

    (done,) = moved["moves"]
    assert (done["queue"], done["from"], done["to"], done["skipped"]) == (queue, 0, 2, 2)
    assert bodies(one, queue) == ["a", "b"]
    two.heartbeat()
    assert two.acquire() == [{"queue": queue, "state": "ok", "offset": 2}]


def test_a_topic_subscribed_to_later_reaches_waiting_instances(
    broker: Broker, queue: int, topic: str
) -> None:
    one = instance(broker, "one")
    broker.ok("POST", "/groups/readers/subscriptions", {"topic": topic})

    def told() -> Any:
        asked = one.pull(one.position(queue, 0), wait_ms=1000)
        return asked["assignment_changed"]

    until(told)
    assert len(one.heartbeat()["assigned"]) == 3
    assert {state["state"] for state in one.acquire()} == {"ok"}


def test_a_group_with_instances_is_deleted_and_made_anew(
    broker: Broker, queue: int
) -> None:
    send(broker, "a")
    one = instance(broker, "one")
    one.commit(one.position(queue, 1))
    problem(broker.call("DELETE", "/groups/readers?confirm=readers"), 409, "in_use")
    broker.ok("DELETE", one.path)
    broker.ok("DELETE", "/groups/readers?confirm=readers")

    again = instance(broker, "one")

    assert bodies(again, queue) == ["a"]


def test_acquire_and_commit_tell_the_generation_that_the_broker_knows(
    broker: Broker, queue: int
) -> None:
    member = reader(broker)
    held = {"queue": queue, "epoch": member.owned[queue]}

    def told() -> tuple[int, int]:
        acquired = broker.ok("POST", f"{member.path}/acquire", {"queues": [held]})
        committed = broker.ok(
            "POST", f"{member.path}/commit", {"offsets": [{**held, "offset": 0}]}
        )
        return acquired["generation"], committed["generation"]

    until(lambda: told() == (member.generation, member.generation))
    broker.ok("PATCH", "/groups/readers", {"stopped": True})
    until(lambda: told() == (member.generation + 1, member.generation + 1))
    assert snapshot.find_group("readers").generation == member.generation + 1
