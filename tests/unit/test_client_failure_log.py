"""The client's log of something that is tried again and again."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from catmq_client import HttpTransport
from catmq_client.cli.connection import Brokers
from catmq_client.errors import ConnectFailed, Unavailable
from catmq_client.http import failure_log
from catmq_client.http.failure_log import AGAIN_S, FailureLog, with_hint


def test_a_failure_that_lasts_is_told_at_its_begin_each_minute_and_at_its_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [100.0]
    monkeypatch.setattr(failure_log, "time", SimpleNamespace(monotonic=lambda: now[0]))
    caplog.set_level("INFO", logger="told")
    commit = FailureLog(logging.getLogger("told"), "committing")
    commit.ended()
    for _ in range(120):
        commit.failed("no answer")
        now[0] += AGAIN_S / 60
    commit.ended()
    commit.ended()
    assert [record.getMessage() for record in caplog.records] == [
        "committing failed: no answer",
        "committing still fails after 60 s: no answer",
        "committing works again after 120.0 s",
    ]


def test_a_broker_that_cannot_be_reached_is_asked_for_by_what_gave_its_url() -> None:
    error, url = ConnectFailed("refused"), "http://a:8000"
    in_program, in_command = HttpTransport(url), Brokers([url], None).network()
    assert with_hint(error, in_program).endswith(
        "CATMQ_URL or the first argument says http://a:8000"
    )
    assert with_hint(error, in_command).endswith("CATMQ_URL or --url says http://a:8000")
    assert with_hint(error, object()) == "refused"
    assert with_hint(Unavailable("busy"), in_program) == "busy"
