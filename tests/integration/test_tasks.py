"""Django's tasks: a task exists if and only if its transaction committed, and ends whoever
dies.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import OperationalError, transaction
from django.test.utils import CaptureQueriesContext

from catmq_client import Producer
from catmq_client.contrib.django_outbox.models import OutboxMessage
from catmq_client.contrib.django_tasks import enqueueing
from catmq_client.contrib.django_tasks.compat import (
    InvalidTask,
    TaskResultDoesNotExist,
    task_enqueued,
    task_finished,
    task_started,
)
from catmq_client.contrib.django_tasks.enqueueing import NotAllSent
from catmq_client.contrib.django_tasks.models import TaskRecord
from catmq_client.contrib.django_tasks.working import execution, records
from catmq_client.contrib.django_tasks.working.upkeep import find_settings
from catmq_client.contrib.django_tasks.working.worker import WorkerFailed
from catmq_client.errors import ConnectFailed, ConsumerReplaced
from tests.support.environment import ENGINE
from tests.support.tasking import calls
from tests.support.tasking.stage import LIMIT_S, Stage, record, staged, with_options
from tests.support.waiting import until

PUBLISH = "POST .*/messages"


@pytest.fixture
def stage(django_db_setup: None, django_db_blocker: Any) -> Iterator[Stage]:
    with django_db_blocker.unblock(), staged() as made:
        yield made


def errors(task_id: str) -> list[str]:
    return [
        error["exception_class_path"].rpartition(".")[2] for error in record(task_id).errors
    ]


def messages() -> list[dict[str, Any]]:
    return [json.loads(bytes(row.body)) for row in OutboxMessage.objects.order_by("id")]


# Enqueue.


def test_a_task_exists_if_and_only_if_its_transaction_commits(stage: Stage) -> None:
    with transaction.atomic():
        kept = calls.add.enqueue(1)
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        calls.add.enqueue(2)
        raise ZeroDivisionError
    assert [one.id for one in TaskRecord.objects.all()] == [kept.id]
    assert [one["id"] for one in messages()] == [kept.id]


def test_a_new_task_is_ready_and_can_be_asked_for(stage: Stage) -> None:
    result = calls.add.enqueue(1, two=2)
    assert (result.status, result.args, result.kwargs, result.attempts) == (
        "READY",
        [1],
        {"two": 2},
        0,
    )
    assert calls.add.get_result(result.id) == result
    assert asyncio.run(calls.add.aget_result(result.id)) == result
    with pytest.raises(TaskResultDoesNotExist):
        calls.add.get_result("nothing")


@pytest.mark.one_engine
@pytest.mark.parametrize(
    "wrong", [object(), {1, 2}, float("nan"), datetime.now(UTC), b"\xff", "\ud800"]
)
def test_arguments_that_are_no_json_are_refused_and_nothing_is_written(
    stage: Stage, wrong: Any
) -> None:
    with pytest.raises(
        (TypeError, ValueError), match=r"the arguments of task .*calls\.add must be JSON"
    ):
        calls.add.enqueue(wrong)
    with pytest.raises(ValueError, match="too large: its message has 2000"):
        calls.add.enqueue("x" * 2_000_000)
    assert (TaskRecord.objects.count(), OutboxMessage.objects.count()) == (0, 0)


@pytest.mark.parametrize("depth", [31, 32, 100, 101])
def test_arguments_that_no_database_keeps_are_refused_before_a_statement(
    stage: Stage, depth: int
) -> None:
    value = json.loads("[" * (depth - 1) + "]" * (depth - 1))
    connection: Any = transaction.get_connection()
    limit = 31 if getattr(connection, "mysql_is_mariadb", False) else 100
    if depth <= limit:
        assert record(calls.odd.enqueue(value).id).args == [value]
    else:
        with pytest.raises(ValueError, match=r"nested deeper than (31|100) levels"):
            calls.odd.enqueue(value)


def test_a_nul_that_postgresql_does_not_keep_is_refused_by_name(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction.get_connection(), "vendor", "postgresql")
    with pytest.raises(
        ValueError, match="have a NUL character, which PostgreSQL does not keep"
    ):
        calls.add.enqueue("a\0")
    assert not enqueueing.ESCAPED_NUL.search(json.dumps("\\u0000").encode())


def test_many_tasks_are_enqueued_in_few_statements_and_run(
    stage: Stage, django_assert_max_num_queries: Any
) -> None:
    # SQLite takes fewer rows at once
    with django_assert_max_num_queries(8 if ENGINE == "mysql" else 30):
        made = calls.add.enqueue_many(
            [(1,), [2, 2], {"one": 3}, *((n,) for n in range(100, 700))]
        )
    assert [(one.args, one.kwargs) for one in made[:3]] == [
        ([1], {}),
        ([2, 2], {}),
        ([], {"one": 3}),
    ]
    assert (
        len({one.id for one in made})
        == TaskRecord.objects.count()
        == OutboxMessage.objects.count()
        == 603
    )
    assert [record(one.id).result(calls.add) for one in made[:2]] == made[:2]
    assert [one.return_value for one in stage.run(*made[:3], threads=8)] == [2, 4, 4]
    assert asyncio.run(calls.add.aenqueue_many([(1,)]))[0].status == "READY"
    assert calls.add.enqueue_many([]) == []


def test_of_many_tasks_all_exist_or_none(stage: Stage) -> None:
    with pytest.raises(TypeError, match=r"the arguments of task .*calls\.add must be JSON"):
        calls.add.enqueue_many([(1,), (object(),)])
    with pytest.raises(
        TypeError, match=r"call 1 of task .*calls\.add is a int: give a tuple"
    ):
        calls.add.enqueue_many([(1,), 2])
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        calls.add.enqueue_many([(n,) for n in range(10)])
        raise ZeroDivisionError
    assert (TaskRecord.objects.count(), OutboxMessage.objects.count()) == (0, 0)


def test_large_tasks_go_in_batches_that_a_statement_takes(stage: Stage) -> None:
    calls.mail.enqueue_many([("x" * 300_000,)] * 8)
    assert OutboxMessage.objects.count() == 8
    with CaptureQueriesContext(transaction.get_connection()) as captured:
        calls.mail.enqueue_many([("x" * 300_000,)] * 8)
    inserts = [one["sql"] for one in captured if one["sql"].startswith("INSERT")]
    assert len(inserts) == 6


def test_of_many_tasks_that_are_sent_directly_those_that_are_refused_do_not_exist(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with with_options(SEND="direct"):
        assert len(calls.add.enqueue_many([(1,), (2,)])) == 2
        send = Producer.send_batch

        def refuse_the_second(self: Any, topic: str, messages: Any) -> Any:
            return [*send(self, topic, messages[:1]), ConnectFailed("away")]

        monkeypatch.setattr(Producer, "send_batch", refuse_the_second)
        with pytest.raises(NotAllSent, match=r"1 of 2 tasks could not be sent: .*away"):
            calls.add.enqueue_many([(3,), (4,)])
    assert sorted(one.args[0] for one in TaskRecord.objects.all()) == [1, 2, 3]
    assert len(stage.broker.messages("tasks.default")) == 3


@pytest.mark.one_engine
def test_what_no_worker_could_find_is_refused(stage: Stage) -> None:
    def local() -> None:
        """Cannot be imported."""

    with pytest.raises(InvalidTask, match="module level"):
        type(calls.add)(func=local)
    gone = calls.add.using()
    gone.func.__qualname__, name = "gone", gone.func.__qualname__
    try:
        with pytest.raises(InvalidTask, match=r"could not find .*calls\.gone"):
            gone.enqueue(1)
    finally:
        gone.func.__qualname__ = name


@pytest.mark.one_engine
@pytest.mark.parametrize(
    "wrong",
    [
        {"max_attempts": 0},
        {"max_attempts": 101},
        {"timeout": 0.5},
        {"backoff": 3},
        {"backoff": AsyncMock()},
        {"priority": 101},
    ],
)
def test_a_wrong_field_of_a_task_is_refused(stage: Stage, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidTask, match=next(iter(wrong))):
        calls.add.using(**wrong)


def test_lanes_and_times_go_with_the_message(stage: Stage) -> None:
    later = datetime.now(UTC) + timedelta(hours=3)
    calls.add.using(priority=5).enqueue(1)
    calls.mail.using(priority=-100).enqueue("a@b.c")
    calls.add.using(run_after=later).enqueue(2)
    calls.add.using(run_after=datetime.now(UTC) + timedelta(days=500)).enqueue(3)
    told = [
        *OutboxMessage.objects.order_by("id").values_list("topic", "tag", "deliver_at_ms")
    ]
    assert [one[:2] for one in told] == [
        ("tasks.default.high", "add"),
        ("tasks.mails.low", "mail"),
        ("tasks.default", "add"),
        ("tasks.default", "add"),
    ]
    assert told[2][2] == int(later.timestamp() * 1000)
    assert 364 < (told[3][2] / 1000 - datetime.now(UTC).timestamp()) / 86_400 < 366


@pytest.mark.one_engine
def test_a_receiver_that_fails_does_not_fail_the_task(stage: Stage) -> None:
    def fails(**told: Any) -> None:
        raise ZeroDivisionError

    for signal in (task_enqueued, task_started, task_finished):
        signal.connect(fails)
    try:
        assert stage.run(calls.add.enqueue(1))[0].status == "SUCCESSFUL"
    finally:
        for signal in (task_enqueued, task_started, task_finished):
            signal.disconnect(fails)


def test_sent_directly_a_task_is_there_at_once_or_refused_while_brokers_are_away(
    stage: Stage,
) -> None:
    with with_options(SEND="direct"):
        stage.settings = find_settings("default")
        result = calls.add.enqueue(1)
        assert [one.trace_id for one in stage.broker.messages("tasks.default")] == [
            result.id
        ]
        assert stage.run(result, relay=False)[0].return_value == 2
        stage.broker.fail(PUBLISH, ConnectFailed("away"), times=10_000)
        with (
            pytest.raises(Exception, match="away"),
            pytest.MonkeyPatch.context() as patched,
        ):
            patched.setattr(
                "catmq_client.contrib.django_tasks.connections.DELIVERY_TIMEOUT_MS", 50
            )
            from catmq_client.contrib.django_tasks.connections import use_transport

            with use_transport(stage.broker):
                calls.add.enqueue(2)
        assert TaskRecord.objects.count() == 1


def test_brokers_that_are_away_do_not_hinder_who_enqueues(stage: Stage) -> None:
    stage.broker.fail(PUBLISH, ConnectFailed("away"), times=3)
    result = calls.add.enqueue(1)
    assert stage.run(result)[0].status == "SUCCESSFUL"


@pytest.mark.one_engine
@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"MAX_ATTEMPT": 3}, "MAX_ATTEMPT"),
        ({"MAX_ATTEMPTS": 0}, "from 1 to 100"),
        ({"PRIORITY_LANES": [[-100, 0], [0, 100]]}, "PRIORITY_LANES"),
        ({"SEND": "later"}, "'outbox' or 'direct'"),
        ({"ON_TIMEOUT": "stop"}, "'leave' or 'kill'"),
    ],
)
def test_a_wrong_option_is_named_with_what_to_write(
    stage: Stage, options: dict[str, Any], named: str
) -> None:
    with with_options(**options), pytest.raises(ImproperlyConfigured, match=named):
        calls.add.enqueue(1)


# Attempts.


def test_tasks_of_all_kinds_run(stage: Stage) -> None:
    made = [
        calls.add.enqueue(1, two=2),
        calls.mail.enqueue("a@b.c"),
        calls.attempt.enqueue(),
        calls.another.enqueue(),
    ]
    done = stage.run(*made)
    assert [one.status for one in done] == ["SUCCESSFUL"] * 4
    assert [one.return_value for one in done] == [3, "a@b.c", 1, None]
    for one in done:
        assert (
            one.started_at
            and one.finished_at
            and len(one.worker_ids) == 1
            and one.message_id
        )
    made[0].refresh()
    assert made[0].return_value == 3


def test_a_failed_attempt_is_repeated_until_none_is_left_and_all_errors_are_kept(
    stage: Stage,
) -> None:
    result = calls.fail.enqueue()
    assert stage.run(result)[0].status == "FAILED"
    assert (calls.done, errors(result.id)) == (["broken"] * 3, ["LookupError"] * 3)
    result.refresh()
    assert result.attempts == 3 and result.errors[0].exception_class is LookupError
    assert "raise LookupError(text)" in result.errors[2].traceback


@pytest.mark.one_engine
def test_a_backoff_that_returns_none_ends_the_task(stage: Stage) -> None:
    final, other = calls.give_up.enqueue("final"), calls.give_up.enqueue("other")
    stage.run(final, other)
    assert sorted(calls.done) == ["final", "other", "other"]


def test_exits_and_values_that_cannot_be_kept_fail_the_task_and_not_the_worker(
    stage: Stage,
) -> None:
    with with_options(MAX_ATTEMPTS=1):
        made = [
            calls.leave.enqueue(),
            calls.odd.enqueue(),
            calls.large.enqueue(),
            calls.add.enqueue(1),
        ]
        done = stage.run(*made, calls.half.enqueue())
    assert [one.status for one in done] == [
        "FAILED",
        "FAILED",
        "FAILED",
        "SUCCESSFUL",
        "FAILED",
    ]
    assert [errors(one.id) for one in made[:3]] == [
        ["SystemExit"],
        ["TypeError"],
        ["ResultRefused"],
    ]
    assert (
        "calls.half must be JSON: '\\ud800' is half of a character"
        in done[4].errors[0]["traceback"]
    )


@pytest.mark.skipif(ENGINE != "mysql", reason="SQLite takes JSON of any depth")
def test_a_value_that_only_the_database_refuses_fails_the_task_at_once(
    stage: Stage,
) -> None:
    done = stage.run(calls.deep.enqueue(), calls.add.enqueue(1))
    assert [one.status for one in done] == ["FAILED", "SUCCESSFUL"]
    assert "ResultRefused: the result of task" in done[0].errors[0]["traceback"]


def test_an_error_of_a_value_is_not_taken_for_a_database_that_is_away(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MySQL's own words for text that is no JSON, as its driver raises them."""

    def refused(*_: Any) -> Any:
        raise OperationalError(3140, "Invalid JSON text")

    monkeypatch.setattr(records.DatabaseRecords, "succeed_all", refused)
    monkeypatch.setattr(records.DatabaseRecords, "succeed", refused)
    result = calls.add.enqueue(1)
    assert stage.run(result)[0].status == "FAILED"
    assert errors(result.id) == ["ResultRefused"]


def test_a_value_that_is_too_large_is_not_made_again(stage: Stage) -> None:
    result = calls.large.using(max_attempts=3).enqueue()
    assert len(stage.run(result)[0].worker_ids) == 1


def test_a_task_that_takes_too_long_fails_and_another_thread_takes_over(
    stage: Stage,
) -> None:
    result = calls.stuck.enqueue()
    with stage.worker(threads=2) as running:
        done = stage.over(result.id)
        assert (done.status, errors(result.id)) == ("FAILED", ["TaskTimeout"])
        assert "may_leave.wait" in done.errors[0]["traceback"]
        assert stage.over(calls.add.enqueue(1).id).status == "SUCCESSFUL"
        calls.may_leave.set()
        until(lambda: "late" in calls.done)
    assert record(result.id).status == "FAILED" and running.error is None


@pytest.mark.one_engine
def test_a_worker_whose_threads_are_all_stuck_ends_and_says_so(stage: Stage) -> None:
    calls.stuck.enqueue()
    with stage.worker(threads=1, drain_s=0.0) as running:
        running.join()
    assert isinstance(running.error, WorkerFailed) and "1 of 1 threads are stuck" in str(
        running.error
    )


@pytest.mark.one_engine
def test_a_worker_may_end_to_kill_a_task_that_does_not(stage: Stage) -> None:
    with with_options(ON_TIMEOUT="kill"):
        stage.settings = find_settings("default")
        stuck, other = calls.stuck.enqueue(), calls.add.enqueue(1)
        with stage.worker(threads=4, drain_s=LIMIT_S) as running:
            running.join()
    assert isinstance(running.error, WorkerFailed) and "1 of 4 threads are stuck" in str(
        running.error
    )
    assert (record(stuck.id).status, errors(stuck.id)) == ("FAILED", ["TaskTimeout"])
    assert record(other.id).status == "SUCCESSFUL"


# What others do meanwhile.


def test_a_task_whose_worker_died_is_begun_again_and_its_death_counts_as_an_attempt(
    stage: Stage,
) -> None:
    result = calls.wait.using(max_attempts=2).enqueue()
    with stage.worker(worker_id="first", drain_s=0.0):
        assert calls.entered.wait(LIMIT_S)
        stage.broker.cut_off("first")  # as if it had died
        stage.broker.advance(60)
        with stage.worker(worker_id="second"):
            until(lambda: record(result.id).worker_ids == ["first", "second"])
            calls.may_leave.set()
            assert stage.over(result.id).status == "SUCCESSFUL"
        stage.broker.heal()
    assert errors(result.id) == ["WorkerLost"]


def test_who_lost_a_task_changes_nothing_any_more(stage: Stage) -> None:
    result = calls.add.enqueue(1)
    stage.relay()
    kept = records.DatabaseRecords(stage.settings)
    job = execution.parse(stage.broker.messages("tasks.default")[0].body)
    first = kept.claim(job, records.Claimant(1, "1-0", "first"))
    second = kept.claim(job, records.Claimant(2, "1-0", "second"))
    assert [first.verdict, second.verdict] == [records.Verdict.RUN] * 2
    assert not kept.succeed(first, 1) and not kept.fail(first, ValueError())
    assert (
        not kept.retry(first, ValueError(), delay_s=0)
        and OutboxMessage.objects.count() == 0
    )
    assert kept.succeed(second, 2) and not kept.fail(second, ValueError())
    assert (record(result.id).return_value, errors(result.id)) == (2, ["WorkerLost"])
    assert (
        kept.claim(job, records.Claimant(3, "1-0", "third")).verdict is records.Verdict.OVER
    )


def test_a_task_whose_workers_die_as_often_as_it_may_be_begun_has_failed(
    stage: Stage,
) -> None:
    result = calls.add.using(max_attempts=2).enqueue(1)
    stage.relay()
    kept = records.DatabaseRecords(stage.settings)
    job = execution.parse(stage.broker.messages("tasks.default")[0].body)
    for token in (1, 2):
        kept.claim(job, records.Claimant(token, "1-0", f"worker-{token}"))
    assert (
        kept.claim(job, records.Claimant(3, "1-0", "third")).verdict
        is records.Verdict.USED_UP
    )
    assert (record(result.id).status, errors(result.id)) == (
        "FAILED",
        ["WorkerLost", "WorkerLost"],
    )


def test_a_message_that_comes_again_after_its_retry_was_sent_does_nothing(
    stage: Stage,
) -> None:
    result = calls.fail.enqueue()
    stage.relay()
    kept = records.DatabaseRecords(stage.settings)
    job = execution.parse(stage.broker.messages("tasks.default")[0].body)
    claim = kept.claim(job, records.Claimant(1, "1-0", "first"))
    assert kept.retry(claim, ValueError("x"), delay_s=30)
    assert (
        kept.claim(job, records.Claimant(2, "1-0", "second")).verdict
        is records.Verdict.OVER
    )
    (row,) = OutboxMessage.objects.all()
    assert record(result.id).status == "READY" and row.deliver_at_ms is not None
    again = execution.parse(bytes(row.body))
    assert (
        kept.claim(again, records.Claimant(again.token + 1, "1-1", "second")).verdict
        is records.Verdict.RUN
    )


def test_a_worker_that_is_stopped_finishes_what_is_at_work(stage: Stage) -> None:
    result = calls.wait.enqueue()
    with stage.worker(drain_s=LIMIT_S) as running:
        assert calls.entered.wait(LIMIT_S)
        running.worker.stop()
        threading.Timer(0.2, calls.may_leave.set).start()
        running.join()
    assert record(result.id).status == "SUCCESSFUL"


def test_what_is_not_done_when_a_worker_ends_is_delivered_to_another(stage: Stage) -> None:
    result = calls.wait.enqueue()
    with stage.worker(worker_id="first", drain_s=0.0) as running:
        assert calls.entered.wait(LIMIT_S)
        running.worker.stop()
        running.join()
        calls.entered.clear()
        with stage.worker(worker_id="second"):
            assert calls.entered.wait(LIMIT_S)
            calls.may_leave.set()
            assert stage.over(result.id).worker_ids == ["first", "second"]


def test_of_two_workers_with_one_id_the_first_ends_and_says_why(stage: Stage) -> None:
    with stage.worker(worker_id="same") as first:
        until(lambda: stage.broker.seen("POST .*/share$"))
        with stage.worker(worker_id="same"):
            first.join()
            assert isinstance(first.error, ConsumerReplaced)
            assert stage.over(calls.add.enqueue(1).id).status == "SUCCESSFUL"


def test_a_worker_waits_while_the_database_is_away(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, tries = records.DatabaseRecords.claim_all, iter(range(3))

    def claim_all(*given: Any) -> Any:
        if next(tries, None) is not None:
            raise OperationalError(2013, "away")
        return real(*given)

    monkeypatch.setattr(records.DatabaseRecords, "claim_all", claim_all)
    assert stage.run(calls.add.enqueue(1))[0].worker_ids[1:] == []
    assert next(tries, None) is None


@pytest.mark.parametrize("step", ["claim_all", "_claim_by_row"])
def test_a_claim_whose_answer_is_lost_is_repeated_and_the_task_runs(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    real, lost = getattr(records.DatabaseRecords, step), iter([True])

    def claim(*given: Any) -> Any:
        found = real(*given)
        if found and next(lost, False):
            raise OperationalError(2013, "lost connection after the commit")
        return found

    monkeypatch.setattr(records.DatabaseRecords, step, claim)
    if step == "_claim_by_row":  # who looks at the row first
        monkeypatch.setattr(records.DatabaseRecords, "claim_all", lambda *_: [])
    (done,) = stage.run(calls.add.enqueue(1))
    assert (done.status, len(done.worker_ids), calls.done) == ("SUCCESSFUL", 1, [2])
    assert next(lost, "used") == "used"


# Messages that are not as they should be.


def test_a_task_whose_function_is_gone_waits_for_a_worker_that_has_it_and_then_fails(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "MISSING_PAUSE_S", 2.5)
    result = calls.add.enqueue(1)
    TaskRecord.objects.update(path="tests.gone")
    OutboxMessage.objects.update(
        body=json.dumps(messages()[0] | {"path": "tests.gone"}).encode()
    )
    with stage.worker():
        until(lambda: stage.broker.advance(10) or record(result.id).is_over)
    assert (record(result.id).status, errors(result.id)) == ("FAILED", ["TaskMissing"])
    assert len(stage.broker.messages("tasks.default")) == 3  # sent again twice


@pytest.mark.one_engine
@pytest.mark.parametrize(
    "path", ["subprocess.check_output", "tests.support.tasking.calls.plain", "x", "a..b"]
)
def test_a_message_cannot_call_what_is_no_task(stage: Stage, path: str) -> None:
    result = calls.add.enqueue(1)
    body = messages()[0] | {"path": path, "waits": 100}
    OutboxMessage.objects.update(body=json.dumps(body).encode())
    assert stage.run(result)[0].status == "FAILED"
    assert errors(result.id) == ["TaskMissing"]


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b'{"v":1}',
        b'{"v":2,"id":"x"}',
        b"\xff",
        b"[" * 100_000,
        b'{"v":1,"id":[],"path":"a.b"}',
    ],
)
def test_what_is_no_message_of_a_task_becomes_a_dead_letter_and_the_worker_goes_on(
    stage: Stage, body: bytes
) -> None:
    with Producer(transport=stage.broker) as producer:
        producer.send("tasks.default", body)
    stage.run(calls.add.enqueue(1))
    (dead,) = stage.broker.dead("tasks")
    assert dead.error.startswith("WrongMessage")


@pytest.mark.parametrize("is_direct", [True, False])
@pytest.mark.parametrize("changes", [{"path": "no.such"}, {"run_after_ms": 10**14}, {}])
@pytest.mark.parametrize("queue", ["nosuch", "q" * 200])
def test_a_message_of_a_queue_that_is_not_configured_becomes_a_dead_letter(
    stage: Stage, queue: str, changes: dict[str, Any], is_direct: bool
) -> None:
    calls.add.enqueue(1)
    body = messages()[0] | {"queue": queue, "is_direct": is_direct} | changes
    OutboxMessage.objects.update(body=json.dumps(body).encode())
    TaskRecord.objects.all().delete()
    stage.run(calls.add.enqueue(2))
    (dead,) = stage.broker.dead("tasks")
    assert dead.error.startswith("WrongMessage") and "default, mails" in dead.error


def test_a_message_without_a_row_waits_for_the_commit_if_it_was_sent_directly(
    stage: Stage,
) -> None:
    with with_options(SEND="direct"):
        stage.settings = find_settings("default")
        result = calls.add.enqueue(1)
        row = record(result.id)
        TaskRecord.objects.all().delete()
        with stage.worker(relay=False):
            until(lambda: len(stage.broker.seen(PUBLISH)) == 2)
            row.save(force_insert=True)
            stage.broker.advance(5)
            assert stage.over(result.id).status == "SUCCESSFUL"


def test_a_message_of_the_outbox_without_a_row_becomes_a_dead_letter(stage: Stage) -> None:
    calls.add.enqueue(1)
    TaskRecord.objects.all().delete()
    stage.run(calls.add.enqueue(2))
    (dead,) = stage.broker.dead("tasks")
    assert dead.error.startswith("TaskRecordMissing")


def test_a_task_of_the_far_future_is_sent_on(stage: Stage) -> None:
    result = calls.add.using(run_after=datetime.now(UTC) + timedelta(days=500)).enqueue(1)
    OutboxMessage.objects.update(deliver_at_ms=None)  # as if a year had passed
    with stage.worker():
        until(lambda: len(stage.broker.seen(PUBLISH)) == 2)
    assert record(result.id).status == "READY" and calls.done == []


@pytest.mark.one_engine
def test_without_rows_tasks_run_and_are_repeated_all_the_same(stage: Stage) -> None:
    with with_options(RESULTS="none"):
        stage.settings = find_settings("default")
        calls.fail.enqueue("no row")
        with stage.worker():
            until(lambda: len(calls.done) == 3)
        assert TaskRecord.objects.count() == 0
        with pytest.raises(NotImplementedError):
            calls.add.get_result("x")


@pytest.mark.one_engine
def test_a_worker_says_that_it_works_in_its_health_file(
    stage: Stage, tmp_path: Path
) -> None:
    path = tmp_path / "health"
    with stage.worker(health_file=str(path), worker_id="me"):
        until(path.exists)
        assert json.loads(path.read_text())["worker"] == "me"
    assert not path.exists()


def test_a_batch_ends_when_nothing_is_left_and_so_many_tasks_may_be_asked_for(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("catmq_client.contrib.django_tasks.working.worker.EMPTY_S", 0.3)
    made = [calls.add.enqueue(n) for n in range(3)]
    with stage.worker(max_tasks=1) as running:
        running.join()
    assert len(calls.done) == 1
    with stage.worker(batch=True) as running:
        running.join()
    assert [record(one.id).status for one in made] == ["SUCCESSFUL"] * 3


def test_the_migrations_make_what_the_models_say(stage: Stage) -> None:
    call_command("makemigrations", "catmq_tasks", "--check", "--dry-run", verbosity=0)
