"""Reports of consumers' processes: with which heartbeats they come, and where they are
shown.
"""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from metadata.membership import consumers
from metadata.models import Heartbeat
from metadata.rules.membership import process_report
from metadata.rules.membership.process_report import ProcessStatus, SlowHandler
from tests.support import rows
from tests.support.broker import Broker, problem
from tests.support.members import Member, reader

REPORT = {
    "threads": 8,
    "busy": 1,
    "buffered": 40,
    "buffered_bytes": 900,
    "handled": 70,
    "failed": 2,
}


def beat(member: Member, **more: Any) -> Any:
    body = {"generation": member.generation, "owned": [], **more}
    return member.broker.call("POST", f"{member.path}/heartbeat", body)


def shown(broker: Broker, name: str = "c1") -> Any:
    members = broker.ok("GET", "/groups/readers")["members"]
    return next(one for one in members if one["name"] == name)


def test_a_report_is_shown_with_its_member(broker: Broker, queue: int) -> None:
    member = reader(broker)
    assert shown(broker)["process"] is shown(broker)["process_age_ms"] is None

    slowest = {"queue": queue, "offset": 3, "running_ms": 4_000}
    answer = beat(member, report={**REPORT, "slowest": slowest})

    assert answer.json()["report_every_ms"] == 10_000
    assert shown(broker)["process"] == {**REPORT, "slowest": slowest}
    assert 0 <= shown(broker)["process_age_ms"] < 60_000


def test_a_heartbeat_without_a_report_keeps_the_last_one(
    broker: Broker, queue: int
) -> None:
    member = reader(broker)
    beat(member, report=REPORT)

    member.heartbeat()

    assert shown(broker)["process"] == {**REPORT, "slowest": None}


def test_the_process_that_takes_over_a_name_begins_without_a_report(
    broker: Broker, queue: int
) -> None:
    beat(reader(broker), report=REPORT)

    Member.join(broker, incarnation=str(uuid.uuid4()))

    assert shown(broker)["process"] is None


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({**REPORT, "threads": -1}, "report.threads"),
        ({**REPORT, "busy": "1"}, "report.busy"),
        ({**REPORT, "note": "x" * 10_000}, "report.note"),
        ({**REPORT, "slowest": {"queue": 1, "offset": 2}}, "report.slowest.running_ms"),
        ({"threads": 1}, "report.busy"),
        ([], "report"),
    ],
)
def test_a_wrong_report_is_refused_by_its_field(
    broker: Broker, queue: int, wrong: Any, field: str
) -> None:
    problem(beat(reader(broker), report=wrong), 400, "invalid", field)


def test_the_longest_report_fits_its_column() -> None:
    most = 2**63 - 1
    longest = ProcessStatus(
        most, most, most, most, most, most, SlowHandler(most, most, most)
    )

    text = process_report.pack(longest)

    assert len(text) <= process_report.MAX_CHARS
    assert process_report.unpack(text) == longest


@pytest.mark.usefixtures("metadata_db")
def test_a_report_costs_no_statement_of_its_own() -> None:
    rows.world()
    member, other = rows.Member("a").register(), rows.Member("b").register()
    for one in (member, other, member):
        one.beat()
    assert member.id is not None
    told: dict[str, Any] = {"consumer": member.id, "generation": member.generation}
    told["owned"] = [*member.owned.items()]

    consumers.heartbeat(**told)  # reads what it owns, which is known from then on

    with CaptureQueriesContext(connection) as without:
        consumers.heartbeat(**told)
    report = ProcessStatus(1, 0, 5, 50, 9, 0)
    with CaptureQueriesContext(connection) as with_report:
        consumers.heartbeat(**told, report=report)

    assert len(with_report) == len(without)
    kept = {
        beat.membership.identity: beat.report
        for beat in Heartbeat.objects.select_related("membership")
    }
    assert kept == {"a": process_report.pack(report), "b": ""}
