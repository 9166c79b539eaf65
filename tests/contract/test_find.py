"""Finding messages through the API and with `catmq find`."""

from __future__ import annotations

import json
from contextlib import closing

import pytest

from catmq_client import HttpTransport
from catmq_client.admin.api import Admin
from catmq_client.cli.main import main
from tests.support.broker import Broker, problem


@pytest.fixture
def sent(broker: Broker, topic: str) -> str:
    """The topic with twenty messages."""
    messages = [
        {
            "body": f"body {n}",
            "key": f"k{n}",
            "tag": "ab"[n % 2],
            "headers": {"n": str(n), "odd": str(n % 2)},
        }
        for n in range(20)
    ]
    broker.ok("POST", f"/topics/{topic}/messages", {"messages": messages})
    return topic


def test_messages_are_found_by_header(broker: Broker, sent: str) -> None:
    found = broker.ok("GET", f"/topics/{sent}/messages?header=odd:1&tag=b&contains=body 1")
    assert {one["body"] for one in found["messages"]} == {
        f"body {n}" for n in (1, 11, 13, 15, 17, 19)
    }
    assert (found["scanned"], found["next"]) == (20, None)


@pytest.mark.parametrize("wrong", ["odd", ":1"])
def test_a_header_that_is_no_name_and_value_is_refused(
    broker: Broker, sent: str, wrong: str
) -> None:
    problem(
        broker.call("GET", f"/topics/{sent}/messages?header={wrong}"),
        400,
        "invalid",
        field="header",
    )


def test_a_parameter_that_there_is_not_is_refused_by_name(
    broker: Broker, sent: str
) -> None:
    problem(
        broker.call("GET", f"/topics/{sent}/messages?regex=.*"),
        400,
        "invalid",
        field="regex",
    )


def catmq(broker: Broker, *words: str) -> int:
    return main(words, transport=HttpTransport(broker.url, api_key=broker.api_key))


def test_the_command_prints_what_it_finds_and_how_much_it_looked_at(
    broker: Broker, sent: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert catmq(broker, "find", sent, "--header", "odd=1", "--follow-up") == 0
    out, err = capsys.readouterr()
    assert sorted(json.loads(line)["body"] for line in out.splitlines()) == sorted(
        f"body {n}" for n in range(1, 20, 2)
    )
    assert err == "10 found, scanned 20 of 20\n"


def test_the_command_says_how_to_go_on_and_goes_on(
    broker: Broker, sent: str, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []
    words = ["--tag", "a", "--max", "4", "--output", "body"]
    assert catmq(broker, "find", sent, *words) == 0
    out, err = capsys.readouterr()
    while "--after" in err:
        seen += out.splitlines()
        after = err.partition("--after ")[2].partition(",")[0]
        assert catmq(broker, "find", sent, *words, "--after", after) == 0
        out, err = capsys.readouterr()
    seen += out.splitlines()
    assert sorted(seen) == sorted(f"body {n}" for n in range(0, 20, 2))


def test_the_command_wants_to_know_what_to_look_for(
    broker: Broker, sent: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert catmq(broker, "find", sent) == 2
    assert "--contains" in capsys.readouterr().err


def test_limits_are_set_and_shown_by_command(
    broker: Broker, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        catmq(broker, "quota", "topic", topic, "--messages", "20", "--output", "json") == 0
    )
    assert json.loads(capsys.readouterr().out) == {
        "name": topic,
        "max_messages_per_s": 20,
        "max_bytes_per_s": None,
    }
    assert catmq(broker, "quota", "topic", topic) == 0
    assert (
        capsys.readouterr().out
        == "topic       orders\nmessages/s  20\nbytes/s     no limit\n"
    )
    assert catmq(broker, "quota", "key", "test", "--bytes", "5000") == 0
    assert catmq(broker, "quota", "key", "test", "--none") == 0
    assert capsys.readouterr().out.endswith("bytes/s     no limit\n")


def test_a_tag_filter_is_tried_on_the_last_messages(broker: Broker, topic: str) -> None:
    messages = [{"body": "", "tag": tag} for tag in ("new", "new", "old", None)]
    broker.ok("POST", f"/topics/{topic}/messages", {"messages": messages})
    path = f"/topics/{topic}/tag-matches"
    for tags, matching in (("new", 2), ("new || old", 3), ("paid", 0), ("", 4)):
        found = broker.ok("GET", path, params={"tags": tags})
        assert found == {"looked_at": 4, "matching": matching, "away": []}
    problem(broker.call("GET", path, params={"tags": "a && b"}), 400, "invalid", "tags")
    problem(broker.call("GET", path, params={"tag": "new"}), 400, "invalid")


def test_a_header_filter_is_tried_on_the_last_messages(broker: Broker, topic: str) -> None:
    kinds = ({"region": "eu"}, {"region": "us"}, {"region": "asia"}, None)
    messages = [{"body": "", "tag": "new", "headers": headers} for headers in kinds]
    broker.ok(
        "POST",
        f"/topics/{topic}/messages",
        {"messages": [*messages, {"body": "", "headers": kinds[0]}]},
    )
    path = f"/topics/{topic}/tag-matches"
    for tags, matching in (("", 3), ("new", 2)):
        found = broker.ok(
            "GET", path, params={"headers": '{"region": ["eu", "us"]}', "tags": tags}
        )
        assert found == {"looked_at": 5, "matching": matching, "away": []}
    with closing(HttpTransport(broker.url, api_key=broker.api_key)) as transport:
        assert (
            Admin(transport).tag_matches(topic, headers={"region": ["asia"]})["matching"]
            == 1
        )
    for wrong in (
        "region=eu",
        "[]",
        "[" * 1_200,
        '{"region": ["\\ud800"]}',
        '{"region": "eu"}',
        '{"region": []}',
    ):
        problem(
            broker.call("GET", path, params={"headers": wrong}), 400, "invalid", "headers"
        )


def test_a_filter_is_tried_on_a_topic_that_exists(broker: Broker) -> None:
    problem(broker.call("GET", "/topics/nope/tag-matches"), 404, "topic_not_found")
