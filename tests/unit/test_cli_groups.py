"""catmq group set, pause, resume, rebalance, rebalances, and what show says: asked,
printed, ended with.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from catmq_client.cli import main
from catmq_client.errors import FieldError, InvalidRequest, NotFound
from tests.support.canned import Canned

SUBSCRIPTION: dict[str, Any] = {
    "group": "billing",
    "topic": "orders",
    "state": "ready",
    "start": "earliest",
    "stopped": False,
    "stopped_queues": [8],
}
GROUP: dict[str, Any] = {
    "name": "billing",
    "mode": "broadcasting",
    "stopped": False,
    "session_timeout_ms": 15_000,
    "allow_addresses": "10.0.0.0/8, 192.168.0.1",
    "deny_addresses": "10.9.0.0/16",
    "max_active_members": 1,
    "generation": 3,
    "description": "invoices",
    "subscriptions": [SUBSCRIPTION],
    "members": [
        {
            "name": name,
            "instance_id": None,
            "address": "10.0.0.1",
            "sdk": "py",
            "joined_at_ms": 1_772_366_400_000,
            "heartbeat_age_ms": 900,
            "queues": queues,
            "active": bool(queues),
        }
        for name, queues in (("c1", [7, 8]), ("c2", []))
    ],
    "created_at_ms": 1_772_366_400_000,
}
OFFSETS = {
    "group": "billing",
    "lag": 0,
    "lag_ms": None,
    "queues": [
        {"topic": t, "queue": q} for t, q in (("orders", 7), ("orders", 8), ("refunds", 9))
    ],
}


def shown(canned: Canned, capsys: pytest.CaptureFixture[str], *argv: str) -> list[str]:
    """The lines that a command prints, blanks joined."""
    assert main([*argv], transport=canned) == 0
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_show_tells_mode_limits_stopped_queues_and_who_stands_by(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = shown(Canned({"GET groups/billing": GROUP}), capsys, "group", "show", "billing")
    for line in (
        "mode broadcasting",
        "allowed addresses 10.0.0.0/8, 192.168.0.1",
        "denied addresses 10.9.0.0/16",
        "active members at most 1",
        "description invoices",
        "TOPIC STATE FROM STOPPED STOPPED QUEUES",
        "orders ready earliest no 8",
        "MEMBER ADDRESS SDK JOINED LAST HEARD ACTIVE QUEUES",
        "c1 10.0.0.1 py 2026-03-01 12:00:00Z 0.9s yes 7 8",
        "c2 10.0.0.1 py 2026-03-01 12:00:00Z 0.9s no -",
    ):
        assert line in lines


def test_members_tells_what_the_process_of_a_member_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    process = {
        "threads": 8,
        "busy": 3,
        "buffered": 40,
        "buffered_bytes": 900,
        "handled": 70,
        "failed": 2,
    }
    slowest = {"queue": 7, "offset": 12, "running_ms": 4_000}
    first, second = GROUP["members"]
    told = {**first, "process": {**process, "slowest": slowest}, "process_age_ms": 1_500}
    group = {
        **GROUP,
        "members": [told, {**second, "process": None, "process_age_ms": None}],
    }

    lines = shown(
        Canned({"GET groups/billing": group}), capsys, "group", "members", "billing"
    )

    assert lines[-2:] == [
        "MEMBER THREADS BUFFERED BUFFERED BYTES HANDLED FAILED SLOWEST HANDLER REPORTED",
        "c1 3 of 8 40 900 70 2 7-12 for 4.0s 1.5s",
    ]


def test_members_of_a_broker_that_knows_no_reports_are_a_table_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = shown(
        Canned({"GET groups/billing": GROUP}), capsys, "group", "members", "billing"
    )

    assert len(lines) == 3


def test_show_of_a_group_without_limits_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    free = {
        **GROUP,
        "allow_addresses": "",
        "deny_addresses": "",
        "max_active_members": None,
    }
    lines = shown(Canned({"GET groups/billing": free}), capsys, "group", "show", "billing")
    assert {"allowed addresses all", "denied addresses -", "active members all"} <= set(
        lines
    )


def test_show_understands_a_broker_that_knows_no_limits(
    capsys: pytest.CaptureFixture[str],
) -> None:
    new = ("allow_addresses", "deny_addresses", "max_active_members", "description")
    old = {name: value for name, value in GROUP.items() if name not in new}
    old["subscriptions"] = [
        {n: v for n, v in SUBSCRIPTION.items() if n != "stopped_queues"}
    ]
    old["members"] = [
        {n: v for n, v in member.items() if n != "active"} for member in GROUP["members"]
    ]
    lines = shown(Canned({"GET groups/billing": old}), capsys, "group", "show", "billing")
    assert "orders ready earliest no -" in lines
    assert "c1 10.0.0.1 py 2026-03-01 12:00:00Z 0.9s - 7 8" in lines


@pytest.mark.parametrize(
    ("argv", "body"),
    [
        (["--allow", "10.0.0.0/8"], {"allow_addresses": "10.0.0.0/8"}),
        (["--allow", "", "--deny", ""], {"allow_addresses": "", "deny_addresses": ""}),
        (["--max-active", "3"], {"max_active_members": 3}),
        (["--max-active", "none"], {"max_active_members": None}),
        (
            ["--session-timeout-ms", "5000", "--description", ""],
            {"session_timeout_ms": 5000, "description": ""},
        ),
    ],
)
def test_set_sends_what_was_given_and_nothing_else(
    argv: list[str], body: dict[str, Any]
) -> None:
    canned = Canned({"PATCH groups/billing": GROUP})
    assert main(["group", "set", "billing", *argv], transport=canned) == 0
    assert canned.requests[0].body == body


def test_set_without_a_setting_says_which_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["group", "set", "billing"], transport=Canned({})) == 2
    assert "nothing to set: give --session-timeout, --alarm-lag" in capsys.readouterr().err


def test_set_shows_what_the_broker_finds_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    refusal = InvalidRequest(
        "not changed",
        errors=[FieldError("allow_addresses", "'10.0.0': write an address")],
        status=400,
    )
    canned = Canned({"PATCH groups/billing": refusal})
    assert main(["group", "set", "billing", "--allow", "10.0.0"], transport=canned) == 1
    assert "  allow_addresses: '10.0.0': write an address" in capsys.readouterr().err


@pytest.mark.parametrize(("verb", "stopped"), [("pause", True), ("resume", False)])
def test_a_topic_is_stopped_and_started_for_a_group(verb: str, stopped: bool) -> None:
    canned = Canned({"PATCH groups/billing/subscriptions/orders": SUBSCRIPTION})
    assert main(["group", verb, "billing", "--topic", "orders"], transport=canned) == 0
    assert canned.requests[0].body == {"stopped": stopped}


@pytest.mark.parametrize(
    ("argv", "body"),
    [
        (
            ["pause", "billing", "--queue", "7", "--queue", "9"],
            {"stopped_queues": [7, 8, 9]},
        ),
        (["resume", "billing", "--queue", "8"], {"stopped_queues": []}),
        (["resume", "billing", "--queue", "8", "--queue", "7"], {"stopped_queues": []}),
    ],
)
def test_queues_are_added_to_the_stopped_ones_or_taken_from_them(
    argv: list[str], body: dict[str, Any]
) -> None:
    path = "groups/billing/subscriptions/orders"
    canned = Canned({f"GET {path}": SUBSCRIPTION, f"PATCH {path}": SUBSCRIPTION})
    assert main(["group", *argv, "--topic", "orders"], transport=canned) == 0
    assert [(r.line, r.body) for r in canned.requests] == [
        (f"GET {path}", None),
        (f"PATCH {path}", body),
    ]


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["pause", "billing", "--queue", "8"], "queue 8 of orders was already paused"),
        (["resume", "billing", "--queue", "7"], "queue 7 of orders was not paused"),
    ],
)
def test_a_queue_that_is_as_wanted_is_told_and_nothing_changed(
    argv: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    canned = Canned({"GET groups/billing/subscriptions/orders": SUBSCRIPTION})
    assert main(["group", *argv, "--topic", "orders"], transport=canned) == 0
    assert told in capsys.readouterr().err


def test_queues_without_a_topic_are_found_among_those_that_the_group_reads() -> None:
    canned = Canned(
        {
            "GET groups/billing/offsets": OFFSETS,
            "GET groups/billing/subscriptions/orders": SUBSCRIPTION,
            "PATCH groups/billing/subscriptions/orders": SUBSCRIPTION,
            "GET groups/billing/subscriptions/refunds": {
                **SUBSCRIPTION,
                "stopped_queues": [],
            },
            "PATCH groups/billing/subscriptions/refunds": SUBSCRIPTION,
        }
    )
    assert (
        main(
            ["group", "pause", "billing", "--queue", "9", "--queue", "7"], transport=canned
        )
        == 0
    )
    changes = {r.line: r.body for r in canned.requests if r.line.startswith("PATCH")}
    assert changes == {
        "PATCH groups/billing/subscriptions/orders": {"stopped_queues": [7, 8]},
        "PATCH groups/billing/subscriptions/refunds": {"stopped_queues": [9]},
    }


def test_a_queue_that_the_group_does_not_read_changes_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    canned = Canned({"GET groups/billing/offsets": OFFSETS})
    assert (
        main(
            ["group", "pause", "billing", "--queue", "7", "--queue", "99"], transport=canned
        )
        == 4
    )
    assert (
        "queue 99 is not read by group billing; it reads 7, 8, 9" in capsys.readouterr().err
    )
    assert len(canned.requests) == 1


def test_starting_a_queue_of_a_stopped_topic_says_that_it_does_not_suffice(
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = "groups/billing/subscriptions/orders"
    canned = Canned(
        {f"GET {path}": {**SUBSCRIPTION, "stopped": True}, f"PATCH {path}": SUBSCRIPTION}
    )
    argv = ["group", "resume", "billing", "--topic", "orders", "--queue", "8"]
    assert main(argv, transport=canned) == 0
    assert "catmq group resume billing --topic orders" in capsys.readouterr().err


PLAN: dict[str, Any] = {
    "dry_run": True,
    "generation": 4,
    "moves": [
        {"queue": 7, "topic": "orders", "from": "c1", "to": "c2", "at_once": False},
        {"queue": 9, "topic": "refunds", "from": None, "to": "c2", "at_once": True},
    ],
}


def test_a_plan_shows_each_move(capsys: pytest.CaptureFixture[str]) -> None:
    canned = Canned({"POST groups/billing/rebalance": PLAN})
    assert main(["group", "rebalance", "billing", "--dry-run"], transport=canned) == 0
    printed = capsys.readouterr()
    assert [line.split() for line in printed.out.splitlines()] == [
        ["TOPIC", "QUEUE", "FROM", "TO", "AT", "ONCE"],
        ["orders", "7", "c1", "c2", "no"],
        ["refunds", "9", "-", "c2", "yes"],
    ]
    assert printed.err == "nothing moved (--dry-run)\n"
    assert canned.requests[0].body == {"dry_run": True}


def test_a_rebalance_says_how_many_queues_move(capsys: pytest.CaptureFixture[str]) -> None:
    canned = Canned({"POST groups/billing/rebalance": {**PLAN, "dry_run": False}})
    assert main(["group", "rebalance", "billing"], transport=canned) == 0
    assert capsys.readouterr().err == "2 queues moved; generation 4\n"
    assert canned.requests[0].body == {"dry_run": False}


def test_a_plan_as_json_is_one_object_a_move(capsys: pytest.CaptureFixture[str]) -> None:
    canned = Canned({"POST groups/billing/rebalance": PLAN})
    main(
        ["group", "rebalance", "billing", "--dry-run", "--output", "json"], transport=canned
    )
    about = {"group": "billing", "dry_run": True, "generation": 4}
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert printed == [{**about, **move} for move in PLAN["moves"]]


def past(number: int, *pauses: int | None) -> dict[str, Any]:
    moves = [
        {"queue": 7, "topic": "orders", "from": "c1", "to": "c2", "pause_ms": ms}
        for ms in pauses
    ]
    return {
        "id": number,
        "generation": number,
        "cause": "c2 joined",
        "at_ms": 1_772_366_400_000,
        "assignment": {"c2": [7]},
        "moves": moves,
    }


def test_the_history_tells_when_why_how_much_and_the_longest_pause(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [past(5, 300, 1200, None), past(4, None), past(3)]
    canned = Canned({"GET groups/billing/rebalances": {"rebalances": rows, "next": None}})
    lines = shown(canned, capsys, "group", "rebalances", "billing")
    assert lines == [
        "TIME GENERATION CAUSE MOVES LONGEST PAUSE",
        "2026-03-01 12:00:00Z 5 c2 joined 3 1.2s",
        "2026-03-01 12:00:00Z 4 c2 joined 1 -",
        "2026-03-01 12:00:00Z 3 c2 joined 0 -",
    ]
    assert canned.requests[0].params == {"limit": 20}


def test_the_history_goes_over_pages_until_there_are_enough(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pages = [
        {"rebalances": [past(9), past(8)], "next": "8"},
        {"rebalances": [past(7), past(6)], "next": "6"},
    ]
    canned = Canned({"GET groups/billing/rebalances": pages})
    argv = ["group", "rebalances", "billing", "--limit", "3", "--output", "json"]
    assert main(argv, transport=canned) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert printed == [past(9), past(8), past(7)]
    assert canned.requests[1].params == {"limit": 3, "after": "8"}


def test_a_page_of_the_history_is_no_longer_than_brokers_allow() -> None:
    canned = Canned({"GET groups/billing/rebalances": {"rebalances": [], "next": None}})
    assert (
        main(["group", "rebalances", "billing", "--limit", "5000"], transport=canned) == 0
    )
    assert canned.requests[0].params == {"limit": 1000}


@pytest.mark.parametrize("verb", ["rebalance", "rebalances", "show"])
def test_an_unknown_group_is_a_failure(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = NotFound("there is no group nobody", code="group_not_found", status=404)
    lines = (
        "POST groups/nobody/rebalance",
        "GET groups/nobody/rebalances",
        "GET groups/nobody",
    )
    assert (
        main(["group", verb, "nobody"], transport=Canned(dict.fromkeys(lines, missing)))
        == 4
    )
    assert "there is no group nobody" in capsys.readouterr().err


ROW: dict[str, Any] = {
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
    "instance": None,
}


def test_lag_of_a_broadcasting_group_names_the_instance(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [{**ROW, "instance": "east"}, {**ROW, "instance": "west", "owner": None}]
    canned = Canned({"GET groups/billing/offsets": {**OFFSETS, "queues": rows}})
    assert shown(canned, capsys, "lag", "billing") == [
        "TOPIC QUEUE INSTANCE COMMITTED HEAD LAG BEHIND OWNER",
        "orders 7 east 2 12 10 1m01s c1",
        "orders 7 west 2 12 10 1m01s -",
    ]


def test_lag_of_a_clustering_group_has_no_column_for_instances(
    capsys: pytest.CaptureFixture[str],
) -> None:
    canned = Canned({"GET groups/billing/offsets": {**OFFSETS, "queues": [ROW]}})
    assert (
        shown(canned, capsys, "lag", "billing")[0]
        == "TOPIC QUEUE COMMITTED HEAD LAG BEHIND OWNER"
    )


def test_a_reset_moves_the_positions_of_one_instance(
    capsys: pytest.CaptureFixture[str],
) -> None:
    answer = {"dry_run": False, "moves": [{"queue": 7, "number": 0, "from": 12, "to": 2}]}
    stopped = {**GROUP, "stopped": True}
    canned = Canned({"GET groups/billing": stopped, "PATCH groups/billing/offsets": answer})
    argv = [
        "offsets",
        "reset",
        "billing",
        "orders",
        "--to",
        "earliest",
        "--instance",
        "east",
    ]
    assert main([*argv, "--output", "json"], transport=canned) == 0
    body = canned.requests[-1].body
    assert body == {
        "topic": "orders",
        "to": "earliest",
        "dry_run": False,
        "instance": "east",
    }
    assert json.loads(capsys.readouterr().out)["instance"] == "east"
