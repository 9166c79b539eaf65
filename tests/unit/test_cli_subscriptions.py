"""catmq subscription set and show: what is asked, printed, ended with."""

from __future__ import annotations

from typing import Any

import pytest

from catmq_client.cli import main
from catmq_client.errors import Forbidden
from tests.support.canned import Canned

PATH = "groups/billing/subscriptions/orders"
TRIED = "topics/orders/tag-matches"
MATCHES = {"looked_at": 9, "matching": 2, "away": []}
ROW: dict[str, Any] = {
    "group": "billing",
    "topic": "orders",
    "state": "ready",
    "start": "earliest",
    "stopped": False,
    "stopped_queues": [],
    "ordered": True,
    "retries": 16,
    "retry_delays_s": [10, 30],
    "tags": "",
    "threads": None,
}


@pytest.mark.parametrize(
    ("argv", "body"),
    [
        (["--ordered", "--retries", "3"], {"ordered": True, "retries": 3}),
        (["--no-ordered"], {"ordered": False}),
        (["--retry-delays", "10s,30s,1m"], {"retry_delays_s": [10, 30, 60]}),
        (["--tags", "a || b", "--delay", "1h"], {"tags": "a || b", "delay_s": 3_600}),
        (
            [
                "--header",
                "region=eu,us",
                "--header",
                "kind=order=1",
                "--header",
                "region=asia",
            ],
            {"headers": {"region": ["eu", "us", "asia"], "kind": ["order=1"]}},
        ),
        (["--header", ""], {"headers": {}}),
        (["--handler-timeout", "500ms"], {"handler_timeout_ms": 500}),
        (
            ["--handler-timeout", "none", "--threads", "none"],
            {"handler_timeout_ms": None, "threads": None},
        ),
        (
            ["--breaker-failures", "5", "--breaker-pause", "1m"],
            {"breaker_failures": 5, "breaker_pause_s": 60},
        ),
        (
            ["--handler-batch", "50", "--max-poll-records", "9"],
            {"handler_batch": 50, "max_poll_records": 9},
        ),
        (
            ["--max-wait", "5s", "--dead-days", "7"],
            {"fetch_max_wait_ms": 5_000, "dead_days": 7},
        ),
    ],
)
def test_set_sends_what_was_given_and_nothing_else(
    argv: list[str], body: dict[str, Any]
) -> None:
    canned = Canned({f"PATCH {PATH}": ROW, f"GET {TRIED}": MATCHES})
    assert main(["subscription", "set", "billing", "orders", *argv], transport=canned) == 0
    assert canned.requests[-1].body == body


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (MATCHES, "2 of the last 9 messages would match"),
        (
            {**MATCHES, "matching": 0},
            "none of the last 9 messages would match: they are skipped",
        ),
        (
            {"looked_at": 0, "matching": 0, "away": ["n1"]},
            "no messages to test the filter with (not counted",
        ),
        (Forbidden("no right", status=403, code="forbidden"), "match the filter: no right"),
    ],
)
def test_tags_are_tried_before_they_are_set(
    answer: Any, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    canned = Canned({f"PATCH {PATH}": ROW, f"GET {TRIED}": answer})
    assert (
        main(
            ["subscription", "set", "billing", "orders", "--tags", "new"], transport=canned
        )
        == 0
    )
    assert [one.line for one in canned.requests] == [f"GET {TRIED}", f"PATCH {PATH}"]
    assert canned.requests[0].params == {"tags": "new"}
    assert said in capsys.readouterr().err


def test_headers_are_tried_together_with_the_tags(
    capsys: pytest.CaptureFixture[str],
) -> None:
    canned = Canned({f"PATCH {PATH}": ROW, f"GET {TRIED}": MATCHES})
    line = [
        "subscription",
        "set",
        "billing",
        "orders",
        "--tags",
        "new",
        "--header",
        "region=eu,us",
    ]
    assert main([*line, "--dry-run"], transport=canned) == 0
    assert canned.requests[-1].params == {
        "tags": "new",
        "headers": '{"region": ["eu", "us"]}',
    }
    assert main(line, transport=canned) == 0
    assert [one.line for one in canned.requests] == [
        f"GET {TRIED}",
        f"GET {TRIED}",
        f"PATCH {PATH}",
    ]
    assert "2 of the last 9 messages would match" in capsys.readouterr().err


def test_a_dry_run_only_tries_the_tags(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["subscription", "set", "billing", "orders", "--dry-run"]
    assert main([*line, "--tags", "new"], transport=Canned({f"GET {TRIED}": MATCHES})) == 0
    assert main([*line, "--tags", "new", "--retries", "3"], transport=Canned({})) == 2
    assert "--dry-run works only with --tags" in capsys.readouterr().err


def test_set_without_a_setting_says_which_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["subscription", "set", "billing", "orders"], transport=Canned({})) == 2
    assert (
        "nothing to set: give --tags, --header, --delay, --ordered, --retries"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--retry-delays", "10s,soon"], "'soon': give a span like 10s, 5m, 1h or 7d"),
        (
            ["--handler-timeout", "1ms"],
            "'1ms': give a span like 500ms or 30s, from 100 to 86400000 ms, or none",
        ),
        (["--delay", "400d"], "at most 365d"),
        (["--header", "region"], "'region': give NAME=VALUE or NAME=VALUE,VALUE"),
        (["--threads", "0"], "'0': give a whole number from 1 to 1000, or none"),
    ],
)
def test_a_value_that_will_not_do_says_which_would(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["subscription", "set", "billing", "orders", *argv])
    assert said in capsys.readouterr().err


def test_show_tells_the_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(
            ["subscription", "show", "billing", "orders"],
            transport=Canned({f"GET {PATH}": ROW}),
        )
        == 0
    )
    lines = capsys.readouterr().out.splitlines()
    found = {line[:18].strip(): line[18:].strip() for line in lines}
    assert (found["ordered"], found["retry delays s"], found["tags"]) == (
        "yes",
        "10, 30",
        "all",
    )
    assert found["headers"] == "all"
    filtered = {**ROW, "headers": {"region": ["eu", "us"], "kind": ["order"]}}
    canned = Canned({f"GET {PATH}": filtered})
    assert main(["subscription", "show", "billing", "orders"], transport=canned) == 0
    assert "region=eu,us kind=order" in capsys.readouterr().out


def test_show_as_json_is_what_the_broker_says(capsys: pytest.CaptureFixture[str]) -> None:
    canned = Canned({f"GET {PATH}": ROW})
    assert (
        main(
            ["subscription", "show", "billing", "orders", "--output", "json"],
            transport=canned,
        )
        == 0
    )
    assert '"retry_delays_s":[10,30]' in capsys.readouterr().out
