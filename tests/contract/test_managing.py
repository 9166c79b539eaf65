"""Topics, groups, subscriptions, positions, nodes and keys over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from metadata.rules.topics.slots import slot_of
from tests.support.broker import Broker, problem
from tests.support.mariadb import MariaDB
from tests.support.members import reader
from tests.support.tampering import age


def test_a_topic_is_created_shown_changed_and_deleted(broker: Broker) -> None:
    made = broker.call(
        "POST",
        "/topics",
        {"name": "orders", "queues": 3, "retention_days": 2, "description": " x "},
    )
    assert (made.status_code, made.headers["Location"]) == (201, "/api/v1/topics/orders")
    shown = broker.ok("GET", made.headers["Location"].removeprefix("/api/v1"))
    assert shown == made.json()
    assert (shown["state"], shown["retention_days"], shown["description"]) == (
        "ready",
        2,
        " x ",
    )
    assert [
        (queue["number"], queue["low"], queue["head"], queue["node"])
        for queue in shown["queues"]
    ] == [(number, 0, 0, "main") for number in range(3)]
    assert (
        broker.ok("PATCH", "/topics/orders", {"retention_bytes": 1 << 30})[
            "retention_bytes"
        ]
        == 1 << 30
    )
    assert (
        broker.ok("PATCH", "/topics/orders", {"retention_bytes": None})["retention_bytes"]
        is None
    )
    assert (
        broker.call("DELETE", "/topics/orders", params={"confirm": "orders"}).status_code
        == 204
    )
    problem(broker.call("GET", "/topics/orders"), 404, "topic_not_found")


def test_a_keyed_message_goes_where_the_layout_says(broker: Broker, topic: str) -> None:
    slots = broker.ok("GET", f"/topics/{topic}")["layout"]["slots"]
    assert len(slots) == 1024
    for key in ("a", "b", "ördérs"):
        body = {"messages": [{"body": "", "key": key}]}
        (result,) = broker.ok("POST", f"/topics/{topic}/messages", body)["results"]
        assert result["queue"] == slots[slot_of(key)]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "name"),
        ({"name": 4}, "name"),
        ({"name": "t", "queues": 0}, "queues"),
        ({"name": "t", "queues": 257}, "queues"),
        ({"name": "t", "queues": "4"}, "queues"),
        ({"name": "t", "queues": True}, "queues"),
        ({"name": "t", "queues": 4.0}, "queues"),
        ({"name": "t", "partitions": 4}, "partitions"),
        ({"name": "t", "keyed": "maybe"}, "keyed"),
        ({"name": "t", "retention_days": 0}, "retention_days"),
        ({"name": "t", "description": None}, "description"),
        ([], "(body)"),
        ("t", "(body)"),
    ],
)
def test_a_wrong_field_of_a_topic_is_named_and_nothing_is_made(
    broker: Broker, body: Any, field: str
) -> None:
    problem(broker.call("POST", "/topics", body), 400, "invalid", field)
    assert broker.ok("GET", "/topics")["topics"] == []


def test_what_exists_is_not_made_again(broker: Broker, topic: str) -> None:
    problem(broker.call("POST", "/topics", {"name": topic}), 409, "already_exists")
    broker.ok("POST", "/groups", {"name": "g"})
    problem(broker.call("POST", "/groups", {"name": "g"}), 409, "already_exists")
    broker.ok("POST", "/groups/g/subscriptions", {"topic": topic})
    problem(
        broker.call("POST", "/groups/g/subscriptions", {"topic": topic}),
        409,
        "already_exists",
    )
    node = {"name": "main", "engine": "sqlite", "database": "other.sqlite3"}
    problem(broker.call("POST", "/nodes", node), 409, "already_exists")
    problem(
        broker.call("POST", "/keys", {"name": "test", "rights": {"admin": ["*"]}}),
        409,
        "already_exists",
    )


@pytest.mark.parametrize(
    "path", ["/topics/orders", "/groups/g", "/nodes/main", "/keys/test"]
)
def test_deleting_must_be_confirmed_with_the_name(
    broker: Broker, topic: str, path: str
) -> None:
    broker.ok("POST", "/groups", {"name": "g"})
    for query in ({}, {"confirm": "x"}):
        found = problem(broker.call("DELETE", path, params=query), 400, "not_confirmed")
        assert "confirm=" in found["detail"]
    assert broker.call("GET", path).status_code == 200


def test_what_is_in_use_is_not_deleted(broker: Broker, topic: str) -> None:
    broker.ok("POST", "/groups", {"name": "g"})
    broker.ok("POST", "/groups/g/subscriptions", {"topic": topic})
    found = problem(
        broker.call("DELETE", f"/topics/{topic}?confirm={topic}"), 409, "in_use"
    )
    assert "g" in found["detail"]
    problem(broker.call("DELETE", "/nodes/main?confirm=main"), 409, "in_use")


def test_lists_are_paged_by_name_and_searched(broker: Broker) -> None:
    for name in ("b1", "a1", "c1", "a2"):
        broker.ok("POST", "/groups", {"name": name})

    def names(**query: Any) -> tuple[list[str], str | None]:
        page = broker.ok("GET", "/groups", params=query)
        return [group["name"] for group in page["groups"]], page["next"]

    assert names() == (["a1", "a2", "b1", "c1"], None)
    assert names(limit=3) == (["a1", "a2", "b1"], "b1")
    assert names(limit=3, after="b1") == (["c1"], None)
    assert names(search="a") == (["a1", "a2"], None)
    problem(broker.call("GET", "/groups", params={"limit": 0}), 400, "invalid", "limit")
    problem(broker.call("GET", "/groups", params={"page": 2}), 400, "invalid", "page")


def test_a_group_is_created_stopped_and_deleted(broker: Broker, topic: str) -> None:
    made = broker.call(
        "POST", "/groups", {"name": "g", "session_timeout_ms": 5000, "owners": "ann"}
    )
    assert (made.status_code, made.headers["Location"]) == (201, "/api/v1/groups/g")
    assert broker.ok("GET", "/groups/g") == made.json()
    assert broker.ok("PATCH", "/groups/g", {"stopped": True})["stopped"] is True
    problem(broker.call("PATCH", "/groups/g", {}), 400, "invalid")
    problem(broker.call("PATCH", "/groups/g", {"mode": "x"}), 400, "invalid", "mode")
    problem(
        broker.call("PATCH", "/groups/g", {"session_timeout_ms": 1}),
        400,
        "invalid",
        "session_timeout_ms",
    )
    assert broker.call("DELETE", "/groups/g?confirm=g").status_code == 204
    problem(broker.call("GET", "/groups/g"), 404, "group_not_found")


def test_a_subscription_starts_where_it_is_told(broker: Broker, queue: int) -> None:
    broker.ok("POST", "/topics/single/messages", {"messages": [{"body": "a"}]})
    for group, start, lag in (("g1", "earliest", 1), ("g2", "latest", 0)):
        broker.ok("POST", "/groups", {"name": group})
        made = broker.call(
            "POST", f"/groups/{group}/subscriptions", {"topic": "single", "start": start}
        )
        assert made.headers["Location"] == f"/api/v1/groups/{group}/subscriptions/single"
        assert (made.json()["state"], made.json()["start"]) == ("ready", start)
        (row,) = broker.ok("GET", f"/groups/{group}/offsets")["queues"]
        assert (row["queue"], row["lag"], row["owner"]) == (queue, lag, None)


def test_a_subscription_starts_at_a_time(broker: Broker, queue: int) -> None:
    broker.ok(
        "POST", "/topics/single/messages", {"messages": [{"body": "a"}, {"body": "b"}]}
    )
    age(queue, 0, 1, seconds=7_200)
    for group, start in (("g1", {"start_ago_ms": 3_600_000}), ("g2", {"start_at_ms": 0})):
        broker.ok("POST", "/groups", {"name": group})
        made = broker.ok(
            "POST", f"/groups/{group}/subscriptions", {"topic": "single", **start}
        )
        assert made["start"] == "earliest" and made["start_at_ms"] >= start.get(
            "start_at_ms", 1
        )
        assert broker.ok("GET", f"/groups/{group}/subscriptions/single") == made
    assert [broker.ok("GET", f"/groups/{one}/offsets")["lag"] for one in ("g1", "g2")] == [
        1,
        2,
    ]
    broker.ok("POST", "/groups", {"name": "g3"})
    for wrong, field in (
        ({"start_at_ms": "yesterday"}, "start_at_ms"),
        ({"start_at_ms": -1}, "start_at_ms"),
        ({"start_at_ms": 1 << 60}, "start_at_ms"),
        ({"start_at_ms": 1, "start_ago_ms": 1}, "start_ago_ms"),
        ({"start": "latest", "start_ago_ms": 1}, "start"),
    ):
        answer = broker.call(
            "POST", "/groups/g3/subscriptions", {"topic": "single", **wrong}
        )
        problem(answer, 400, "invalid", field)
    assert broker.ok("GET", "/groups/g3/subscriptions")["subscriptions"] == []


def test_a_subscription_is_stopped_and_ended(broker: Broker, topic: str) -> None:
    broker.ok("POST", "/groups", {"name": "g"})
    broker.ok("POST", "/groups/g/subscriptions", {"topic": topic})
    path = f"/groups/g/subscriptions/{topic}"
    assert broker.ok("PATCH", path, {"stopped": True})["stopped"] is True
    assert [
        found["topic"]
        for found in broker.ok("GET", "/groups/g/subscriptions")["subscriptions"]
    ] == [topic]
    problem(
        broker.call("POST", "/groups/g/subscriptions", {"topic": "nope"}),
        404,
        "topic_not_found",
    )
    problem(
        broker.call("POST", "/groups/g/subscriptions", {"topic": topic, "start": "x"}),
        400,
        "invalid",
        "start",
    )
    assert broker.call("DELETE", path).status_code == 204
    problem(broker.call("DELETE", path), 404, "subscription_not_found")


def test_positions_move_while_the_group_runs_and_back(broker: Broker, queue: int) -> None:
    broker.ok(
        "POST",
        "/topics/single/messages",
        {"messages": [{"body": str(n)} for n in range(5)]},
    )
    member = reader(broker)
    member.commit(member.position(queue, 3))
    move = {"topic": "single", "to": "offset", "offset": 99}
    moved = {"topic": "single", "queue": queue, "number": 0, "from": 3, "to": 5}
    planned = {**moved, "skipped": 2, "repeated": 0, "asked": 99, "kept": False}
    dry = broker.ok("PATCH", "/groups/readers/offsets", {**move, "dry_run": True})
    assert dry == {"dry_run": True, "reset": None, "moves": [planned]}

    made = broker.ok("PATCH", "/groups/readers/offsets", move)
    assert made == {"dry_run": False, "reset": made["reset"], "moves": [planned]}
    assert broker.ok("GET", "/groups/readers/offsets")["lag"] == 0
    assert member.commit(member.position(queue, 4)) == ["fenced"]

    back = broker.ok("POST", "/groups/readers/offsets/undo", {"reset": made["reset"]})
    assert back["moves"] == [
        {
            **moved,
            "from": 5,
            "to": 3,
            "skipped": 0,
            "repeated": 2,
            "asked": None,
            "kept": False,
        }
    ]
    assert broker.ok("GET", "/groups/readers/offsets")["lag"] == 2
    past = broker.ok("GET", "/groups/readers/offsets/moves")["moves"]
    assert [(one["reset"], one["from"], one["to"], one["undoes"]) for one in past] == [
        (back["reset"], 5, 3, made["reset"]),
        (made["reset"], 3, 5, None),
    ]
    assert past[0]["actor"] == "key test" and past[0]["done"] is True
    problem(
        broker.call("POST", "/groups/readers/offsets/undo", {"reset": "none"}),
        404,
        "reset_not_found",
    )
    problem(broker.call("POST", "/groups/readers/offsets/undo", {}), 404, "reset_not_found")


def test_a_group_takes_over_the_offsets_of_another(broker: Broker, queue: int) -> None:
    broker.ok(
        "POST",
        "/topics/single/messages",
        {"messages": [{"body": str(n)} for n in range(5)]},
    )
    member = reader(broker)
    member.commit(member.position(queue, 3))
    broker.ok("POST", "/groups", {"name": "copy"})
    broker.ok("POST", "/groups/copy/subscriptions", {"topic": "single"})
    body = {"topic": "single", "to": "group", "source_group": "readers"}
    blind = broker.as_key({"manage": ["copy"]})
    refused = problem(blind.call("PATCH", "/groups/copy/offsets", body), 403, "forbidden")
    assert "consume or browse on topic single" in refused["detail"]
    (move,) = broker.as_key({"manage": ["copy"], "browse": ["single"]}).ok(
        "PATCH", "/groups/copy/offsets", body
    )["moves"]
    assert (move["queue"], move["from"], move["to"], move["kept"]) == (queue, 0, 3, False)
    missing = problem(
        broker.call("PATCH", "/groups/copy/offsets", {**body, "source_group": "no"}),
        404,
        "group_not_found",
    )
    assert "no" in missing["detail"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"to": "somewhere"}, "to"),
        ({"to": "offset"}, "to"),
        ({"to": "earliest", "offset": 1}, "to"),
        ({"to": "offset", "offset": -1}, "offset"),
        ({"to": "time", "at_ms": 1, "ago_ms": 1}, "to"),
        ({"to": "group"}, "to"),
        ({"to": "latest", "source_group": "g"}, "to"),
        ({"to": "group", "source_group": "g"}, "source_group"),
        ({"to": "group", "source_group": 7}, "source_group"),
        ({"to": "latest", "queues": [999_999]}, "queues"),
        ({"to": "latest", "queues": ["1"]}, "queues[0]"),
        ({"to": "latest", "dry_run": "yes"}, "dry_run"),
    ],
)
def test_a_wrong_reset_is_named(
    broker: Broker, queue: int, change: dict[str, Any], field: str
) -> None:
    broker.ok("POST", "/groups", {"name": "g", "session_timeout_ms": 5000})
    broker.ok("POST", "/groups/g/subscriptions", {"topic": "single"})
    broker.ok("PATCH", "/groups/g", {"stopped": True})
    answer = broker.call("PATCH", "/groups/g/offsets", {"topic": "single", **change})
    problem(answer, 400, "invalid", field)


def test_a_node_that_cannot_be_reached_is_refused_with_the_remedy(broker: Broker) -> None:
    body = {
        "name": "far",
        "engine": "mysql",
        "host": "127.0.0.1",
        "port": 1,
        "database": "catmq",
        "username": "u",
        "password": "the secret",
    }
    found = problem(broker.call("POST", "/nodes", body), 400, "node_refused")
    assert "Check host" in found["detail"]
    assert "onnect" in found["detail"]  # in the words of the driver
    assert "the secret" not in str(found)
    problem(broker.call("GET", "/nodes/far"), 404, "node_not_found")


def test_a_node_of_another_character_set_is_refused_with_the_remedy(
    broker: Broker, mariadb: MariaDB
) -> None:
    with mariadb.schema() as schema:
        mariadb.execute(f"ALTER DATABASE {schema} CHARACTER SET latin1")
        found = problem(
            broker.call("POST", "/nodes", on(mariadb, schema)), 400, "node_refused"
        )
    assert "latin1" in found["detail"]
    assert "utf8mb4" in found["detail"]


def test_a_node_whose_account_lacks_rights_is_refused_with_the_remedy(
    broker: Broker, mariadb: MariaDB
) -> None:
    with mariadb.schema() as schema:
        mariadb.execute("DROP USER IF EXISTS weak@'%'")
        mariadb.execute("CREATE USER weak@'%' IDENTIFIED BY 'weak'")
        mariadb.execute(f"GRANT SELECT ON {schema}.* TO weak@'%'")
        body = on(mariadb, schema, username="weak", password="weak")
        found = problem(broker.call("POST", "/nodes", body), 400, "node_refused")
    assert f"Run GRANT DROP ON `{schema}`.* TO 'weak'@'%'" in found["detail"]
    problem(broker.call("GET", "/nodes/second"), 404, "node_not_found")


def on(server: MariaDB, schema: str, **more: str) -> dict[str, Any]:
    """A registration of a schema as node `second`."""
    account = {"username": "catmq", "password": server.password, **more}
    return {
        "name": "second",
        "engine": "mysql",
        "host": "127.0.0.1",
        "port": server.port,
        "database": schema,
        **account,
    }


def test_a_node_is_registered_and_never_shows_its_password(
    broker: Broker, node_database: Callable[..., dict[str, Any]]
) -> None:
    given = node_database()
    body = {
        "name": "second",
        **{name: value for name, value in given.items() if value not in ("", 0)},
    }
    made = broker.call("POST", "/nodes", body)
    assert (made.status_code, made.headers["Location"]) == (201, "/api/v1/nodes/second"), (
        made.text
    )
    shown = broker.ok("GET", "/nodes/second")
    assert (shown["state"], shown["epoch"], shown["queues"]) == ("read_write", 1, 0)
    assert "password" not in str(broker.ok("GET", "/nodes"))
    for state in ("read_only", "offline", "read_write", "read_only"):
        assert broker.ok("PATCH", "/nodes/second", {"state": state})["state"] == state
    problem(broker.call("PATCH", "/nodes/second", {"state": "up"}), 400, "invalid", "state")
    problem(
        broker.call("PATCH", "/nodes/second", {"password": "x"}), 400, "invalid", "password"
    )
    assert broker.call("DELETE", "/nodes/second?confirm=second").status_code == 204


def test_a_key_is_shown_once(broker: Broker) -> None:
    made = broker.call("POST", "/keys", {"name": "k", "rights": {"produce": ["a*"]}})
    assert made.status_code == 201
    assert made.json()["api_key"].startswith("catmq_")
    assert broker.ok("GET", "/keys/k")["rights"] == {"produce": ["a*"]}
    assert made.json()["api_key"] not in str(broker.ok("GET", "/keys"))
    for rights, field in (
        ({"fly": ["*"]}, "rights.fly"),
        ({"browse": "*"}, "rights.browse"),
        ({}, "rights"),
    ):
        answer = broker.call("POST", "/keys", {"name": "l", "rights": rights})
        problem(answer, 400, "invalid", field)


def test_messages_are_found_by_what_they_carry(broker: Broker, topic: str) -> None:
    sent = [
        {"body": "one red", "key": "k1", "tag": "new", "trace_id": "t1"},
        {"body": "two blue", "key": "k2", "tag": "new", "trace_id": "t2"},
        {"body": "three red", "key": "k1", "tag": "paid", "trace_id": "t3"},
    ]
    path = "/topics/orders/messages"
    ids = [
        one["message_id"] for one in broker.ok("POST", path, {"messages": sent})["results"]
    ]

    def found(query: str) -> list[str]:
        answer = broker.ok("GET", f"{path}?{query}")
        assert answer["next"] is None
        assert answer["scanned"] <= 3
        return sorted(one["message_id"] for one in answer["messages"])

    assert found("key=k1") == sorted([ids[0], ids[2]])
    assert found("tag=new") == sorted(ids[:2])
    assert found("trace_id=t2") == [ids[1]]
    assert found("contains=red&tag=paid") == [ids[2]]
    assert found("from_ms=1") == sorted(ids)
    assert found("to_ms=1000") == []
    assert found("key=K1") == []  # byte by byte


def test_a_search_goes_on_where_it_ended(broker: Broker, topic: str) -> None:
    path = "/topics/orders/messages"
    messages = [
        {"body": str(number), "key": str(number), "tag": "all"} for number in range(7)
    ]
    ids = {
        one["message_id"]
        for one in broker.ok("POST", path, {"messages": messages})["results"]
    }
    found: list[str] = []
    after = ""
    for _ in range(20):
        answer = broker.ok("GET", f"{path}?tag=all&limit=2{after}")
        found += [one["message_id"] for one in answer["messages"]]
        if answer["next"] is None:
            break
        after = f"&after={answer['next']}"

    assert len(found) == 7
    assert set(found) == ids


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("key=a&after=nonsense", "message_id"),
        ("key=a&message_id=1-1", "message_id"),
        ("from_ms=5&to_ms=5", "to_ms"),
        ("contains=", "contains"),
        ("key=a&limit=0", "limit"),
    ],
)
def test_a_search_that_makes_no_sense_is_refused_by_name(
    broker: Broker, topic: str, query: str, field: str
) -> None:
    problem(broker.call("GET", f"/topics/orders/messages?{query}"), 400, "invalid", field)


def test_a_search_in_a_queue_of_another_topic_finds_no_queue(
    broker: Broker, topic: str, queue: int
) -> None:
    problem(
        broker.call("GET", f"/topics/orders/messages?key=a&queue={queue}"),
        404,
        "queue_not_found",
    )


def test_messages_are_looked_at_without_a_group(broker: Broker, queue: int) -> None:
    sent = broker.ok(
        "POST", "/topics/single/messages", {"messages": [{"body": b} for b in "abc"]}
    )
    path = "/topics/single/messages"
    page = broker.ok("GET", path, params={"queue": queue, "offset": 1, "limit": 1})
    assert [(message["body"], message["queue"]) for message in page["messages"]] == [
        ("b", queue)
    ]
    assert (page["scanned"], page["next"]) == (1, 2)
    assert broker.ok("GET", path, params={"queue": queue, "offset": 2})["next"] is None
    by_id = broker.ok("GET", path, params={"message_id": sent["results"][0]["message_id"]})
    assert by_id["messages"][0]["body"] == "a"
    answer = broker.call("GET", path, params={"message_id": f"{queue}-77"})
    problem(answer, 404, "message_not_found")
