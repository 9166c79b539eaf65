"""The lines about an outage: how many there are, whatever fails how often."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from metadata import outages
from metadata.outages import AGAIN_S, QUIET_S, Outage


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The monotonic clock."""
    value = [1000.0]
    monkeypatch.setattr(outages, "time", SimpleNamespace(monotonic=lambda: value[0]))
    return value


@pytest.fixture
def outage() -> Outage:
    return Outage(logging.getLogger("outages"), "the database")


def test_an_outage_has_a_line_at_its_begin_one_a_minute_and_one_at_its_end(
    now: list[float], outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(1_000):
        outage.failed("no answer")
        now[0] += 0.1
    now[0] += AGAIN_S - 60
    outage.ended()
    outage.ended()
    assert [record.getMessage() for record in caplog.records] == [
        "the database does not answer: no answer",
        "the database has not answered for 60 s: no answer",
        "the database answers again after 100.0 s and 1000 failures",
    ]


def test_what_comes_and_goes_many_times_a_second_fills_no_log(
    now: list[float], outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(100):
        outage.failed("one of many connections")
        outage.ended()
        now[0] += QUIET_S / 100
    assert len(caplog.records) == 2


def test_what_never_failed_is_not_said_to_be_back(
    outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    outage.ended()
    assert not caplog.records
