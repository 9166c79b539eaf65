"""Who may do what: keys that are missing, wrong or insufficient."""

from __future__ import annotations

import json
from typing import Any

import pytest

from catmq_client import HttpTransport
from catmq_client.cli.main import main
from metadata.cache import snapshot
from tests.support.broker import Broker, problem

MESSAGES = {"messages": [{"body": "a"}]}


@pytest.mark.parametrize(
    "header",
    [
        {"Authorization": ""},
        {"Authorization": "Basic eDp5"},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer é"},
    ],
)
def test_a_missing_key_is_unauthenticated_and_told_the_header(
    broker: Broker, topic: str, header: Any
) -> None:
    encoded = {name: value.encode() for name, value in header.items()}
    answer = broker.call("POST", f"/topics/{topic}/messages", MESSAGES, headers=encoded)
    problem(answer, 401, "unauthenticated")
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")


@pytest.mark.parametrize(
    "path", ["/topics", "/groups", "/nodes", "/keys", "/brokers", "/consumers/x/pull"]
)
def test_every_endpoint_wants_a_key(broker: Broker, path: str) -> None:
    method = "POST" if path.endswith("pull") else "GET"
    problem(
        Broker(broker.url, "catmq_wrong").call(
            method, path, {} if method == "POST" else None
        ),
        401,
        "unauthenticated",
    )


def test_a_deleted_key_is_refused(broker: Broker) -> None:
    other = broker.as_key({"browse": ["*"]})
    name = next(
        key["name"] for key in broker.ok("GET", "/keys")["keys"] if key["name"] != "test"
    )
    other.ok("GET", "/topics")
    broker.ok("DELETE", f"/keys/{name}", params={"confirm": name})

    snapshot.refresh()
    problem(other.call("GET", "/topics"), 401, "unauthenticated")


@pytest.mark.parametrize(
    ("method", "path", "body", "words"),
    [
        ("POST", "/topics/orders/messages", MESSAGES, "produce on topic orders"),
        ("GET", "/topics/orders/messages?queue=1", None, "browse on topic orders"),
        ("GET", "/topics/orders/messages?key=a", None, "browse on topic orders"),
        ("POST", "/topics", {"name": "new", "queues": 1}, "manage on topic new"),
        ("PATCH", "/topics/orders", {"description": "x"}, "manage on topic orders"),
        ("DELETE", "/topics/orders?confirm=orders", None, "manage on topic orders"),
        ("POST", "/groups", {"name": "new"}, "manage on group new"),
        (
            "POST",
            "/nodes",
            {"name": "n", "engine": "sqlite", "database": "x"},
            "admin on *, which node n",
        ),
        ("POST", "/keys", {"name": "k", "rights": {"admin": ["*"]}}, "admin on key k"),
        ("GET", "/nodes/main", None, "admin on *, which node main needs"),
    ],
)
def test_an_insufficient_key_is_told_the_right_it_lacks(
    *, broker: Broker, topic: str, method: str, path: str, body: Any, words: str
) -> None:
    weak = broker.as_key({"consume": ["billing"], "produce": ["other*"]})
    assert (
        f"lacks the right {words}"
        in problem(weak.call(method, path, body), 403, "forbidden")["detail"]
    )


def test_a_limited_admin_cannot_make_a_key_that_may_more_than_itself(
    broker: Broker,
) -> None:
    lead = broker.as_key({"admin": ["team-*"]})
    found = problem(
        lead.call("POST", "/keys", {"name": "team-root", "rights": {"admin": ["*"]}}),
        403,
        "forbidden",
    )
    assert "may not give the right admin on *" in found["detail"]
    problem(broker.call("GET", "/keys/team-root"), 404, "key_not_found")
    lead.ok("POST", "/keys", {"name": "team-sender", "rights": {"produce": ["team-*"]}})


def test_a_right_on_a_pattern_is_enough(broker: Broker, topic: str) -> None:
    broker.as_key({"produce": ["ord*"]}).ok("POST", f"/topics/{topic}/messages", MESSAGES)


def test_joining_needs_consume_on_the_group(broker: Broker, topic: str) -> None:
    weak = broker.as_key({"consume": ["billing"]})
    body = {
        "name": "c",
        "incarnation": "01890a5d-ac96-774b-bcce-b302099a8057",
        "topics": [topic],
    }
    found = problem(weak.call("POST", "/groups/other/consumers", body), 403, "forbidden")
    assert "consume on group other" in found["detail"]
    found = problem(weak.call("POST", "/groups/billing/consumers", body), 403, "forbidden")
    assert "manage on group billing" in found["detail"]


def test_lists_show_only_what_the_key_may_use(broker: Broker, topic: str) -> None:
    broker.ok("POST", "/topics", {"name": "payments", "queues": 1})
    weak = broker.as_key({"produce": ["pay*"]})
    assert [found["name"] for found in weak.ok("GET", "/topics")["topics"]] == ["payments"]
    assert weak.ok("GET", "/keys")["keys"] == []


def test_a_key_is_created_listed_limited_and_revoked_by_command(
    broker: Broker, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    transport = HttpTransport(broker.url, api_key=broker.api_key)

    def catmq(*words: str) -> str:
        assert main(["key", *words], transport=transport) == 0
        return capsys.readouterr().out

    rights = ("--right", "produce=orders*", "--right", "produce=logs, mails")
    plaintext = catmq("create", "shop", *rights, "--messages", "50")
    # The key stands alone on its line, so that a script can capture it.
    assert plaintext.startswith("catmq_") and plaintext.count("\n") == 1
    snapshot.refresh()
    shop = Broker(broker.url, plaintext.strip())
    shop.ok("POST", f"/topics/{topic}/messages", MESSAGES)

    shown = catmq("show", "shop").splitlines()
    assert [line.split(maxsplit=1)[-1] for line in shown[:4]] == [
        "shop",
        "produce=orders*,logs,mails",
        "50",
        "no limit",
    ]
    rows = catmq("list", "--search", "sho").splitlines()
    assert [row.split()[:2] for row in rows] == [
        ["NAME", "RIGHTS"],
        ["shop", "produce=orders*,logs,mails"],
    ]
    assert plaintext.strip() not in catmq("list", "--output", "json")

    catmq("revoke", "shop", "--yes")
    snapshot.refresh()
    problem(shop.call("GET", "/topics"), 401, "unauthenticated")
    created = json.loads(
        catmq("create", "audit", "--right", "browse=*", "--output", "json")
    )
    assert created["rights"] == {"browse": ["*"]} and created["api_key"] != plaintext


@pytest.mark.parametrize("right", ["produce", "=orders", "produce=", "produce=,"])
def test_a_right_without_a_name_pattern_is_refused(
    broker: Broker, right: str, capsys: pytest.CaptureFixture[str]
) -> None:
    transport = HttpTransport(broker.url, api_key=broker.api_key)
    with pytest.raises(SystemExit, match="2"):
        main(["key", "create", "shop", "--right", right], transport=transport)
    assert "give RIGHT=PATTERN[,PATTERN]" in capsys.readouterr().err
