"""Logs are examined: a 500 and a traceback that nothing explains are named, what failing
parts say is not.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from catmq_site.logs import FORMAT, OneLine
from tests.support import server as servers
from tests.support.broker_logs import examined
from tests.support.server import Server

FRAMES = """Loop x failed, time 1 in a row
Traceback (most recent call last):
  File "a.py", line 1, in f
    g()
"""


def sentences(text: str) -> list[str]:
    return [one.sentence for one in examined("broker.log", text)]


def test_an_error_that_says_what_is_away_is_expected() -> None:
    for end in (
        "metadata.errors.MetadataUnavailable: The metadata database did not answer.",
        "messagestore.engine.db_errors.Unreachable: Node n1 cannot be reached.",
        "django.db.utils.OperationalError: (2013, 'Lost connection to server during query')",
        "MySQLdb.OperationalError: (1927, 'Connection was killed')",
    ):
        assert sentences(FRAMES + end + "\n") == []


def test_any_other_traceback_is_named_by_its_end() -> None:
    (found,) = examined("broker.log", FRAMES + "KeyError: 7\n")
    assert (found.kind, found.place) == ("log", "broker.log, 2 lines on")
    assert found.sentence == "an unexpected traceback: KeyError: 7"
    assert sentences(FRAMES + "django.db.utils.ProgrammingError: (1146, 'no such table')\n")


def test_an_entry_of_another_process_inside_a_traceback_is_not_its_end() -> None:
    head, between = FRAMES.removesuffix("    g()\n"), "2026-01-01 00:00:00,001 INFO 7 up\n"
    assert sentences(head + between + "    g()\nTimeoutError: late\n") == []
    assert sentences(head + between + "    g()\nKeyError: 7\n") == [
        "an unexpected traceback: KeyError: 7"
    ]


def test_a_chain_of_tracebacks_is_one_finding_for_each_that_is_not_expected() -> None:
    first = (
        FRAMES
        + "MySQLdb.OperationalError: (2006, 'gone')\n\nDuring handling of the above …\n\n"
    )
    assert sentences(first + FRAMES + "TypeError: no\n") == [
        "an unexpected traceback: TypeError: no"
    ]


def test_a_request_that_failed_with_a_500_is_named_whatever_it_was() -> None:
    text = (
        "2026-01-01 request failed, id 7f\n"
        + FRAMES
        + "messagestore.engine.db_errors.Ambiguous: gone\n"
    )
    assert sentences(text) == ["2026-01-01 request failed, id 7f"]


@pytest.mark.parametrize(
    ("error", "found"), [(ConnectionResetError("gone"), 0), (KeyError("seven"), 1)]
)
def test_a_traceback_as_servers_write_it_is_judged_by_its_own_end(
    error: Exception, found: int
) -> None:
    try:
        raise error
    except (ConnectionResetError, KeyError):
        entry = logging.LogRecord(
            "a", logging.ERROR, "a.py", 1, "Loop x failed", (), sys.exc_info()
        )
    after = logging.LogRecord("a", logging.INFO, "a.py", 1, "Processed", (), None)
    text = "\n".join(OneLine(FORMAT).format(one) for one in (entry, after, after))

    assert sentences(text) == ["an unexpected traceback: KeyError: 'seven'"] * found


def test_the_report_of_a_failed_test_has_the_ends_of_the_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log/broker.log").write_text(
        "old\n" + "x" * servers.TAIL_BYTES + "\nrequest failed\n"
    )
    (tmp_path / "log/jobs.log").touch()
    monkeypatch.setattr(
        servers, "started", [Server(tmp_path), Server(tmp_path / "removed")]
    )
    ((title, text),) = servers.log_tails()
    assert (
        title.endswith("log/broker.log")
        and text.endswith("request failed\n")
        and "old" not in text
    )
