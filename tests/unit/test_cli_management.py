"""Topics, groups, subscriptions, positions and nodes: what the commands ask, print and end
with.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from catmq_client.cli import main, stop
from catmq_client.cli.stop import Stopped
from catmq_client.errors import (
    Conflict,
    ConnectFailed,
    FieldError,
    InvalidRequest,
    NotFound,
    Unauthenticated,
)
from tests.support.canned import Canned

TOPIC: dict[str, Any] = {
    "name": "orders",
    "kind": "normal",
    "state": "ready",
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
    "layout": {"version": 1, "slots": [7, 8] * 512},
    "keyed": "strict",
    "on_unknown": "fail",
    "retention_days": 7,
    "keep_unread_days": 30,
    "retention_bytes": None,
    "owners": "",
    "department": "",
    "alarm_emails": "",
    "description": "",
    "created_at_ms": 1_772_366_400_000,
}
MEMBER = {
    "name": "c1",
    "instance_id": None,
    "address": "10.0.0.1",
    "sdk": "py",
    "joined_at_ms": 1_772_366_400_000,
    "heartbeat_age_ms": 900,
    "queues": [7, 8],
}
GROUP: dict[str, Any] = {
    "name": "billing",
    "mode": "clustering",
    "stopped": False,
    "session_timeout_ms": 15_000,
    "generation": 3,
    "subscriptions": [
        {
            "group": "billing",
            "topic": "orders",
            "state": "ready",
            "start": "earliest",
            "stopped": False,
        }
    ],
    "members": [],
    "created_at_ms": 1_772_366_400_000,
}
MOVE: dict[str, Any] = {"queue": 7, "number": 0, "from": 12, "to": 2, "repeated": 10}
MOVES: dict[str, Any] = {"dry_run": False, "reset": "r1", "moves": [MOVE]}


def test_topic_create_sends_only_what_was_given() -> None:
    canned = Canned({"POST topics": TOPIC})
    assert main(["topic", "create", "orders", "--queues", "2"], transport=canned) == 0
    assert canned.requests[0].body == {"name": "orders", "queues": 2}


def test_topic_create_passes_every_setting() -> None:
    canned = Canned({"POST topics": TOPIC})
    main(
        [
            "topic",
            "create",
            "orders",
            "--node",
            "main",
            "--retention-days",
            "3",
            "--keyed",
            "available",
        ],
        transport=canned,
    )
    assert canned.requests[0].body == {
        "name": "orders",
        "queues": 4,
        "node": "main",
        "retention_days": 3,
        "keyed": "available",
    }


def test_lists_follow_all_pages(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = ({**TOPIC, "name": name, "queues": 2} for name in ("a", "b"))
    canned = Canned(
        {
            "GET topics": [
                {"topics": [first], "next": "a"},
                {"topics": [second], "next": None},
            ]
        }
    )
    assert main(["topic", "list", "--output", "json"], transport=canned) == 0
    assert [json.loads(line)["name"] for line in capsys.readouterr().out.splitlines()] == [
        "a",
        "b",
    ]
    assert canned.requests[1].params == {"limit": 1000, "after": "a"}


def test_topic_list_is_a_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    canned = Canned({"GET topics": {"topics": [{**TOPIC, "queues": 2}], "next": None}})
    assert main(["topic", "list", "--search", "ord"], transport=canned) == 0
    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split() == [
        "NAME",
        "KIND",
        "STATE",
        "QUEUES",
        "KEYED",
        "DAYS",
        "CREATED",
    ]
    assert row.split() == [
        "orders",
        "normal",
        "ready",
        "2",
        "strict",
        "7",
        "2026-03-01",
        "12:00:00Z",
    ]
    assert canned.requests[0].params == {"limit": 1000, "search": "ord"}


def test_topic_show_has_a_line_for_a_queue_whose_node_is_down(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        main(["topic", "show", "orders"], transport=Canned({"GET topics/orders": TOPIC}))
        == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].split() == ["7", "0", "main", "read_write", "2", "12", "10"]
    assert lines[-1].split() == ["8", "1", "far", "read_write", "-", "-", "-"]


def test_topic_show_as_json_is_the_answer_itself(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(
        ["topic", "show", "orders", "--output", "json"],
        transport=Canned({"GET topics/orders": TOPIC}),
    )
    assert json.loads(capsys.readouterr().out) == TOPIC


def test_topic_delete_confirms_with_the_name() -> None:
    canned = Canned({"DELETE topics/orders": {}})
    assert main(["topic", "delete", "orders", "--yes"], transport=canned) == 0
    assert canned.requests[0].params == {"confirm": "orders"}


@pytest.mark.parametrize(
    ("typed", "code", "asked"), [("orders\n", 0, 1), ("order\n", 1, 0), ("", 1, 0)]
)
def test_at_a_terminal_the_name_is_typed_before_a_delete(
    monkeypatch: pytest.MonkeyPatch, typed: str, code: int, asked: int
) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            return typed

    monkeypatch.setattr("sys.stdin", Terminal())
    canned = Canned({"DELETE topics/orders": {}})
    assert main(["topic", "delete", "orders"], transport=canned) == code
    assert len(canned.requests) == asked


def test_wrong_fields_are_printed_one_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    refusal = InvalidRequest(
        "the topic cannot be made",
        errors=[FieldError("name", "x_fail: choose another")],
        status=400,
    )
    assert (
        main(["topic", "create", "x_fail"], transport=Canned({"POST topics": refusal})) == 1
    )
    assert "  name: x_fail: choose another" in capsys.readouterr().err


def test_a_wrong_field_that_the_detail_tells_already_is_told_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    refusal = InvalidRequest(
        "name: taken", errors=[FieldError("name", "taken")], status=400
    )
    assert main(["topic", "create", "x"], transport=Canned({"POST topics": refusal})) == 1
    assert capsys.readouterr().err == "catmq: name: taken\n"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (Unauthenticated("no API key", status=401), ("CATMQ_API_KEY", 5)),
        (ConnectFailed("http://test cannot be reached"), ("Is a broker running there?", 6)),
        (NotFound("HTTP 404", status=404), ("is http://test a CatMQ broker?", 4)),
    ],
)
def test_errors_that_the_caller_can_mend_say_how(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    told: tuple[str, int],
) -> None:
    monkeypatch.delenv("CATMQ_URL", raising=False)
    assert main(["nodes"], transport=Canned({"GET nodes": error})) == told[1]
    assert told[0] in capsys.readouterr().err


def test_group_create_sends_only_what_was_given() -> None:
    canned = Canned({"POST groups": GROUP})
    assert (
        main(
            ["group", "create", "billing", "--session-timeout-ms", "5000"], transport=canned
        )
        == 0
    )
    assert canned.requests[0].body == {"name": "billing", "session_timeout_ms": 5000}


def test_group_show_lists_subscriptions_and_members(
    capsys: pytest.CaptureFixture[str],
) -> None:
    canned = Canned({"GET groups/billing": {**GROUP, "members": [MEMBER]}})
    assert main(["group", "show", "billing"], transport=canned) == 0
    out = capsys.readouterr().out
    assert "orders ready earliest no" in " ".join(out.split())
    assert out.endswith("7 8\n")


def test_group_list_delete_pause_and_resume() -> None:
    canned = Canned(
        {
            "GET groups": {"groups": [GROUP], "next": None},
            "DELETE groups/billing": {},
            "PATCH groups/billing": GROUP,
        }
    )
    for verb in (
        ["list"],
        ["list", "--output", "json"],
        ["pause", "billing"],
        ["resume", "billing"],
    ):
        assert main(["group", *verb], transport=canned) == 0
    assert main(["group", "delete", "billing", "--yes"], transport=canned) == 0
    assert [request.body for request in canned.requests[2:4]] == [
        {"stopped": True},
        {"stopped": False},
    ]
    assert canned.requests[4].params == {"confirm": "billing"}


def test_subscribe_begins_at_earliest_unless_told_otherwise() -> None:
    canned = Canned({"POST groups/billing/subscriptions": GROUP["subscriptions"][0]})
    assert main(["subscribe", "billing", "orders"], transport=canned) == 0
    assert (
        main(["subscribe", "billing", "orders", "--from", "latest"], transport=canned) == 0
    )
    assert [request.body for request in canned.requests] == [
        {"topic": "orders", "start": "earliest"},
        {"topic": "orders", "start": "latest"},
    ]


def test_subscribe_begins_at_a_time_and_names_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    answer = {
        **GROUP["subscriptions"][0],
        "start": "earliest",
        "start_at_ms": 1_772_366_400_000,
    }
    canned = Canned({"POST groups/billing/subscriptions": answer})
    for text in ("2026-03-01T12:00Z", "-2h"):
        assert (
            main(["subscribe", "billing", "orders", "--from", text], transport=canned) == 0
        )
    assert [request.body for request in canned.requests] == [
        {"topic": "orders", "start": "earliest", "start_at_ms": 1_772_366_400_000},
        {"topic": "orders", "start": "earliest", "start_ago_ms": 7_200_000},
    ]
    assert "from 2026-03-01 12:00:00Z" in capsys.readouterr().err


def test_unsubscribe_deletes_the_subscription() -> None:
    assert (
        main(
            ["unsubscribe", "g", "t", "--yes"],
            transport=Canned({"DELETE groups/g/subscriptions/t": {}}),
        )
        == 0
    )


LAG: dict[str, Any] = {
    "group": "billing",
    "lag": 10,
    "lag_ms": 61_000,
    "queues": [
        {
            "topic": "orders",
            "queue": 7,
            "number": 0,
            "committed": 2,
            "head": 12,
            "low": 0,
            "lag": 10,
            "lag_ms": 61_000,
            "owner": "c1",
            "epoch": 1,
        }
    ],
}


def test_lag_has_a_line_for_each_queue_and_a_sum(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        main(["lag", "billing"], transport=Canned({"GET groups/billing/offsets": LAG})) == 0
    )
    printed = capsys.readouterr()
    assert printed.out.splitlines()[1].split() == [
        "orders",
        "7",
        "2",
        "12",
        "10",
        "1m01s",
        "c1",
    ]
    assert printed.err == "billing: 10 messages unread, the oldest 1m01s old\n"


def test_lag_is_shown_again_and_again_until_it_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def rest(seconds: float) -> None:
        if len(canned.requests) == 3:
            raise Stopped

    canned = Canned({"GET groups/billing/offsets": LAG})
    monkeypatch.setattr(stop.time, "sleep", rest)
    assert main(["lag", "billing", "--watch"], transport=canned) == 0
    assert capsys.readouterr().out.count("orders") == 3


def test_without_a_command_the_help_is_shown_with_examples(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert "COMMAND" in shown and shown.count("\n  catmq ") == 5


PROGRESS = {
    "state": "catches_up", "per_s": 10.0, "catches_up_in_s": 720.0, "sent_per_s": 5.0,
    "pulled_per_s": 30.0,
    "handled_per_s": None, "lag": 7200, "lag_before": 13_200, "between_s": 600.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, "catches up in 12m00s; a second: 5.0 sent, 30.0 pulled, unknown handled"),
        (
            {"handled_per_s": 15.0},
            "catches up in 12m00s; a second: 5.0 sent, 30.0 pulled, 15.0 handled",
        ),
        (
            {"state": "falls_behind"},
            "falls behind by 10.0 a second; a second: 5.0 sent, 30.0 pulled, unknown handled",
        ),
        (
            {"state": "too_little_data"},
            "too little data; a second: 5.0 sent, 30.0 pulled, unknown handled",
        ),
    ],
)
def test_lag_says_whether_the_group_catches_up(
    change: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = {**LAG, "progress": {**PROGRESS, **change}}
    assert (
        main(["lag", "billing"], transport=Canned({"GET groups/billing/offsets": answer}))
        == 0
    )
    assert capsys.readouterr().err.splitlines()[-1] == f"billing: {said}"


def test_lag_as_json_is_one_object_for_each_queue(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(
        ["lag", "billing", "--output", "json"],
        transport=Canned({"GET groups/billing/offsets": LAG}),
    )
    assert json.loads(capsys.readouterr().out) == {"group": "billing", **LAG["queues"][0]}


def test_a_reset_moves_a_group_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    canned = Canned({"PATCH groups/billing/offsets": MOVES})
    assert (
        main(["offsets", "reset", "billing", "orders", "--to", "-15m"], transport=canned)
        == 0
    )
    assert [request.body for request in canned.requests] == [
        {"topic": "orders", "to": "time", "dry_run": False, "ago_ms": 900_000}
    ]
    printed = capsys.readouterr()
    assert printed.out.splitlines()[1].split() == ["7", "12", "2", "-10", "10", "repeated"]
    assert printed.err == "1 queues set; undo: catmq offsets undo billing r1\n"


def test_a_reset_says_where_it_could_not_go_all_the_way(
    capsys: pytest.CaptureFixture[str],
) -> None:
    moves = {
        **MOVES,
        "moves": [{**MOVE, "to": 20, "repeated": 0, "skipped": 8, "asked": 99}],
    }
    canned = Canned({"PATCH groups/billing/offsets": moves})
    assert main(["offsets", "reset", "billing", "--to", "99"], transport=canned) == 0
    assert canned.requests[-1].body == {"to": "offset", "dry_run": False, "offset": 99}
    assert "queue 7: 99 requested, the nearest possible is 20" in capsys.readouterr().err


def test_a_reset_to_another_group_names_the_queues_that_stay(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stays = {**MOVE, "queue": 8, "to": MOVE["from"], "repeated": 0, "kept": True}
    canned = Canned({"PATCH groups/billing/offsets": {**MOVES, "moves": [MOVE, stays]}})
    assert (
        main(
            ["offsets", "reset", "billing", "orders", "--to", "group:shipping"],
            transport=canned,
        )
        == 0
    )
    assert canned.requests[-1].body == {
        "topic": "orders", "to": "group", "dry_run": False, "source_group": "shipping"
    }  # fmt: skip
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "not moved, as the other group has no offset there: queue 8"
    assert said[1].startswith("1 queues set")


def test_a_reset_that_is_to_stop_the_group_starts_it_again_also_when_it_fails() -> None:
    refusal = NotFound("no subscription", code="subscription_not_found", status=404)
    canned = Canned(
        {
            "GET groups/billing": GROUP,
            "PATCH groups/billing": GROUP,
            "PATCH groups/billing/offsets": refusal,
        }
    )
    argv = ["offsets", "reset", "billing", "orders", "--to", "earliest", "--stop"]
    assert main(argv, transport=canned) == 4
    assert [
        request.body
        for request in canned.requests
        if request.line == "PATCH groups/billing"
    ] == [
        {"stopped": True},
        {"stopped": False},
    ]


def test_a_reset_leaves_a_stopped_group_stopped() -> None:
    canned = Canned(
        {
            "GET groups/billing": {**GROUP, "stopped": True},
            "PATCH groups/billing/offsets": MOVES,
        }
    )
    argv = ["offsets", "reset", "billing", "orders", "--to", "3", "--queue", "7", "--stop"]
    assert main(argv, transport=canned) == 0
    assert canned.requests[-1].body == {
        "topic": "orders",
        "to": "offset",
        "dry_run": False,
        "queues": [7],
        "offset": 3,
    }


def test_a_reset_is_undone_by_its_name() -> None:
    canned = Canned({"POST groups/billing/offsets/undo": MOVES})
    assert main(["offsets", "undo", "billing", "r1", "--dry-run"], transport=canned) == 0
    assert canned.requests[-1].body == {"reset": "r1", "dry_run": True}


def test_former_moves_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    row = {
        "reset": "r1",
        "at_ms": 0,
        "actor": "key k",
        "topic": "orders",
        "queue": 7,
        "from": 1,
        "to": 2,
    }
    answer = {"moves": [{**row, "undoes": None}], "next": None}
    assert (
        main(
            ["offsets", "history", "billing"],
            transport=Canned({"GET groups/billing/offsets/moves": answer}),
        )
        == 0
    )
    assert "1970-01-01 00:00:00Z  key k  orders" in capsys.readouterr().out


def test_a_dry_run_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    canned = Canned(
        {
            "GET groups/billing": GROUP,
            "PATCH groups/billing/offsets": {**MOVES, "dry_run": True, "reset": None},
        }
    )
    argv = [
        "offsets",
        "reset",
        "billing",
        "orders",
        "--to",
        "earliest",
        "--dry-run",
        "--output",
        "json",
    ]
    assert main(argv, transport=canned) == 0
    assert json.loads(capsys.readouterr().out) == {
        "group": "billing",
        "topic": "orders",
        "dry_run": True,
        "queue": 7,
        "number": 0,
        "from": 12,
        "to": 2,
        "repeated": 10,
    }
    assert canned.requests[-1].body == {
        "topic": "orders",
        "to": "earliest",
        "dry_run": True,
    }


def test_nodes_show_where_each_database_is(capsys: pytest.CaptureFixture[str]) -> None:
    node = {
        "kind": "normal",
        "state": "read_write",
        "dedicated": False,
        "epoch": 1,
        "queues": 4,
        "database": "catmq",
    }
    here = {**node, "name": "main", "engine": "sqlite", "host": None, "port": None}
    there = {**node, "name": "n1", "engine": "mysql", "host": "db", "port": 3306}
    answer = {"nodes": [here, there], "next": None}
    canned = Canned({"GET nodes": answer})
    assert main(["nodes"], transport=canned) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[-1] == "catmq"
    assert lines[2].split()[-1] == "db:3306/catmq"


def test_a_conflict_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    conflict = Conflict("topic orders exists already", code="already_exists", status=409)
    assert (
        main(["topic", "create", "orders"], transport=Canned({"POST topics": conflict}))
        == 1
    )
    assert "topic orders exists already" in capsys.readouterr().err
