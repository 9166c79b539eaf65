"""Settings, fields and messages of tasks."""

from __future__ import annotations

import json
import math
import pickle
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings
from hypothesis import given
from hypothesis import strategies as st

from catmq_client.contrib.django_tasks import checks, conf
from catmq_client.contrib.django_tasks.jobs import (
    TOKENS_A_MESSAGE,
    Job,
    WrongMessage,
    build_message,
    parse,
    to_json_types,
)
from catmq_client.contrib.django_tasks.task import (
    TaskMissing,
    copy_unchecked,
    find_task,
    may_import,
)
from catmq_client.contrib.django_tasks.working import records
from catmq_client.contrib.django_tasks.working.upkeep import find_settings
from tests.support.tasking import calls
from tests.support.tasking.stage import with_options


@pytest.mark.parametrize(
    ("lanes", "suffixes"),
    [
        ([[-100, 100]], [""]),
        ([[-100, -1], [0, 0], [1, 100]], [".high", "", ".low"]),
        ([[-100, -51], [-50, -1], [0, 100]], ["", ".low1", ".low2"]),
    ],
)
def test_lanes_are_called_by_their_place(lanes: Any, suffixes: list[str]) -> None:
    assert [lane.suffix for lane in conf.name_lanes(lanes)] == suffixes


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
    found = [*checks.check_backend("default", ["default"], options)]
    assert [one.id for one in found] == [f"catmq_tasks.{name}" for name in ids]
    assert all(one.hint for one in found)


def test_checks_name_missing_apps_and_wrong_brokers() -> None:
    with override_settings(INSTALLED_APPS=[], CATMQ_OUTBOX={"URL": 1}):
        found = [*checks.check_backend("default", ["default"], {})]
    assert [one.id for one in found] == [
        "catmq_tasks.E001",
        "catmq_tasks.E002",
        "catmq_tasks.E003",
    ]


class _Apart:
    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return "other" if model._meta.app_label == "catmq_outbox" else None


def test_checks_name_a_router_that_takes_tasks_and_messages_apart() -> None:
    with override_settings(DATABASE_ROUTERS=[_Apart()]):
        assert [one.id for one in checks.check_backend("default", ["default"], {})] == [
            "catmq_tasks.E008"
        ]


@pytest.mark.parametrize("other", ["Default", "défault", "default "])
def test_backends_that_a_collation_takes_for_the_same_are_named(other: str) -> None:
    backend = {"BACKEND": "catmq_client.contrib.django_tasks.CatmqBackend"}
    with override_settings(TASKS={"default": backend, other: backend, "another": backend}):
        assert [one.id for one in checks.check_backend("default", ["default"], {})] == [
            "catmq_tasks.E010"
        ]


@pytest.mark.parametrize("other", ["Mails", "máils", "MÁILS"])
def test_queues_that_a_collation_takes_for_the_same_are_named(other: str) -> None:
    errors = checks.check_backend("default", ["mails", "default", other], {})
    # A queue with an accent is no valid topic either (E009).
    (error,) = [error for error in errors if error.id == "catmq_tasks.E011"]
    first, second = sorted(["mails", other])
    assert error.msg == (
        f"The queues {first!r} and {second!r} of TASKS['default'] differ only in capitals, "
        "accents or blanks at the end."
    )


def test_a_task_is_found_by_the_path_of_its_function() -> None:
    assert find_task("tests.support.tasking.calls._named_otherwise") is calls.another
    for path in ("tests.support.tasking.calls.another", "tests.nothing.x", "", "os.system"):
        with pytest.raises(TaskMissing):
            find_task(path)


def test_a_restored_task_is_not_validated() -> None:
    gone = copy_unchecked(calls.add, queue_name="a queue of an earlier release")
    assert (
        gone.queue_name == "a queue of an earlier release" and gone.func is calls.add.func
    )
    assert copy_unchecked(calls.add) == calls.add
    assert calls.fail.using(priority=3).max_attempts == 3


def test_a_job_is_the_same_when_it_is_read_again() -> None:
    job = Job(
        id="a", path="p", args=[1, "ä"], kwargs={"k": None}, backend="default", queue="q",
        priority=-1,
        max_attempts=3, run_after_ms=7, timeout=5,
    )  # fmt: skip
    assert parse(job.body()) == job
    assert pickle.loads(pickle.dumps(job)) == job
    with pytest.raises(WrongMessage, match="of version 2"):
        parse(job.body().replace(b'"v":1', b'"v":2'))
    assert parse(job.body().replace(b'"v":1', b'"v":1,"new":3')) == job


JOB = {
    "v": 1, "id": "a1", "path": "m.f", "args": [1], "kwargs": {"k": 1}, "backend": "default",
    "queue": "default", "priority": 0, "max_attempts": 3, "timeout": None, "run_after_ms": None,
    "enqueued_at_ms": 1, "token": 0, "attempts": 0, "waits": 0, "is_direct": False,
}  # fmt: skip
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.just(10**30),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


@given(
    changes=st.dictionaries(
        st.sampled_from(sorted(JOB)), json_values, min_size=1, max_size=3
    )
)
def test_a_message_of_any_shape_is_refused_or_can_be_worked_with(
    changes: dict[str, Any],
) -> None:
    try:
        job = parse(json.dumps(JOB | changes).encode())
    except WrongMessage as error:
        assert str(error).encode()
        return
    later = job.next_job(
        above=job.delivery_token(attempt=15, deliveries=60_000), attempts=job.attempts
    )
    build_message(job, due_ms=job.run_after_ms), build_message(later, due_ms=5)
    record = records.build_record(job, worker_ids=["?"] * job.attempts)
    assert find_settings("default").topic(record.queue_name, record.priority)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"v": ' + b"9" * 5_000 + b"}",
        json.dumps(JOB | {"args": json.loads("[" * 102 + "]" * 102)}).encode(),
        json.dumps(JOB | {"args": [math.nan]}).encode(),
        json.dumps(JOB | {"args": [[-math.inf]]}).encode(),
        json.dumps(JOB).replace("[1]", "[1e999]").encode(),
        json.dumps(JOB | {"kwargs": {"k": ["\ud800"]}}).encode(),
        json.dumps(JOB | {"attempts": 10**9}).encode(),
        json.dumps(JOB | {"path": "m.\0"}).encode(),
        json.dumps(JOB | {"path": "m.\ud800"}).encode(),
        json.dumps(JOB | {"enqueued_at_ms": 10**20}).encode(),
        json.dumps(JOB | {"priority": 101}).encode(),
    ],
)
def test_a_body_that_would_fail_later_is_no_message_of_a_task(body: bytes) -> None:
    with pytest.raises(WrongMessage):
        parse(body)


def test_arguments_that_are_nested_too_deep_are_refused_when_a_task_is_enqueued() -> None:
    deep = Job(
        **{name: value for name, value in JOB.items() if name != "v"}
        | {"args": [[[]] * 100]}
    )  # type: ignore[arg-type]
    assert parse(deep.body()) == deep
    value: list[Any] = []
    for _ in range(5_000):
        value = [value]
    with pytest.raises(ValueError, match="nested too deep"):
        to_json_types(value, "the arguments")
    with pytest.raises(ValueError, match="nested deeper than 100 levels"):
        replace(deep, args=json.loads("[" * 101 + "]" * 101)).body()


def test_a_message_cannot_make_a_worker_import_any_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "of_nobody.py").write_text("raise LookupError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        TaskMissing, match="name 'of_nobody', or its package, in TASK_MODULES"
    ):
        find_task("of_nobody.task")
    assert "of_nobody" not in sys.modules
    for options in (
        {"TASK_MODULES": ["of_nobody"]},
        {"SCHEDULES": {"s": {"task": "of_nobody.x", "every": 5}}},
    ):
        with (
            with_options(**options),
            pytest.raises(TaskMissing, match=r"cannot be imported: .*imported"),
        ):
            find_task("of_nobody.task")


def test_modules_of_apps_and_of_the_settings_package_are_imported_for_tasks() -> None:
    names = (
        "metadata",
        "metadata.x",
        "tests.a.b",
        "metadatas.x",
        "os",
        "",
        "django.contrib.admin.tasks",
    )
    assert [may_import(name) for name in names] == [
        True,
        True,
        True,
        False,
        False,
        False,
        True,
    ]


def test_the_tokens_of_a_later_message_are_above_those_of_an_earlier_one() -> None:
    job = Job(
        id="a",
        path="p",
        args=[],
        kwargs={},
        backend="b",
        queue="q",
        priority=0,
        max_attempts=3,
    )
    last = job.delivery_token(attempt=2, deliveries=900)
    assert (
        job.next_job(above=last).token
        > last
        > job.delivery_token(attempt=2, deliveries=899)
    )
    assert job.next_job(above=0).token == TOKENS_A_MESSAGE
