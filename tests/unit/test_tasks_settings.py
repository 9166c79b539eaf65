"""Settings, fields and messages of tasks."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from django.test import override_settings

from catmq_client.contrib.django_tasks import checks, conf
from catmq_client.contrib.django_tasks.jobs import TOKENS_A_MESSAGE, Job, WrongMessage, parse
from catmq_client.contrib.django_tasks.task import TaskMissing, find_task, restored
from tests.support.tasking import calls


@pytest.mark.parametrize(
    ("lanes", "suffixes"),
    [
        ([[-100, 100]], [""]),
        ([[-100, -1], [0, 0], [1, 100]], [".high", "", ".low"]),
        ([[-100, -51], [-50, -1], [0, 100]], ["", ".low1", ".low2"]),
    ],
)
def test_lanes_are_called_by_their_place(lanes: Any, suffixes: list[str]) -> None:
    assert [lane.suffix for lane in conf.named_lanes(lanes)] == suffixes


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ({}, []),
        ({"PRIORITY_LANES": [[-100, 0]]}, ["E004"]),
        ({"PRIORITY_LANES": "high"}, ["E004"]),
        ({"MAX_ATTEMPTS": 1000}, ["E005"]),
        ({"SCHEDULES": {"n": {"task": "gone.task", "every": 5}}}, ["E006"]),
        ({"SCHEDULES": []}, ["E006"]),
        ({"RESULT": "none"}, ["E007"]),
        ({"GROUP": "a b"}, ["E007"]),
        ({"TOPIC_PREFIX": "-"}, ["E009"] * 3),
    ],
)
def test_checks_name_what_is_wrong(options: dict[str, Any], ids: list[str]) -> None:
    found = [*checks.of_backend("default", ["default"], options)]
    assert [one.id for one in found] == [f"catmq_tasks.{name}" for name in ids]
    assert all(one.hint for one in found)


def test_checks_name_missing_apps_and_wrong_brokers() -> None:
    with override_settings(INSTALLED_APPS=[], CATMQ_OUTBOX={"URL": 1}):
        found = [*checks.of_backend("default", ["default"], {})]
    assert [one.id for one in found] == ["catmq_tasks.E001", "catmq_tasks.E002", "catmq_tasks.E003"]


class _Apart:
    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return "other" if model._meta.app_label == "catmq_outbox" else None


def test_checks_name_a_router_that_takes_tasks_and_messages_apart() -> None:
    with override_settings(DATABASE_ROUTERS=[_Apart()]):
        assert [one.id for one in checks.of_backend("default", ["default"], {})] == ["catmq_tasks.E008"]


def test_a_task_is_found_by_the_path_of_its_function() -> None:
    assert find_task("tests.support.tasking.calls._named_otherwise") is calls.another
    for path in ("tests.support.tasking.calls.another", "tests.nothing.x", "", "os.system"):
        with pytest.raises(TaskMissing):
            find_task(path)


def test_a_restored_task_is_not_validated() -> None:
    gone = restored(calls.add, queue_name="a queue of an earlier release")
    assert gone.queue_name == "a queue of an earlier release" and gone.func is calls.add.func
    assert restored(calls.add) == calls.add
    assert calls.fail.using(priority=3).max_attempts == 3


def test_a_job_is_the_same_when_it_is_read_again() -> None:
    job = Job(
        id="a", path="p", args=[1, "ä"], kwargs={"k": None}, backend="default", queue="q", priority=-1,
        max_attempts=3, run_after_ms=7, timeout=5,
    )  # fmt: skip
    assert parse(job.body()) == job
    assert pickle.loads(pickle.dumps(job)) == job
    with pytest.raises(WrongMessage, match="of version 2"):
        parse(job.body().replace(b'"v":1', b'"v":2'))
    assert parse(job.body().replace(b'"v":1', b'"v":1,"new":3')) == job


def test_the_tokens_of_a_later_message_are_above_those_of_an_earlier_one() -> None:
    job = Job(id="a", path="p", args=[], kwargs={}, backend="b", queue="q", priority=0, max_attempts=3)
    last = job.token_of(attempt=2, deliveries=900)
    assert job.again(above=last).token > last > job.token_of(attempt=2, deliveries=899)
    assert job.again(above=0).token == TOKENS_A_MESSAGE
