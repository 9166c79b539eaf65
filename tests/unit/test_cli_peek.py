"""catmq peek: messages of a topic without a group."""

from __future__ import annotations

import json
from typing import Any

import pytest

from catmq_client.cli import main
from tests.support.canned import Canned

TOPIC: dict[str, Any] = {
    "name": "orders",
    "queues": [
        {
            "queue": 7,
            "number": 0,
            "node": "main",
            "state": "read_write",
            "low": 2,
            "head": 12,
        },
        {
            "queue": 8,
            "number": 1,
            "node": "far",
            "state": "read_write",
            "low": None,
            "head": None,
        },
    ],
}


def message(offset: int, stored_at_ms: int, **more: Any) -> dict[str, Any]:
    return {
        "offset": offset,
        "message_id": f"7-{offset}",
        "key": "k",
        "tag": None,
        "headers": None,
        "body": "text",
        "trace_id": None,
        "stored_at_ms": stored_at_ms,
        "attempt": 0,
        **more,
    }


def test_peek_prints_the_shape_of_consume_in_stored_order(
    capsys: pytest.CaptureFixture[str],
) -> None:
    far = {**TOPIC["queues"][1], "low": 0, "head": 1}
    canned = Canned(
        {
            "GET topics/orders": {**TOPIC, "queues": [TOPIC["queues"][0], far]},
            "GET topics/orders/messages": [
                {
                    "messages": [message(2, 100), message(3, 300)],
                    "scanned": 2,
                    "next": None,
                },
                {
                    "messages": [message(0, 200, body_base64="/w==", body=None)],
                    "scanned": 1,
                    "next": None,
                },
            ],
        }
    )
    assert main(["peek", "orders", "--max", "2"], transport=canned) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["queue"], row["offset"]) for row in rows] == [(7, 2), (8, 0)]
    assert list(rows[0]) == [
        "topic",
        "queue",
        "offset",
        "message_id",
        "key",
        "tag",
        "headers",
        "body",
        "stored_at_ms",
        "attempt",
    ]
    assert rows[1]["body_base64"] == "/w=="
    assert "body" not in rows[1]


def test_peek_at_the_latest_reads_the_end_of_each_queue_and_leaves_out_a_node_that_is_down(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    page = {
        "messages": [message(9, 1), message(10, 2), message(11, 3)],
        "scanned": 3,
        "next": None,
    }
    canned = Canned({"GET topics/orders": TOPIC, "GET topics/orders/messages": page})
    assert (
        main(
            ["peek", "orders", "--from", "latest", "--max", "3", "--output", "body"],
            transport=canned,
        )
        == 0
    )
    assert canned.requests[1].params == {"queue": 7, "offset": 9, "limit": 3}
    printed = capsysbinary.readouterr()
    assert printed.out == b"text\ntext\ntext\n"
    assert b"queue 8 skipped: node far does not answer" in printed.err


def test_peek_at_a_foreign_queue_names_those_of_the_topic(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        main(
            ["peek", "orders", "--queue", "9"],
            transport=Canned({"GET topics/orders": TOPIC}),
        )
        == 4
    )
    assert "give one of 7, 8" in capsys.readouterr().err


def test_peek_beyond_the_head_says_that_there_is_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    canned = Canned({"GET topics/orders": TOPIC})
    assert main(["peek", "orders", "--from", "12"], transport=canned) == 0
    assert "no messages there" in capsys.readouterr().err
