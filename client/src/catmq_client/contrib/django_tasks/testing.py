"""Running tasks in an application's tests, in the thread and the transaction of the test.

    from catmq_client.contrib.django_tasks.testing import run_tasks

    class OrderTests(TestCase):
        def test_an_order_sends_a_mail(self):
            place_order("alice")
            run_tasks()
            self.assertEqual(len(mail.outbox), 1)

No broker, relay or worker is needed: run_tasks takes the messages from the outbox.
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
from catmq_client.contrib.django_tasks.jobs import Job, database_alias, now_ms, parse
from catmq_client.contrib.django_tasks.task import AnyResult
from catmq_client.contrib.django_tasks.working.execution import Execution
from catmq_client.contrib.django_tasks.working.upkeep import find_settings

WORKER = "run_tasks"
# A test that runs more has tasks that enqueue each other without end.
MAX_TASKS = 10_000


class TaskFailed(AssertionError):
    """A task failed in run_tasks(raise_failures=True). The text has its last traceback."""


@dataclass(slots=True)
class _OutboxDelivery:
    """A message of the outbox with the interface of a delivery."""

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
    """Run the tasks that are due, and the tasks that these enqueue. Return the result of each
    attempt.

    Tasks of a higher priority run first, then in the order in which they were enqueued. The
    on_commit callbacks of the test's transaction, which never commits, are called before. A
    task that failed is due again after its backoff, a task with run_after at that time;
    `after` also runs the tasks that will be due within that time. Raises TaskFailed at the
    first failed attempt if `raise_failures`.
    """
    settings = replace(find_settings(backend), missing_task_s=0)
    if settings.send != "outbox":
        raise ImproperlyConfigured(
            f"run_tasks: set SEND to 'outbox' in the tests, not {settings.send!r}"
        )
    selected = set(settings.queues if queues is None else queues)
    results: list[AnyResult] = []
    execution = Execution(
        settings,
        WORKER,
        on_end=lambda record: results.append(record.result(record.task)),
        is_test=True,
    )
    until_ms = now_ms() + int(after.total_seconds() * 1000)
    for _ in range(MAX_TASKS if max_tasks is None else max_tasks):
        # Call the on_commit callbacks of the test's transaction, which never commits.
        connection: Any = transaction.get_connection(database_alias(settings))
        while connection.in_atomic_block and connection.run_on_commit:
            _, callback, _ = connection.run_on_commit.pop(0)
            callback()
        delivery = _take_next(settings, selected, until_ms)
        if delivery is None:
            return results
        previous = len(results)
        execution.handle(delivery)
        for result in results[previous:] if raise_failures else ():
            if result.errors and result.status != "SUCCESSFUL":
                raise TaskFailed(
                    f"task {result.task.module_path} failed:\n{result.errors[-1].traceback}"
                )
    if max_tasks is None:
        raise AssertionError(
            f"{MAX_TASKS} tasks were run, and there are more: do they enqueue each other?"
        )
    return results


def _take_next(
    settings: TaskSettings, queues: set[str], until_ms: int
) -> _OutboxDelivery | None:
    """Remove the next due message from the outbox and return it. None if none is due."""
    # topics() lists all queues of the highest lane, then all of the next lane, and so on.
    topics = {topic: rank for rank, topic in enumerate(settings.topics(sorted(queues)))}
    lanes = {topic: rank // len(queues) for topic, rank in topics.items()}
    rows = OutboxMessage.objects.using(database_alias(settings)).filter(topic__in=topics)
    due_rows = [row for row in rows.order_by("id") if (row.deliver_at_ms or 0) <= until_ms]
    if not due_rows:
        return None
    next_row = min(due_rows, key=lambda row: (lanes[row.topic], row.pk))
    row_id = next_row.pk
    next_row.delete()
    # Without run_after_ms: with `after` the task runs before its time.
    job = replace(parse(bytes(next_row.body)), run_after_ms=None)
    return _OutboxDelivery(job, f"outbox-{row_id}")
