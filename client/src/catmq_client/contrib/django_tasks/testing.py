"""For tests of applications: run the tasks that are due, in the thread and the transaction
of the test.

    from catmq_client.contrib.django_tasks.testing import run_tasks

    class OrderTests(TestCase):
        def test_an_order_sends_a_mail(self):
            place_order("alice")
            run_tasks()
            self.assertEqual(len(mail.outbox), 1)

No broker, relay or worker is needed: tasks are taken from the outbox, where they wait.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import transaction

from catmq_client.contrib.django_outbox.models import OutboxMessage
from catmq_client.contrib.django_tasks.conf import TaskSettings
from catmq_client.contrib.django_tasks.jobs import Job, alias_of, now_ms, parse
from catmq_client.contrib.django_tasks.models import TaskRecord
from catmq_client.contrib.django_tasks.task import AnyResult
from catmq_client.contrib.django_tasks.working.execution import Execution
from catmq_client.contrib.django_tasks.working.upkeep import settings_of

WORKER = "run_tasks"
# More than a test means: tasks that enqueue each other for ever.
MOST_TASKS = 10_000


class TaskFailed(AssertionError):
    """A task failed in run_tasks(raise_failures=True); the text has its last traceback."""


@dataclass(slots=True)
class _Taken:
    """A message of the outbox, as a worker would get it."""

    job: Job
    message_id: str
    attempt: int = 0
    deliveries: int = 1

    @property
    def body(self) -> bytes:
        return self.job.body()

    def accept(self) -> bool:
        return True

    def release(self) -> bool:
        raise AssertionError(
            f"task {self.job.id} could not be run: see the log of catmq.tasks"
        )

    def reject(self, error: BaseException | str = "") -> bool:
        raise AssertionError(f"task {self.job.id} would be a dead letter: {error}")


def run_tasks(
    *,
    backend: str = "default",
    queues: Iterable[str] | None = None,
    max_tasks: int | None = None,
    raise_failures: bool = False,
    after: timedelta = timedelta(0),
) -> list[AnyResult]:
    """Run the tasks that are due, those that they enqueue as well, and return the result of
    each attempt.

    In the order in which they were enqueued, those of a higher priority first. Callbacks of
    on_commit that wait for the end of the test's transaction are called first. A task that
    failed and is to be begun again is due after its pause, and one with run_after at its
    time: `after` runs what will be due then.
    """
    settings = replace(settings_of(backend), missing_task_s=0)
    if settings.send != "outbox":
        raise ImproperlyConfigured(
            f"run_tasks: set SEND to 'outbox' in the tests, not {settings.send!r}"
        )
    wanted, done = set(settings.queues if queues is None else queues), list[AnyResult]()
    execution = Execution(
        settings, WORKER, on_end=lambda record: done.append(_result(record)), is_test=True
    )
    until_ms = now_ms() + int(after.total_seconds() * 1000)
    for _ in range(MOST_TASKS if max_tasks is None else max_tasks):
        _call_on_commit(alias_of(settings))
        taken = _take(settings, wanted, until_ms)
        if taken is None:
            return done
        before = len(done)
        execution.handle(taken)
        for result in done[before:] if raise_failures else ():
            if result.errors and result.status != "SUCCESSFUL":
                raise TaskFailed(
                    f"task {result.task.module_path} failed:\n{result.errors[-1].traceback}"
                )
    if max_tasks is None:
        raise AssertionError(
            f"{MOST_TASKS} tasks were run, and there are more: do they enqueue each other?"
        )
    return done


def _result(record: TaskRecord) -> AnyResult:
    return record.result(record.task)


def _take(settings: TaskSettings, queues: set[str], until_ms: int) -> _Taken | None:
    """Take the next message that is due out of the outbox."""
    topics = {topic: rank for rank, topic in enumerate(settings.topics(sorted(queues)))}
    lanes = {topic: rank // len(queues) for topic, rank in topics.items()}
    rows = OutboxMessage.objects.using(alias_of(settings)).filter(topic__in=topics)
    due = [row for row in rows.order_by("id") if (row.deliver_at_ms or 0) <= until_ms]
    if not due:
        return None
    first = min(due, key=lambda row: (lanes[row.topic], row.pk))
    first_id = first.pk
    first.delete()
    job = parse(bytes(first.body))
    # It is due, whatever the clock says.
    return _Taken(replace(job, run_after_ms=None), f"outbox-{first_id}")


def _call_on_commit(alias: str) -> None:
    """Call what waits for the commit of a test's transaction, which never comes."""
    connection: Any = transaction.get_connection(alias)
    while connection.in_atomic_block and connection.run_on_commit:
        _, call, _ = connection.run_on_commit.pop(0)
        call()
