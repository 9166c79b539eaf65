"""The log: what it quotes cannot begin a line of its own."""

from __future__ import annotations

import logging
import sys
from typing import Any

import pytest
from django.conf import settings

from catmq_site import logs

FORGED = "2026-01-01 00:00:00,000 ERROR 1 MainThread catmq: all is lost"


def line(message: str, *arguments: object, raised: bool = False) -> str:
    """Return what the log says."""
    information = sys.exc_info() if raised else None
    record = logging.LogRecord("x", logging.INFO, "", 0, message, arguments, information)
    return logs.make_formatter().format(record)


@pytest.mark.parametrize(
    "end", ["\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x85", "\u2028", "\u2029"]
)
def test_no_text_that_is_quoted_begins_a_line(end: str) -> None:
    said = line("GET %s", f"/topics/x{end}{FORGED}")

    assert len(said.splitlines()) == 1 and said.isprintable()


def test_no_terminal_takes_orders_from_the_log() -> None:
    assert "\x1b" not in line("GET %s", "/\x1b[2J") and "\\x1b[2J" in line(
        "GET %s", "/\x1b[2J"
    )


def test_what_is_printable_stays_as_it_is() -> None:
    assert line("group %s: Übergröße, 北京", "billing").endswith(
        "group billing: Übergröße, 北京"
    )


def test_a_stack_trace_is_indented_whatever_its_error_says() -> None:
    try:
        raise ValueError(f"bad\n{FORGED}\r{FORGED}")
    except ValueError:
        said = line("failed", raised=True)

    first, *others = said.splitlines()
    assert first.endswith("failed") and len(others) >= 4
    assert all(one.startswith(logs.INDENT) for one in others)


def test_every_handler_of_the_server_writes_so() -> None:
    logging_settings: dict[str, Any] = settings.LOGGING
    handlers = logging_settings["handlers"]
    assert logging_settings["formatters"]["line"]["()"] == "catmq_site.logs.make_formatter"
    assert {one["formatter"] for one in handlers.values()} == {"line"}


def record(
    name: str, message: str, line: int = 1, *, raised: bool = False
) -> logging.LogRecord:
    information = sys.exc_info() if raised else None
    return logging.LogRecord(name, logging.ERROR, "a.py", line, message, (), information)


def test_lines_of_one_cause_are_bounded_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(logs.time, "monotonic", lambda: now[0])
    bounded = logs.BoundedByCause()
    passed = [
        bounded.filter(record("django.security.csrf", f"form {n}")) for n in range(1000)
    ]
    assert passed == [True] * logs.BURST_LINES + [False] * (1000 - logs.BURST_LINES)

    assert bounded.filter(record("django.security.csrf", "another cause", 2))
    assert all(
        bounded.filter(record("metadata.brokers", "no request")) for _ in range(1000)
    )
    now[0] += 2.0
    later = record("django.security.csrf", "form")
    assert bounded.filter(later) and not bounded.filter(
        record("django.security.csrf", "form")
    )
    assert later.getMessage() == "form (970 more of these were not written)"


@pytest.mark.parametrize(
    "name", ["axes.handlers.database", "metadata.membership.consumers", "portal.auth"]
)
def test_lines_that_an_account_or_a_key_causes_are_bounded(name: str) -> None:
    bounded = logs.BoundedByCause()
    assert not all(bounded.filter(record(name, f"wrong password {n}")) for n in range(1000))


def test_a_line_that_a_request_causes_is_short_and_a_refusal_has_no_stack_trace() -> None:
    bounded = logs.BoundedByCause()
    for name, is_kept in (
        ("django.security.DisallowedHost", False),
        ("django.request", True),
    ):
        try:
            raise ValueError("bad")
        except ValueError:
            written = record(name, "x" * 10_000, raised=True)
        assert bounded.filter(written)
        assert (
            len(written.getMessage()) < logs.MAX_CHARS + 10
            and bool(written.exc_info) is is_kept
        )


def test_the_servers_log_is_bounded() -> None:
    assert settings.LOGGING["handlers"]["stderr"]["filters"] == ["bounded"]
