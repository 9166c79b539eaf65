"""The queues of a topic over HTTP, through the client and by its commands."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from catmq_client import HttpTransport, Producer
from catmq_client.admin.api import Admin
from catmq_client.cli import main
from catmq_client.errors import Conflict, NotFound
from catmq_client.sending.routing import slot_of
from tests.support.broker import Broker, problem
from tests.support.waiting import until


@pytest.fixture
def client(broker: Broker) -> Iterator[HttpTransport]:
    """The client's way to the broker."""
    made = HttpTransport(broker.url, api_key=broker.api_key)
    yield made
    made.close()


def ids(broker: Broker, topic: str = "orders") -> list[int]:
    return [one["queue"] for one in broker.ok("GET", f"/topics/{topic}")["queues"]]


def test_a_topic_is_expanded_after_a_preview(broker: Broker, topic: str) -> None:
    first, second = ids(broker)
    planned = broker.ok("POST", f"/topics/{topic}/expand", {"queues": 2, "dry_run": True})
    new = {"queue": None, "node": "main", "state": "creating"}
    assert planned == {
        "topic": topic,
        "dry_run": True,
        "layout_version": 1,
        "queues": [{**new, "number": 2}, {**new, "number": 3}],
        "moved_slots": 512,
        "moved_share": 0.5,
        "unread": [],
    }
    done = broker.ok("POST", f"/topics/{topic}/expand", {"queues": 2, "node": "main"})
    assert (done["dry_run"], done["layout_version"], done["moved_slots"]) == (False, 2, 512)
    shown = broker.ok("GET", f"/topics/{topic}")
    added = [one["queue"] for one in done["queues"]]
    assert [one["queue"] for one in shown["queues"]] == [first, second, *added]
    assert {shown["layout"]["slots"].count(queue) for queue in (first, second, *added)} == {
        256
    }
    assert [one["state"] for one in done["queues"]] == ["read_write"] * 2
    assert broker.ok(
        "POST", f"/topics/{topic}/messages", {"messages": [{"body": "", "queue": added[0]}]}
    )


def test_a_topic_is_shrunk_and_its_queue_drains(broker: Broker, topic: str) -> None:
    first, second = ids(broker)
    broker.ok("POST", "/groups", {"name": "billing"})
    broker.ok("POST", "/groups/billing/subscriptions", {"topic": topic})
    broker.ok(
        "POST",
        f"/topics/{topic}/messages",
        {"messages": [{"body": "a", "queue": second}] * 2},
    )

    planned = broker.ok(
        "POST", f"/topics/{topic}/shrink", {"queues": [second], "dry_run": True}
    )
    assert planned["unread"] == [{"group": "billing", "messages": 2}]
    done = broker.ok("POST", f"/topics/{topic}/shrink", {"count": 1})

    assert [one["queue"] for one in done["queues"]] == [second]
    shown = broker.ok("GET", f"/topics/{topic}/queues/{second}")
    assert shown == {
        "queue": second,
        "number": 1,
        "node": "main",
        "state": "read_only",
        "slots": 0,
        "draining": True,
        "low": 0,
        "head": 2,
        "unread": [{"group": "billing", "messages": 2}],
    }
    assert broker.ok("GET", f"/topics/{topic}/queues")["queues"][1] == shown
    refused = broker.call(
        "POST", f"/topics/{topic}/messages", {"messages": [{"body": "", "queue": second}]}
    )
    problem(refused, 409, "queue_not_writable")
    problem(broker.call("POST", f"/topics/{topic}/shrink", {"count": 1}), 409, "last_queue")
    problem(
        broker.call("PATCH", f"/topics/{topic}/queues/{first}", {"state": "read_only"}),
        409,
        "last_queue",
    )
    opened = broker.ok("PATCH", f"/topics/{topic}/queues/{second}", {"state": "read_write"})
    assert (opened["slots"], opened["draining"]) == (512, False)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (("expand", {}), "queues"),
        (("expand", {"queues": 0}), "queues"),
        (("expand", {"queues": 255}), "queues"),
        (("expand", {"queues": "2"}), "queues"),
        (("expand", {"queues": 1, "dry_run": "yes"}), "dry_run"),
        (("expand", {"queues": 1, "count": 1}), "count"),
        (("expand", []), "(body)"),
        (("shrink", {}), "queues"),
        (("shrink", {"queues": []}), "queues"),
        (("shrink", {"queues": [999_999]}), "queues"),
        (("shrink", {"queues": ["1"]}), "queues[0]"),
        (("shrink", {"queues": [1], "count": 1}), "queues"),
        (("shrink", {"count": 0}), "count"),
        (("shrink", {"count": -1}), "count"),
    ],
)
def test_a_wrong_field_is_named_and_nothing_changes(
    broker: Broker, topic: str, call: tuple[str, Any], field: str
) -> None:
    verb, body = call
    before = broker.ok("GET", f"/topics/{topic}")
    problem(broker.call("POST", f"/topics/{topic}/{verb}", body), 400, "invalid", field)
    assert broker.ok("GET", f"/topics/{topic}") == before


def test_what_is_not_there_is_not_found(broker: Broker, topic: str) -> None:
    problem(
        broker.call("POST", "/topics/none/expand", {"queues": 1}), 404, "topic_not_found"
    )
    problem(
        broker.call("POST", "/topics/none/shrink", {"count": 1}), 404, "topic_not_found"
    )
    away = {"queues": 1, "node": "away"}
    problem(broker.call("POST", f"/topics/{topic}/expand", away), 404, "node_not_found")
    for queue in (999_999, 2**70):
        problem(
            broker.call("GET", f"/topics/{topic}/queues/{queue}"), 404, "queue_not_found"
        )
        closed = broker.call(
            "PATCH", f"/topics/{topic}/queues/{queue}", {"state": "read_only"}
        )
        problem(closed, 404, "queue_not_found")
    problem(broker.call("GET", f"/topics/{topic}/queues/x"), 404, "url_not_found")
    wrong = broker.call(
        "PATCH", f"/topics/{topic}/queues/{ids(broker)[0]}", {"state": "retired"}
    )
    problem(wrong, 400, "invalid", "state")


def test_only_who_manages_a_topic_changes_its_queues(broker: Broker, topic: str) -> None:
    sender = broker.as_key({"produce": ["*"]})
    queue = ids(broker)[0]
    problem(sender.call("POST", f"/topics/{topic}/expand", {"queues": 1}), 403, "forbidden")
    problem(sender.call("POST", f"/topics/{topic}/shrink", {"count": 1}), 403, "forbidden")
    closed = sender.call("PATCH", f"/topics/{topic}/queues/{queue}", {"state": "read_only"})
    problem(closed, 403, "forbidden")
    assert sender.ok("GET", f"/topics/{topic}/queues/{queue}")["slots"] == 512
    other = broker.as_key({"manage": ["other*"]})
    problem(other.call("GET", f"/topics/{topic}/queues"), 403, "forbidden")


def test_a_keyed_send_to_a_closed_queue_says_at_once_why_it_waits_and_goes_when_it_is_open(
    client: HttpTransport, broker: Broker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    layout = broker.ok("GET", f"/topics/{topic}")["layout"]["slots"]
    queue = layout[slot_of("a key")]
    admin = Admin(client)
    admin.change_queue(topic, queue, state="read_only")
    with (
        caplog.at_level(logging.WARNING, "catmq.producer"),
        Producer(broker.url, api_key=broker.api_key) as producer,
    ):
        waiting = producer.send_async(topic, b"x", key="a key")
        producer.send(topic, b"y")  # others go on
        (told,) = until(lambda: [one.getMessage() for one in caplog.records])
        assert told.startswith(f"Queue {queue} of topic {topic} is closed")
        assert f"catmq topic queue {topic} {queue} --state read_write" in told
        assert not waiting.done()
        admin.change_queue(topic, queue, state="read_write")
        assert waiting.result(30).queue == queue
    assert len(caplog.records) == 1
    broker.ok("PATCH", f"/topics/{topic}", {"keyed": "available"})
    admin.change_queue(topic, queue, state="read_only")
    with Producer(broker.url, api_key=broker.api_key) as producer:
        assert producer.send(topic, b"x", key="a key").queue != queue


def test_the_client_expands_shrinks_and_closes(
    client: HttpTransport, broker: Broker, topic: str
) -> None:
    admin = Admin(client)
    first, second = ids(broker)
    assert admin.expand_topic(topic, queues=1, dry_run=True)["queues"][0]["queue"] is None
    (new,) = [
        one["queue"] for one in admin.expand_topic(topic, queues=1, node="main")["queues"]
    ]
    assert new is not None
    assert admin.shrink_topic(topic, count=1, dry_run=True)["queues"][0]["queue"] == new
    assert admin.shrink_topic(topic, queues=[second])["moved_slots"] > 300
    assert [one["draining"] for one in admin.queues(topic)] == [False, True, False]
    assert admin.change_queue(topic, new, state="read_only")["state"] == "read_only"
    with pytest.raises(Conflict) as refused:
        admin.change_queue(topic, first, state="read_only")
    assert refused.value.code == "last_queue"
    with pytest.raises(NotFound):
        admin.queue(topic, 999_999)


def test_the_commands_of_the_client_show_what_they_did(
    broker: Broker, topic: str, client: HttpTransport, capsys: pytest.CaptureFixture[str]
) -> None:
    def ran(*words: str) -> list[list[str]]:
        assert main(["topic", *words], transport=client) == 0
        return [line.split() for line in capsys.readouterr().out.splitlines()]

    first, second = ids(broker)
    broker.ok("POST", "/groups", {"name": "billing"})
    broker.ok("POST", "/groups/billing/subscriptions", {"topic": topic})
    assert ran("expand", topic, "--queues", "1", "--dry-run") == [
        ["QUEUE", "NUMBER", "NODE", "STATE"],
        ["-", "2", "main", "creating"],
        [],
        ["GROUP", "UNREAD"],
        ["billing", "0"],
    ]
    new = ran("expand", topic, "--queues", "1")[1][0]
    assert main(["topic", "shrink", topic, "--queue", str(second)], transport=client) == 0
    assert "33.3 % of the keys move to other queues" in capsys.readouterr().err
    assert ran("queue", topic)[2] == [
        str(second),
        "1",
        "main",
        "draining",
        "0",
        "0",
        "0",
        "billing:",
        "0",
    ]
    assert ran("queue", topic, new, "--state", "read_only")[1][:5] == [
        new,
        "2",
        "main",
        "read_only",
        "512",
    ]
    main(["topic", "queue", topic, str(first), "--output", "json"], transport=client)
    assert json.loads(capsys.readouterr().out)["slots"] == 512
    assert main(["topic", "queue", topic, "--state", "read_only"], transport=client) == 2
    assert main(["topic", "shrink", topic, "--queue", str(first)], transport=client) == 1
    assert "No other queue" in capsys.readouterr().err
