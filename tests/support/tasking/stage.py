"""Tasks in the test database, a broker in memory, and workers in this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections
from django.test import override_settings

from catmq_client.contrib.django_outbox.claims import Claims
from catmq_client.contrib.django_outbox.relay import Relay
from catmq_client.contrib.django_tasks.connections import use_transport
from catmq_client.contrib.django_tasks.models import TaskRecord, TaskSchedule
from catmq_client.contrib.django_tasks.working.upkeep import find_settings
from catmq_client.contrib.django_tasks.working.worker import Worker, WorkerOptions
from catmq_client.testing import FakeBroker
from tests.support import outboxes
from tests.support.tasking import calls
from tests.support.waiting import until

LIMIT_S = 15.0


def forget_all() -> None:
    outboxes.forget_all()
    calls.forget()
    for model in (TaskRecord, TaskSchedule):
        model.objects.all().delete()


def record(task_id: str) -> TaskRecord:
    return TaskRecord.objects.get(pk=task_id)


def with_options(**options: Any) -> Any:
    """Override the default backend with other OPTIONS."""
    backend = "catmq_client.contrib.django_tasks.CatmqBackend"
    return override_settings(
        TASKS={
            "default": {
                "BACKEND": backend,
                "QUEUES": ["default", "mails"],
                "OPTIONS": options,
            }
        }
    )


class Stage:
    """A broker with the topics of the default backend, which its share group reads."""

    def __init__(self) -> None:
        self.settings = find_settings("default")
        self.broker = FakeBroker()
        for topic in self.settings.topics():
            self.broker.create_topic(topic, queues=1)
            self.broker.subscribe(
                self.settings.group, topic, mode="share", max_deliveries=0
            )

    def relay(self) -> None:
        """Send everything in the outbox."""
        claims = Claims("test")
        assert claims.acquire() == ""
        relay = Relay(self.broker, claims)
        while relay.run_once().advanced:
            pass
        claims.release()

    @contextmanager
    def worker(self, **options: Any) -> Iterator[RunningWorker]:
        """Run a worker in a thread during the block."""
        settings = {"threads": 2, "relay_poll_ms": 10, "drain_s": 5.0, **options}
        running = RunningWorker(
            Worker(self.settings, self.broker, WorkerOptions(**settings))
        )
        try:
            yield running
        finally:
            calls.may_leave.set()
            running.end()

    def over(self, task_id: str) -> TaskRecord:
        """Wait until a task has ended, and return its row."""
        until(lambda: record(task_id).is_over, limit_s=LIMIT_S)
        return record(task_id)

    def until_done(self, count: int) -> None:
        """Wait until tasks have recorded `count` results."""
        until(lambda: len(calls.done) >= count, limit_s=LIMIT_S)

    def run(self, *results: Any, **options: Any) -> list[TaskRecord]:
        """Run tasks to their end in a worker, and return their rows."""
        with self.worker(**options):
            return [self.over(result.id) for result in results]


class RunningWorker:
    """A worker in a thread. `error` is the exception that ended it."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.worker.run()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error
        finally:
            connections.close_all()

    def end(self) -> None:
        self.worker.stop()
        self.join()

    def join(self) -> None:
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()


@contextmanager
def staged() -> Iterator[Stage]:
    """Yield a stage whose tables are empty before and after the test."""
    forget_all()
    stage = Stage()
    try:
        with use_transport(stage.broker):
            yield stage
    finally:
        forget_all()
        connections.close_all()
