"""catmq topic set: what is asked, printed, ended with."""

from __future__ import annotations

from typing import Any

import pytest

from catmq_client.cli import main
from catmq_client.errors import Forbidden
from tests.support.canned import Canned

ROW: dict[str, Any] = {"name": "orders", "kind": "normal", "state": "ready", "queues": 4}


@pytest.mark.parametrize(
    ("argv", "body"),
    [
        (["--retention-days", "2"], {"retention_days": 2}),
        (
            ["--keep-unread-days", "0", "--description", ""],
            {"keep_unread_days": 0, "description": ""},
        ),
        (["--retention-bytes", "20GB"], {"retention_bytes": 20 << 30}),
        (["--retention-bytes", "1048576"], {"retention_bytes": 1 << 20}),
        (["--retention-bytes", "none"], {"retention_bytes": None}),
        (
            ["--keyed", "available", "--on-unknown", "resend"],
            {"keyed": "available", "on_unknown": "resend"},
        ),
    ],
)
def test_set_sends_what_was_given_and_nothing_else(
    argv: list[str], body: dict[str, Any]
) -> None:
    canned = Canned({"PATCH topics/orders": ROW})
    assert main(["topic", "set", "orders", *argv], transport=canned) == 0
    assert canned.requests[0].body == body


def test_set_tells_what_it_changed(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["topic", "set", "orders", "--retention-days", "2", "--retention-bytes", "none"]
    assert main(argv, transport=Canned({"PATCH topics/orders": ROW})) == 0
    assert "topic orders: retention_days=2, retention_bytes=none" in capsys.readouterr().err


def test_set_without_a_setting_says_which_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["topic", "set", "orders"], transport=Canned({})) == 2
    assert (
        "nothing to set: give --retention-days, --keep-unread-days"
        in capsys.readouterr().err
    )


def test_a_size_that_is_none_says_which_would_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["topic", "set", "orders", "--retention-bytes", "1KB"])
    wanted = (
        "'1KB': give bytes or a size like 500MB or 1.5GB, from 1MB to 1048576TB, or none"
    )
    assert wanted in capsys.readouterr().err


def test_set_shows_what_the_broker_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    canned = Canned(
        {
            "PATCH topics/orders": Forbidden(
                "the key lacks manage on topic orders", status=403
            )
        }
    )
    assert main(["topic", "set", "orders", "--retention-days", "1"], transport=canned) == 5
    assert "lacks manage" in capsys.readouterr().err


def test_sql_shows_a_statement_for_each_node_and_no_account(
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = {
        "engine": "mysql",
        "host": "db1",
        "port": 3306,
        "database": "n1",
        "password": "secret",
    }
    queues = [{"queue": 7, "number": 0, "node": "n1", "table": "message_7"}]
    plan = {"topic": "orders", "queues": queues, "nodes": [{"name": "n1", **place}]}
    canned = Canned({"GET topics/orders/read-plan": plan})
    assert (
        main(["topic", "sql", "orders", "--key", "it's", "--last", "2"], transport=canned)
        == 0
    )
    shown = capsys.readouterr().out
    assert "-- node n1: db1:3306, database n1" in shown and "secret" not in shown
    assert (
        "FROM message_7 AS m" in shown
        and "m.msg_key = 'it''s'" in shown
        and "LIMIT 2" in shown
    )


def test_producers_lists_who_sent(capsys: pytest.CaptureFixture[str]) -> None:
    row = {
        "name": "shop",
        "address": "10.0.0.5",
        "sdk": "pmq-java/5.5.1",
        "first_seen_at_ms": 1_772_366_400_000,
        "last_seen_at_ms": 1_772_366_401_000,
        "messages_last_hour": 1200,
    }
    canned = Canned({"GET topics/orders/producers": {"producers": [row]}})

    assert main(["topic", "producers", "orders"], transport=canned) == 0

    head, line = [" ".join(one.split()) for one in capsys.readouterr().out.splitlines()]
    assert head == "PRODUCER ADDRESS SDK LAST HOUR LAST MESSAGE FIRST MESSAGE"
    assert line.startswith("shop 10.0.0.5 pmq-java/5.5.1 1200 2026-03-01 12:00:01Z")
