"""Leased runs of a member: what of them is handed out, and what the broker is to know soon."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from catmq_client.options import ShareConsumerOptions
from catmq_client.reading.clocks import lease_clock
from catmq_client.sharing.leases import LINGER_S, LeaseBook
from catmq_client.sharing.runs import MAX_UNREPORTED, HeldRun, RunReport

LEASED = {
    "topic": "mails",
    "queue": 1,
    "first": 0,
    "end": 10,
    "grant": "g",
    "lease_ms": 30_000,
}


def run(*, deliveries: int) -> HeldRun:
    """A run whose first message the application has."""
    made = HeldRun({**LEASED, "deliveries": deliveries}, serial=1, sent_at=lease_clock())
    messages: Any = [SimpleNamespace(offset=offset) for offset in range(10)]
    made.fill(messages)
    made.begin(made.buffer.popleft().offset)
    return made


def test_of_a_run_that_was_lost_once_nothing_begins_before_the_broker_knows_what_is_done() -> (
    None
):
    again = run(deliveries=2)
    assert again.can_hand_out(), "a message that takes long holds up no other"
    again.finish(0, again.version)
    assert not again.can_hand_out()
    again.mark_reported(RunReport.of(again, renews=False))
    assert again.can_hand_out()


def test_a_first_delivery_waits_for_no_report() -> None:
    first = run(deliveries=1)
    first.finish(0, first.version)
    assert first.can_hand_out()


def test_the_broker_soon_knows_of_several_messages_that_are_done() -> None:
    book, held = (
        LeaseBook(ShareConsumerOptions(auto_commit_interval_ms=60_000)),
        run(deliveries=1),
    )
    for offset in range(MAX_UNREPORTED):
        assert not held.is_report_urgent()
        held.begin(offset)
        held.finish(offset, held.version)
    assert held.is_report_urgent() and held.unreported_since is not None
    assert book._due_in_s(held, held.unreported_since, lease_clock()) == pytest.approx(
        LINGER_S
    )
