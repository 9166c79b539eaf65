"""Beginnings and ends of many tasks in one statement each: one that is refused is no
other's trouble.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from django.db import DatabaseError, connection, connections
from django.test.utils import CaptureQueriesContext

from catmq_client.contrib.django_tasks.jobs import Job, parse
from catmq_client.contrib.django_tasks.testing import _OutboxDelivery
from catmq_client.contrib.django_tasks.working import execution, records, threads, worker
from catmq_client.contrib.django_tasks.working.execution import Execution
from catmq_client.contrib.django_tasks.working.records import (
    Claim,
    Claimant,
    DatabaseRecords,
    Verdict,
)
from catmq_client.errors import Unavailable
from tests.support.tasking import calls
from tests.support.tasking.stage import Stage, record, staged
from tests.support.waiting import until


@pytest.fixture
def stage(django_db_setup: None, django_db_blocker: Any) -> Iterator[Stage]:
    with django_db_blocker.unblock(), staged() as made:
        yield made


def enqueued(stage: Stage, count: int) -> list[Job]:
    for number in range(count):
        calls.add.enqueue(number)
    stage.relay()
    found = [parse(one.body) for one in stage.broker.messages("tasks.default")]
    return sorted(found, key=lambda job: job.args)


def claimed(kept: DatabaseRecords, jobs: Sequence[Job]) -> list[Claim]:
    return [kept.claim(job, Claimant(1, f"1-{job.args[0]}", "worker")) for job in jobs]


def test_tasks_are_begun_by_one_statement_unless_one_is_somebody_elses(
    stage: Stage,
) -> None:
    kept, jobs = DatabaseRecords(stage.settings), enqueued(stage, 4)
    items = [(job, Claimant(1, f"1-{job.args[0]}", "worker")) for job in jobs]
    with CaptureQueriesContext(connection) as asked:
        assert [one.verdict for one in kept.claim_all(items[:2])] == [
            Verdict.RUN,
            Verdict.RUN,
        ]
    assert len(asked) == 1
    rows = [record(job.id) for job in jobs[:2]]
    assert [(row.status, row.token, row.message_id) for row in rows] == [
        ("RUNNING", 1, "1-0"),
        ("RUNNING", 1, "1-1"),
    ]
    assert rows[0].worker_ids == ["worker"] and rows[0].started_at is not None
    # The third was discarded, the fourth is begun by this very statement: both are looked
    # at again.
    records.TaskRecord.objects.filter(pk=jobs[2].id).update(status="DISCARDED")
    assert kept.claim_all(items[2:]) == []
    verdicts = [kept.claim(*item).verdict for item in items[2:]]
    assert verdicts == [Verdict.OVER, Verdict.RUN]
    assert record(jobs[3].id).worker_ids == ["worker"], "it was begun once"


def test_what_was_received_together_is_claimed_together_but_for_what_needs_a_look(
    stage: Stage,
) -> None:
    jobs = enqueued(stage, 4)
    taken = [_OutboxDelivery(job, f"1-{job.args[0]}") for job in jobs]
    taken[0].deliveries = 2  # somebody may have had it
    taken[1].job = replace(jobs[1], path="tests.support.tasking.never_imported.task")
    work = Execution(stage.settings, "worker")
    begun = work.claim_all(taken)
    assert [one and one.claim.job.id for one in begun] == [
        None,
        None,
        jobs[2].id,
        jobs[3].id,
    ]
    assert [record(job.id).status for job in jobs] == [
        "READY",
        "READY",
        "RUNNING",
        "RUNNING",
    ]
    for delivery, one in zip(taken[2:], begun[2:], strict=True):
        work.handle(delivery, one)
    assert sorted(calls.done) == [3, 4], "what add() returned"
    assert [record(job.id).worker_ids for job in jobs[2:]] == [["worker"], ["worker"]]
    # The answer to the statement was lost: each is claimed again, and called once.
    assert work.claim_all(
        [_OutboxDelivery(jobs[0], "1-0"), _OutboxDelivery(jobs[2], "1-2")]
    ) == [None, None]
    work.handle(_OutboxDelivery(jobs[0], "1-0"))
    assert record(jobs[0].id).worker_ids == ["worker"] and calls.done[-1:] == [1]


def test_ends_are_written_by_one_statement_and_one_that_was_lost_changes_nothing(
    stage: Stage,
) -> None:
    kept, jobs = DatabaseRecords(stage.settings), enqueued(stage, 3)
    claims = claimed(kept, jobs)
    assert kept.claim(jobs[1], Claimant(2, "1-1", "another")).verdict is Verdict.RUN
    values: list[Any] = [None, "lost", {"naïve": ["'", '"', "\\", 1.5]}]
    assert kept.succeed_all([*zip(claims, values, strict=True)]) == [True, False, True]
    found = [record(job.id) for job in jobs]
    assert [row.status for row in found] == ["SUCCESSFUL", "RUNNING", "SUCCESSFUL"]
    assert [row.return_value for row in found] == [None, None, values[2]]
    assert claims[0].record.status == "SUCCESSFUL" and claims[1].record.status == "RUNNING"
    # The answer to a statement was lost, so it is repeated.
    assert kept.succeed_all([*zip(claims, values, strict=True)]) == [True, False, True]
    with CaptureQueriesContext(connection) as asked:
        assert kept.succeed(kept.claim(jobs[1], Claimant(3, "1-1", "third")), 7)
    assert record(jobs[1].id).return_value == 7 and len(asked) == 3


def test_a_retry_that_cannot_be_sent_leaves_the_task_to_its_delivery(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, (job,) = DatabaseRecords(stage.settings), enqueued(stage, 1)
    (claim,) = claimed(kept, [replace(job, is_direct=True)])

    def send(*_: Any, **__: Any) -> None:
        raise Unavailable("no broker answers")

    monkeypatch.setattr(records, "send_job", send)
    with pytest.raises(Unavailable):
        kept.retry(claim, ValueError(), delay_s=0)
    row = record(job.id)
    assert (row.status, row.token) == ("RUNNING", 1), (
        "the message that is left can begin it again"
    )


def test_ends_that_cannot_be_written_together_are_written_alone(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, refused = DatabaseRecords.succeed_all, 3

    def succeed_all(
        self: DatabaseRecords, items: Sequence[tuple[Claim, Any]]
    ) -> list[bool]:
        if len(items) > 1 or items[0][1] == refused:
            raise DatabaseError("a value that the database does not take")
        return real(self, items)

    monkeypatch.setattr(DatabaseRecords, "succeed_all", succeed_all)
    tasks = [calls.add.using(max_attempts=1).enqueue(number) for number in range(4)]
    ended = {row.args[0]: row for row in stage.run(*tasks)}
    assert [ended[number].status for number in range(4)] == ["SUCCESSFUL"] * 2 + [
        "FAILED",
        "SUCCESSFUL",
    ]
    assert ended[2].errors[0]["exception_class_path"].endswith("ResultRefused")


def test_a_task_that_returned_is_not_over_before_that_is_written(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is told to stop meanwhile waits for it, and its thread has taken the
    next task.
    """
    real, begun, may = DatabaseRecords.succeed_all, threading.Event(), threading.Event()

    def succeed_all(
        self: DatabaseRecords, items: Sequence[tuple[Claim, Any]]
    ) -> list[bool]:
        begun.set()
        assert may.wait(10)
        return real(self, items)

    monkeypatch.setattr(DatabaseRecords, "succeed_all", succeed_all)
    results = [calls.add.enqueue(number) for number in range(3)]
    with stage.worker(threads=1) as running:
        assert begun.wait(10)
        until(lambda: len(calls.done) == 3)
        assert [record(one.id).status for one in results] == ["RUNNING"] * 3
        running.worker.stop()
        may.set()
        running.end()
    assert [record(one.id).status for one in results] == ["SUCCESSFUL"] * 3
    connections.close_all()


@pytest.mark.parametrize("statement", ["claim_all", "claim", "succeed_all"])
def test_a_worker_whose_database_hangs_says_so_and_lets_its_health_file_age(
    stage: Stage,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    *,
    statement: str,
) -> None:
    """A connection without an answer raises nothing: the thread that has it waits on."""
    real, begun, may = (
        getattr(DatabaseRecords, statement),
        threading.Event(),
        threading.Event(),
    )

    def hanging(*args: Any) -> Any:
        begun.set()
        assert may.wait(10)
        return real(*args)

    monkeypatch.setattr(DatabaseRecords, statement, hanging)
    if statement == "claim":
        monkeypatch.setattr(Execution, "claim_all", lambda _, some: [None] * len(some))
    monkeypatch.setattr(worker, "HEALTH_EVERY_S", 0.0)
    monkeypatch.setattr(threads, "STUCK_S", 0.2)
    monkeypatch.setattr(threads, "WARN_EVERY_S", 0.0)
    path, result = tmp_path / "health", calls.add.enqueue(1)
    with stage.worker(health_file=str(path)):
        assert begun.wait(10)
        until(
            lambda: caplog.text.count("the application's database has not answered for") > 2
        )
        path.unlink()
        until(lambda: caplog.text.count("has not answered for") > 5)
        assert not path.exists()
        may.set()
        until(path.exists)
        assert stage.over(result.id).status == "SUCCESSFUL"


def test_a_task_that_meets_an_error_of_ours_is_not_delivered_again_at_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[float] = []

    def broken(*_: Any) -> Any:
        began.append(time.monotonic())
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(execution, "TROUBLE_PAUSE_S", 0.3)
    monkeypatch.setattr(Execution, "_act_on_claim", broken)
    monkeypatch.setattr(Execution, "claim_all", lambda _, some: [None] * len(some))
    calls.add.enqueue(1)
    with stage.worker():
        until(lambda: len(began) > 2)
    assert min(b - a for a, b in pairwise(began)) >= 0.3
