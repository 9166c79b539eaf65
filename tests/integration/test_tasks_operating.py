"""Operators' and testers' side of tasks: commands, admin, schedules, clean-up, run_tasks()."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import AnonymousUser, User
from django.contrib.messages.storage.base import BaseStorage
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import connections, transaction
from django.test import RequestFactory, override_settings
from django.utils import timezone

from catmq_client import Producer
from catmq_client.contrib.django_outbox.models import OutboxMessage
from catmq_client.contrib.django_tasks.admin import TaskRecordAdmin
from catmq_client.contrib.django_tasks.models import TaskRecord, TaskSchedule
from catmq_client.contrib.django_tasks.testing import TaskFailed, run_tasks
from catmq_client.contrib.django_tasks.working import schedules, upkeep
from tests.support.tasking import calls
from tests.support.tasking.stage import Stage, record, staged, with_options
from tests.support.waiting import until


def in_an_hour() -> datetime:
    return datetime.now(UTC) + timedelta(hours=1)


EVERY_MINUTE = {"task": "tests.support.tasking.calls.add", "every": 60, "args": [1]}


@pytest.fixture
def stage(django_db_setup: None, django_db_blocker: Any) -> Iterator[Stage]:
    with django_db_blocker.unblock(), staged() as made:
        yield made


def say(*words: str) -> str:
    """Return what catmq_tasks says."""
    out = StringIO()
    call_command("catmq_tasks", *words, stdout=out)
    return out.getvalue()


# run_tasks().


def test_tasks_run_in_the_test_with_those_that_they_enqueue_by_priority(
    stage: Stage,
) -> None:
    calls.add.enqueue(1)
    calls.add.using(priority=7).enqueue(2)
    calls.mail.using(priority=-1).enqueue("low")
    assert [result.return_value for result in run_tasks()] == [3, 2, "low"]
    assert OutboxMessage.objects.count() == 0


@pytest.mark.one_engine
def test_callbacks_of_a_transaction_that_never_ends_are_called_first(stage: Stage) -> None:
    with transaction.atomic():
        transaction.on_commit(lambda: calls.add.enqueue(1))
        (result,) = run_tasks()
    assert result.return_value == 2


def test_only_what_is_due_runs(stage: Stage) -> None:
    calls.add.using(run_after=datetime.now(UTC) + timedelta(hours=1)).enqueue(1)
    failing = calls.fail_slowly.enqueue()
    assert [result.status for result in run_tasks()] == ["READY"]
    assert [result.status for result in run_tasks(after=timedelta(minutes=1))] == ["FAILED"]
    assert failing.id == record(failing.id).pk and len(record(failing.id).errors) == 2
    assert [result.return_value for result in run_tasks(after=timedelta(hours=2))] == [2]


@pytest.mark.one_engine
def test_queues_and_numbers_may_be_asked_for_and_failures_raised(stage: Stage) -> None:
    for n in range(3):
        calls.add.enqueue(n)
    calls.mail.enqueue("a@b.c")
    assert len(run_tasks(queues=["mails"])) == 1
    assert len(run_tasks(max_tasks=2)) == 2
    calls.fail.enqueue("oh")
    with pytest.raises(TaskFailed, match="LookupError: oh"):
        run_tasks(raise_failures=True)


@pytest.mark.one_engine
def test_run_tasks_says_if_tasks_are_not_in_the_outbox(stage: Stage) -> None:
    with with_options(SEND="direct"), pytest.raises(ImproperlyConfigured, match="SEND"):
        run_tasks()


# Commands.


def test_tasks_are_counted_retried_and_discarded(stage: Stage) -> None:
    failed, other, waiting = (
        calls.leave.enqueue(),
        calls.leave.enqueue(),
        calls.mail.enqueue("x"),
    )
    run_tasks(queues=["default"])
    counts, outbox = "default  FAILED  2\nmails  READY  1\n", "outbox: 1 wait, 0 refused\n"
    since = (
        "mails: the oldest task that is due was enqueued at "
        f"{waiting.enqueued_at:%Y-%m-%d %H:%M}\n"
    )
    assert say("status") == counts + since + outbox
    assert say("discard", waiting.id, other.id) == "2 tasks are discarded\n"
    assert run_tasks() == [] and calls.done == [], "what is discarded does not run"
    assert say("retry", failed.id) == "1 tasks get one more attempt\n"
    with pytest.raises(CommandError, match="1 tasks were left"):
        say("retry", failed.id)
    assert [result.status for result in run_tasks()] == ["FAILED"], (
        "one more attempt, and no second"
    )
    assert record(failed.id).worker_ids == ["run_tasks"] * 2
    waiting.refresh()
    assert waiting.status == "FAILED" and record(waiting.id).status == "DISCARDED"


def test_tasks_whose_messages_are_gone_are_sent_again_and_run_once(stage: Stage) -> None:
    """No worker came for longer than the topic keeps messages that no active group has
    read.
    """
    old, later = calls.add.enqueue(1), calls.add.using(run_after=in_an_hour()).enqueue(2)
    TaskRecord.objects.update(enqueued_at=datetime.now(UTC) - timedelta(days=40))
    young = calls.add.enqueue(3)
    gone = bytes(OutboxMessage.objects.order_by("id")[0].body)
    OutboxMessage.objects.all().delete()
    assert "default: the oldest task that is due was enqueued at" in say("status")
    with pytest.raises(CommandError, match="'x' is no number of days"):
        say("resend", "--older-than", "x")
    assert say("resend", "--older-than", "30") == "1 tasks are sent again\n"
    with Producer(transport=stage.broker) as producer:
        producer.send("tasks.default", gone)  # it was there after all
    assert stage.run(old)[0].status == "SUCCESSFUL" and calls.done == [2]
    assert [record(one.id).status for one in (later, young)] == ["READY", "READY"]


@pytest.mark.one_engine
def test_a_worker_that_starts_names_queues_whose_messages_may_be_gone(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = calls.mail.enqueue("a@example.com"), calls.add.enqueue(1)
    TaskRecord.objects.filter(pk=old.id).update(
        enqueued_at=timezone.now() - timedelta(days=8)
    )
    OutboxMessage.objects.all().delete()
    with stage.worker():
        until(lambda: "catmq_tasks resend sends such tasks again" in caplog.text)
    assert "queue mails has a task" in caplog.text
    assert "queue default" not in caplog.text and record(new.id).status == "READY"


def test_a_task_is_retried_by_one_operator_only(stage: Stage) -> None:
    failed = calls.leave.enqueue()
    run_tasks()
    gate = threading.Barrier(2)

    def retry() -> int:
        gate.wait(10)
        try:
            return upkeep.retry(stage.settings, [failed.id])
        finally:
            connections.close_all()

    with ThreadPoolExecutor(2) as pool:
        assert sum(one.result() for one in [pool.submit(retry), pool.submit(retry)]) == 1
    assert OutboxMessage.objects.count() == 1


def test_old_tasks_are_deleted_and_no_others(stage: Stage) -> None:
    old, failed, young = calls.add.enqueue(1), calls.leave.enqueue(), calls.add.enqueue(2)
    ready = calls.mail.enqueue("x")
    run_tasks(queues=["default"])
    long_ago = datetime.now(UTC) - timedelta(days=15)
    TaskRecord.objects.filter(pk__in=[old.id, failed.id]).update(finished_at=long_ago)
    assert say("prune") == "1 tasks deleted\n"
    assert {*TaskRecord.objects.values_list("pk", flat=True)} == {
        failed.id,
        young.id,
        ready.id,
    }
    TaskRecord.objects.filter(pk=failed.id).update(
        finished_at=long_ago - timedelta(days=90)
    )
    assert upkeep.prune(stage.settings) == 1


@pytest.mark.one_engine
@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("catmq_tasks", "status", "--backend", "none"), "--backend none"),
        (("catmq_worker", "--threads", "0"), "--threads"),
        (("catmq_worker", "--queues", "default,nothing"), "nothing is no queue"),
        (("catmq_worker", "--exclude", "default,mails"), "no queue is left"),
        (("catmq_worker", "--drain-s", "-1"), "--drain-s"),
    ],
)
def test_wrong_usage_is_named(stage: Stage, words: tuple[str, ...], named: str) -> None:
    with pytest.raises(CommandError, match=named) as raised:
        call_command(*words)
    assert raised.value.returncode == 2


# Admin.


class _Said(BaseStorage):
    def _get(self, *args: Any, **kwargs: Any) -> Any:
        return [], True


@pytest.mark.one_engine
def test_the_admin_shows_errors_and_acts_for_those_who_may(stage: Stage) -> None:
    failed = calls.fail.enqueue("<b>oh</b>")
    run_tasks()
    page = TaskRecordAdmin(TaskRecord, admin.site)
    request: Any = RequestFactory().post("/")
    request.user = User(is_superuser=True, is_active=True)
    request._messages = _Said(request)
    assert page.has_act_permission(request) and not page.has_delete_permission(request)
    shown = page.tracebacks(record(failed.id))
    assert shown.count("LookupError: &lt;b&gt;oh") == 3 and "<b>" not in shown
    page.retry(request, TaskRecord.objects.all())
    page.discard(request, TaskRecord.objects.all())
    page.discard(request, TaskRecord.objects.all())
    said = [str(message) for message in request._messages._queued_messages]  # type: ignore[attr-defined]
    assert said == [
        "1 tasks get one more attempt.",
        "1 tasks are discarded.",
        "0 tasks are discarded; 1 have another status and are left.",
    ]
    request.user = AnonymousUser()
    assert not page.has_act_permission(request) and not page.has_view_permission(request)
    with override_settings(CATMQ_PORTAL_URL="https://portal/"):
        assert 'href="https://portal/messages/tasks.default/' in page.message(
            record(failed.id)
        )


# Schedules.


def due(seconds: float = 1.0) -> None:
    """Let all schedules have been due for some time."""
    TaskSchedule.objects.update(due_at=datetime.now(UTC) - timedelta(seconds=seconds))


@pytest.mark.one_engine
def test_a_schedule_waits_for_its_first_time_and_runs_once_at_each(stage: Stage) -> None:
    with with_options(SCHEDULES={"minutely": EVERY_MINUTE}):
        mine = schedules.Schedules(upkeep.find_settings("default"))
        assert 0 < mine.run_due() <= 30 and TaskRecord.objects.count() == 0
        due()
        assert mine.run_due() <= 30 and mine.run_due() <= 30
        assert [result.return_value for result in run_tasks()] == [2]
        due(3_600 * 24)
        mine.run_due()
        assert len(run_tasks()) == 1, "of the times that were missed, one is made up for"
        assert TaskSchedule.objects.get().due_at > datetime.now(UTC)


def test_schedules_whose_names_differ_in_capitals_only_each_run(stage: Stage) -> None:
    names = ("nightly", "Nightly", "nightly ", "nightlý")
    with with_options(SCHEDULES=dict.fromkeys(names, EVERY_MINUTE)):
        mine = schedules.Schedules(upkeep.find_settings("default"))
        mine.run_due()
        assert sorted(TaskSchedule.objects.values_list("pk", flat=True)) == sorted(
            f"default:{name}" for name in names
        )
        due()
        mine.run_due()
        assert TaskRecord.objects.count() == len(names)


def test_of_many_workers_one_enqueues(stage: Stage) -> None:
    with with_options(SCHEDULES={"minutely": EVERY_MINUTE}):
        settings = upkeep.find_settings("default")
        schedules.Schedules(settings).run_due()
        due()
        gate = threading.Barrier(4)

        def run() -> None:
            gate.wait(10)
            schedules.Schedules(settings).run_due()
            connections.close_all()

        with ThreadPoolExecutor(4) as pool:
            for one in [pool.submit(run) for _ in range(4)]:
                one.result()
        assert TaskRecord.objects.count() == OutboxMessage.objects.count() == 1


@pytest.mark.one_engine
def test_a_changed_rule_waits_for_its_next_time(stage: Stage) -> None:
    with with_options(SCHEDULES={"n": EVERY_MINUTE}):
        schedules.Schedules(upkeep.find_settings("default")).run_due()
    due()
    with with_options(
        SCHEDULES={"n": {"task": EVERY_MINUTE["task"], "cron": "0 3 * * *", "args": [1]}}
    ):
        schedules.Schedules(upkeep.find_settings("default")).run_due()
    assert (
        TaskRecord.objects.count() == 0 and TaskSchedule.objects.get().rule == "0 3 * * *"
    )


@pytest.mark.one_engine
def test_a_schedule_that_cannot_run_is_told_once_and_hinders_no_other(
    stage: Stage,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (tmp_path / "raising.py").write_text("raise RuntimeError('no')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    wrong = {
        "gone": {"task": "gone.task", "every": 5},
        "raising": {"task": "raising.task", "every": 5},
        "queue": {**EVERY_MINUTE, "queue": "nothing"},
    }
    with with_options(SCHEDULES={**wrong, "good": EVERY_MINUTE}):
        mine = schedules.Schedules(upkeep.find_settings("default"))
        mine.run_due()
        due()
        mine.run_due()
        mine.run_due()
    assert TaskRecord.objects.count() == 1
    told = [
        one.getMessage() for one in caplog.records if "does not run" in one.getMessage()
    ]
    assert len(told) == 3 and "gone.task" in told[0] and "RuntimeError('no')" in told[1]
    assert "'nothing'" in told[2]


@pytest.mark.one_engine
def test_a_worker_runs_schedules(stage: Stage) -> None:
    with with_options(SCHEDULES={"often": {**EVERY_MINUTE, "every": 1}}):
        stage.settings = upkeep.find_settings("default")
        with stage.worker() as running:
            stage.until_done(2)
        assert running.error is None
