"""Kinds of argument, and calls that are wrong: exit code 2, with the argument and the
remedy.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any

import pytest

from catmq_client.cli import main
from catmq_client.cli.arguments import (
    broker_urls,
    or_none,
    parse_header,
    parse_reset_target,
    parse_target,
    positive_seconds,
    whole_number,
)
from catmq_client.cli.main import parse_arguments
from catmq_client.cli.manage.groups import start_position
from tests.support.canned import Canned


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CATMQ_URL", raising=False)
    monkeypatch.delenv("CATMQ_API_KEY", raising=False)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (whole_number(1, 1000), "0"),
        (whole_number(1, 1000), "1001"),
        (whole_number(1), "-3"),
        (whole_number(1), "1.5"),
        (whole_number(1), "٣"),
        (or_none(whole_number(1)), "0"),
        (or_none(whole_number(1)), "all"),
        (positive_seconds, "0"),
        (positive_seconds, "nan"),
        (positive_seconds, "-1"),
        (broker_urls, "localhost:8000"),
        (broker_urls, "ftp://host"),
        (broker_urls, ","),
        (broker_urls, "http://a:8000,b:8000"),
        (parse_header, "noequals"),
        (parse_header, "=value"),
        (parse_target, "yesterday"),
        (parse_target, "-15"),
        (parse_target, "-99999999999999d"),
        (parse_target, "2026-13-01"),
        (parse_target, ""),
        (parse_target, "group:shipping"),
        (parse_reset_target, "group:"),
        (parse_reset_target, "shipping"),
        (start_position, "42"),
        (start_position, "soon"),
    ],
)
def test_a_wrong_value_is_refused_with_what_to_give_instead(
    kind: Callable[[str], Any], text: str
) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="give"):
        kind(text)


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("earliest", "to", "earliest"),
        ("latest", "to", "latest"),
        ("0", "offset", 0),
        ("-90s", "ago_ms", 90_000),
        ("-2h", "ago_ms", 7_200_000),
        ("-1d", "ago_ms", 86_400_000),
        ("2026-03-01T12:00Z", "at_ms", 1_772_366_400_000),
        ("2026-03-01T13:00+01:00", "at_ms", 1_772_366_400_000),
    ],
)
def test_a_position_is_a_word_an_offset_a_time_or_how_long_ago(
    text: str, field: str, value: object
) -> None:
    assert getattr(parse_target(text), field) == value


@pytest.mark.parametrize(
    ("argv", "field", "value"),
    [
        (
            ["offsets", "reset", "g", "t", "--to", "-15m", "--dry-run"],
            "to",
            parse_target("-15m"),
        ),
        (
            ["offsets", "reset", "g", "t", "--to", "group:x"],
            "to",
            parse_reset_target("group:x"),
        ),
        (["subscribe", "g", "t", "--from", "-2h"], "start", parse_target("-2h")),
        (["find", "t", "--from", "-2h", "--to", "-15m"], "start", parse_target("-2h")),
        (["find", "t", "--from", "-2h", "--to", "-15m"], "end", parse_target("-15m")),
        (["find", "t", "--contains", "-x -y"], "contains", "-x -y"),
        (["send", "t", "hello", "--key", "-7"], "key", "-7"),
        (["send", "t", "-", "--key", "-k"], "message", "-"),
    ],
)
def test_a_value_that_begins_with_a_dash_is_not_taken_for_an_option(
    argv: list[str], field: str, value: object
) -> None:
    assert getattr(parse_arguments(argv), field) == value


def test_a_number_or_none() -> None:
    assert [or_none(whole_number(1))(text) for text in ("3", "none")] == [3, None]


def test_a_header_keeps_what_follows_its_first_equals_sign() -> None:
    assert parse_header("query=a=b") == ("query", "a=b")


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["topic"],
        ["topic", "create"],
        ["topic", "create", "t", "--queues", "0"],
        ["topic", "create", "t", "--queues", "257"],
        ["topic", "set", "t", "--retention-days", "0"],
        ["topic", "set", "t", "--retention-days", "3651"],
        ["topic", "set", "t", "--retention-bytes", "1023KB"],
        ["topic", "set", "t", "--retention-bytes", "20 GB"],
        ["topic", "set", "t", "--retention-bytes", "much"],
        ["topic", "set", "t", "--keyed", "loosely"],
        ["send", "t", "--batch", "1001"],
        ["send", "t", "hello", "--file", "x.jsonl"],
        ["send", "t", "hello", "--key-field", "f"],
        ["consume", "t"],
        ["consume", "t", "--group", "g", "--max", "0"],
        ["consume", "t", "--group", "g", "--output", "xml"],
        ["subscribe", "g", "t", "--from", "noon"],
        ["offsets", "reset", "g", "t"],
        ["peek", "t", "--from", "-15m"],
        ["broker", "drain"],
        ["broker", "stop", "b"],
        ["group", "set", "g", "--max-active", "0"],
        ["group", "set", "g", "--session-timeout-ms", "1999"],
        ["group", "pause", "g", "--queue", "orders"],
        ["group", "rebalances", "g", "--limit", "0"],
        ["consume", "t", "--group", "g", "--mode", "sharing"],
        ["consume", "t", "--group", "g", "--session-timeout-ms", "300001"],
        ["find", "t", "--key", "--tag", "x"],
        ["orders"],
    ],
)
def test_a_wrong_call_ends_with_exit_code_2(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--url", "http://127.0.0.1:9", *argv])
    assert ended.value.code == 2
    assert "usage: catmq" in capsys.readouterr().err


def test_without_a_url_the_error_says_how_to_give_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["nodes"]) == 2
    assert "CATMQ_URL" in capsys.readouterr().err


def test_a_wrong_url_in_the_environment_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CATMQ_URL", "localhost:8000")
    assert main(["nodes"]) == 2
    assert "CATMQ_URL: 'localhost:8000'" in capsys.readouterr().err


def test_a_broker_that_is_not_there_is_a_failure_that_names_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["nodes", "--url", "http://127.0.0.1:9"]) == 6
    error = capsys.readouterr().err
    assert "http://127.0.0.1:9" in error
    assert "Traceback" not in error


@pytest.mark.parametrize("name", [".", "..", "a b", "", "ä", "x" * 211, "-x/../y"])
def test_what_can_be_no_name_is_refused_before_it_becomes_a_path(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    canned = Canned({})
    assert main(["topic", "show", "--", name], transport=canned) == 2
    assert "not a valid name" in capsys.readouterr().err
    assert canned.requests == []


def test_url_and_key_may_stand_before_or_after_the_command() -> None:
    from catmq_client.cli.main import build_parser

    before = build_parser().parse_args(
        ["--url", "http://a:1", "--api-key", "k", "topic", "list"]
    )
    after = build_parser().parse_args(
        ["topic", "list", "--url", "http://a:1", "--api-key", "k"]
    )
    assert (before.url, before.api_key) == (after.url, after.api_key) == ("http://a:1", "k")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("grup list", "'grup' (choose from topic, group, subscribe,"),
        ("grup list", "; did you mean group?"),
        (
            "group stpo g",
            "'stpo' (choose from create, list, show, members, delete, set, pause, resume, ",
        ),
        ("send t hello --ky k", "unrecognized arguments: --ky k; did you mean --key?"),
        (
            "consume t --grup g",
            "are required: --group (--grup is unknown; did you mean --group?)",
        ),
        ("quota tpic t", "'tpic' (choose from topic, key); did you mean topic?"),
        (
            "topic list --output tabel",
            "'tabel' (choose from pretty, table, json, or a FORMAT in braces); did you mean table?",
        ),
    ],
)
def test_a_wrong_word_is_answered_with_those_there_are(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(words.split())
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "former"), [("lmit", "limit"), ("group sto", "stop"), ("broker ot", "out")]
)
def test_no_former_name_is_offered(
    words: str, former: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(words.split())
    offered = capsys.readouterr().err.partition("choose from")[2]
    assert offered and not re.search(rf"\b{former}\b", offered)


@pytest.mark.parametrize(
    "words",
    [
        ["find", "t", "--key", "caf\udce9"],
        ["find", "t", "--contains", "caf\udce9"],
        ["send", "t", "m", "--header", "a=caf\udce9"],
        ["topic", "list", "--search", "caf\udce9"],
        ["topic", "create", "t", "--description", "caf\udce9"],
        ["group", "set", "g", "--description", "caf\udce9"],
    ],
)
def test_bytes_that_are_not_utf8_are_refused_before_anything_is_asked(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    canned = Canned({})
    with pytest.raises(SystemExit) as end:
        main(words, transport=canned)
    assert end.value.code == 2 and not canned.requests
    assert r"an argument is not UTF-8 text: " in capsys.readouterr().err


def test_a_wrong_ca_file_is_named_by_its_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--ca-file", "/nope", "topic", "list"], transport=Canned({})) == 2
    assert "catmq: --ca-file='/nope': No such file or directory" in capsys.readouterr().err
