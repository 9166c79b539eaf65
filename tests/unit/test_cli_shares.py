"""catmq share, and share groups in consume, group and lag: asked, printed, ended with."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from catmq_client import NewMessage, Producer, ShareConsumer
from catmq_client.cli import main
from catmq_client.testing import FakeBroker
from tests.support.canned import Canned

CONSUME = ["consume", "t", "--group", "g", "--share"]
GROUP = {
    "name": "g",
    "mode": "share",
    "stopped": False,
    "session_timeout_ms": 15_000,
    "lease_ms": 60_000,
    "run_messages": 10,
    "max_deliveries": 0,
    "generation": 3,
    "subscriptions": [],
    "members": [],
    "created_at_ms": 1_772_366_400_000,
}


@pytest.fixture
def broker() -> FakeBroker:
    made = FakeBroker()
    made.create_topic("t", queues=1)
    made.subscribe("g", "t", mode="share")
    with Producer(transport=made) as producer:
        producer.send_batch("t", [NewMessage(b"%d" % n) for n in range(5)])
    return made


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_consume_shares_the_messages_and_says_how_often_each_was_leased(
    broker: FakeBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*CONSUME, "--max", "2"], transport=broker) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["body"], row["deliveries"]) for row in rows] == [("0", 1), ("1", 1)]
    assert sum(broker.committed("g").values()) == 2
    assert main([*CONSUME, "--idle-timeout", "0.3"], transport=broker) == 0
    assert sum(broker.committed("g").values()) == 5 and not broker.runs("g")
    assert main([*CONSUME, "--idle-timeout", "0.3"], transport=broker) == 3


def test_consume_share_takes_neither_a_mode_nor_an_instance(
    broker: FakeBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*CONSUME, "--mode", "clustering"], transport=broker) == 2
    assert "--share with --mode or --instance" in capsys.readouterr().err


def test_runs_lists_who_has_what_and_release_ends_a_lease(
    broker: FakeBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    with ShareConsumer(
        transport=broker, group="g", topics=["t"], name="one", auto_accept=False
    ) as consumer:
        consumer.poll(5, timeout_s=5)
        assert main(["share", "runs", "g"], transport=broker) == 0
        heading, row = lines(capsys)
        assert (
            heading == "TOPIC QUEUE FIRST END MESSAGES FINISHED DELIVERIES OWNER LEASE LEFT"
        )
        assert re.fullmatch(r"t 1 0 5 5 0 1 one (29\.\d|30\.0)s", row)
        assert main(["share", "release", "g", "1", "0"], transport=broker) == 0
        assert "group g: queue 1 offset 0: 1 leases ended" in capsys.readouterr().err
        assert main(["share", "release", "g", "1", "3"], transport=broker) == 1
        assert "no lease begins there" in capsys.readouterr().err


def test_runs_tells_which_nodes_did_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    run = {
        "topic": "t",
        "queue": 7,
        "first": 2,
        "end": 4,
        "owner": None,
        "deliveries": 2,
        "lease_left_ms": -5,
    }
    canned = Canned({"GET groups/g/share/runs": {"runs": [run], "away": ["far"]}})
    assert (
        main(["share", "runs", "g", "--queue", "7", "--limit", "9"], transport=canned) == 0
    )
    assert canned.requests[0].params == {"queue": 7, "limit": 9}
    printed = capsys.readouterr()
    assert " ".join(printed.out.splitlines()[1].split()) == "t 7 2 4 - - 2 - over"
    assert "nodes that did not answer: far" in printed.err


def test_a_share_group_is_made_with_its_lease_and_shown_with_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    canned = Canned({"POST groups": GROUP, "GET groups/g": GROUP})
    create = [
        "group",
        "create",
        "g",
        "--mode",
        "share",
        "--lease",
        "1m",
        "--max-deliveries",
        "0",
    ]
    assert main(create, transport=canned) == 0
    assert canned.requests[0].body == {
        "name": "g",
        "mode": "share",
        "lease_ms": 60_000,
        "max_deliveries": 0,
    }
    assert main(["group", "show", "g"], transport=canned) == 0
    shown = lines(capsys)
    assert {"lease 1m00s", "messages of a lease 10", "maximum deliveries no limit"} <= {
        *shown
    }


def test_lag_shows_what_is_leased(capsys: pytest.CaptureFixture[str]) -> None:
    row: dict[str, Any] = {
        "topic": "t",
        "queue": 7,
        "committed": 2,
        "head": 9,
        "lag": 5,
        "lag_ms": 1_000,
    }
    leased = {"in_flight": 3, "oldest_lease_ms": 61_000, "redelivered": 1}
    lag = {
        "group": "g",
        "lag": 5,
        "lag_ms": 1_000,
        "queues": [{**row, **leased, "owner": None}],
    }
    canned = Canned({"GET groups/g/offsets": lag})
    assert main(["lag", "g"], transport=canned) == 0
    heading, first = lines(capsys)
    assert heading.endswith("OWNER IN FLIGHT OLDEST LEASE REDELIVERED")
    assert first.endswith("- 3 1m01s 1")
