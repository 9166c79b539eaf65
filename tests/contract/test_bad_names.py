"""Names that are none, URLs that are none, and names that a collation would merge."""

from __future__ import annotations

import http.client
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec
import pytest

from tests.support.broker import Broker, problem

BAD_NAMES = [".", "..", "a b", "x_fail", "a" * 101, "", "-a", "é", "a/b", "a\n", "a\x00"]


@pytest.mark.parametrize("name", BAD_NAMES)
@pytest.mark.parametrize("what", ["topics", "groups"])
def test_a_name_that_is_none_is_refused_and_says_what_a_name_is(
    broker: Broker, what: str, name: str
) -> None:
    found = problem(broker.call("POST", f"/{what}", {"name": name}), 400, "invalid", "name")
    assert len(found["errors"]) == 1
    assert broker.ok("GET", f"/{what}")[what] == []


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_node_or_key_of_such_a_name_is_refused(broker: Broker, name: str) -> None:
    node = {"name": name, "engine": "sqlite", "database": "x.sqlite3"}
    problem(broker.call("POST", "/nodes", node), 400, "invalid", "name")
    problem(
        broker.call("POST", "/keys", {"name": name, "rights": {"browse": ["*"]}}),
        400,
        "invalid",
        "name",
    )


def test_names_of_a_hundred_characters_and_every_allowed_one_are_taken(
    broker: Broker,
) -> None:
    name = "0.a_Z-" + "x" * 94
    assert broker.ok("POST", "/topics", {"name": name, "queues": 1})["name"] == name
    assert broker.ok("GET", f"/topics/{name}")["name"] == name


def raw(broker: Broker, path: str) -> tuple[int, str]:
    """(status, code) of a GET whose path no client tidies up."""
    parts = urlsplit(broker.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
    connection.putrequest("GET", path, skip_host=False)
    connection.putheader("Authorization", f"Bearer {broker.api_key}")
    connection.endheaders()
    answer = connection.getresponse()
    found = msgspec.json.decode(answer.read())
    connection.close()
    return answer.status, found["code"]


@pytest.mark.parametrize(
    "name", [".", "..", "a b", "é", "Orders", "orders ", "orders%00", "a" * 300]
)
def test_a_topic_that_does_not_exist_is_said_to(
    broker: Broker, topic: str, name: str
) -> None:
    path = f"/api/v1/topics/{quote(name, safe='%')}"
    assert raw(broker, path) == (404, "topic_not_found")
    assert raw(broker, f"{path}/messages?queue=1") == (404, "topic_not_found")


def test_sending_creates_nothing_and_names_the_command(broker: Broker) -> None:
    found = problem(
        broker.call("POST", "/topics/nope/messages", {"messages": [{"body": ""}]}),
        404,
        "topic_not_found",
    )
    assert "catmq topic create nope --queues 4" in found["detail"]


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/groups/nope", "group_not_found"),
        ("/groups/nope/offsets", "group_not_found"),
        ("/groups/nope/subscriptions", "group_not_found"),
        ("/groups/nope/subscriptions/orders", "subscription_not_found"),
        ("/nodes/nope", "node_not_found"),
        ("/keys/nope", "key_not_found"),
        ("/topics/orders/messages?queue=99999", "queue_not_found"),
        ("/topics/orders/messages?message_id=99999-1", "queue_not_found"),
    ],
)
def test_what_does_not_exist_is_named(
    broker: Broker, topic: str, path: str, code: str
) -> None:
    problem(broker.call("GET", path), 404, code)


@pytest.mark.parametrize(
    "path", ["/", "/nope", "/topics/", "/topics/orders/nope", "/consumers", "/v2"]
)
def test_an_unknown_url_is_a_problem_that_names_the_docs(broker: Broker, path: str) -> None:
    assert (
        "/api/v1/docs" in problem(broker.call("GET", path), 404, "url_not_found")["detail"]
    )


def test_an_unknown_url_outside_the_api_is_a_problem_too(broker: Broker) -> None:
    problem(broker.call("GET", f"{broker.url}/nope"), 404, "url_not_found")
    problem(broker.call("GET", f"{broker.url}/api"), 404, "url_not_found")


def test_a_host_that_is_not_ours_is_refused(broker: Broker, settings: Any) -> None:
    settings.ALLOWED_HOSTS = ["127.0.0.1"]
    problem(
        broker.call("GET", "/topics", headers={"Host": "evil.example"}), 400, "malformed"
    )


def test_a_host_name_of_a_container_network_is_served(
    broker: Broker, settings: Any
) -> None:
    settings.ALLOWED_HOSTS = ["catmq_broker_1"]
    assert (
        broker.call("GET", "/topics", headers={"Host": "catmq_broker_1:8000"}).status_code
        == 200
    )
    problem(
        broker.call("GET", "/topics", headers={"Host": "catmq_broker_2"}), 400, "malformed"
    )


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/topics", "GET, POST"),
        ("DELETE", "/topics", "GET, POST"),
        ("GET", "/consumers/x/pull", "POST"),
        ("POST", "/topics/orders", "GET, PATCH, DELETE"),
        ("OPTIONS", "/topics", "GET, POST"),
        ("TRACE", "", "GET"),
    ],
)
def test_a_wrong_method_is_told_the_right_ones(
    broker: Broker, method: str, path: str, allowed: str
) -> None:
    answer = broker.call(method, path)
    problem(answer, 405, "method_not_allowed")
    assert answer.headers["Allow"] == allowed


def test_key_spellings_that_a_collation_would_merge_are_four_keys(
    broker: Broker, topic: str
) -> None:
    keys = ["Orders", "orders", "orders ", "ördérs"]
    messages = [{"body": key, "key": key} for key in keys]
    results = broker.ok("POST", f"/topics/{topic}/messages", {"messages": messages})[
        "results"
    ]
    for key, result in zip(keys, results, strict=True):
        query = {"message_id": result["message_id"]}
        (found,) = broker.ok("GET", f"/topics/{topic}/messages", params=query)["messages"]
        assert (found["key"], found["body"]) == (key, key)


def test_topics_that_differ_in_case_are_two(broker: Broker, topic: str) -> None:
    problem(broker.call("GET", "/topics/Orders"), 404, "topic_not_found")
    broker.ok("POST", "/topics", {"name": "Orders", "queues": 1})
    assert len(broker.ok("GET", "/topics/Orders")["queues"]) == 1
    assert len(broker.ok("GET", "/topics/orders")["queues"]) == 2


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"queue": "x"}, "queue"),
        ({"queue": "-1"}, "queue"),
        ({"queue": "1", "limit": "0"}, "limit"),
        ({"queue": "1", "limit": "1001"}, "limit"),
        ({"queue": "1", "offset": "-1"}, "offset"),
        ({"queue": "1", "offset": str(2**63)}, "offset"),
        ({"queue": "1", "color": "red"}, "color"),
        ({"queue": ["1", "2"]}, "queue"),
        ({"message_id": "x"}, "message_id"),
        ({}, "queue"),
    ],
)
def test_a_wrong_parameter_is_named(
    broker: Broker, topic: str, query: dict[str, str], field: str
) -> None:
    problem(
        broker.call("GET", f"/topics/{topic}/messages", params=query), 400, "invalid", field
    )
