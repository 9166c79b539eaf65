"""The client's log of something that is tried again and again."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from catmq_client.http import failure_log
from catmq_client.http.failure_log import AGAIN_S, FailureLog


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
