"""Enqueues tasks on each system as its users do, and counts those that have ended."""

from __future__ import annotations

from typing import Any, Protocol

from benchmarks.tasking import calls


class System(Protocol):
    """A queue of tasks."""

    def one(self, number: int) -> None:
        """Enqueue a task that does nothing."""
        ...

    def many(self, count: int) -> None:
        """Enqueue so many of them in the fastest way that the system has."""
        ...

    def stamp(self, path: str, sent_at: float) -> None:
        """Enqueue the task that writes down when it began."""
        ...

    def ended(self) -> int:
        """Return how many have ended well."""
        ...


class Catmq:
    def one(self, number: int) -> None:
        calls.noop.enqueue(number)

    def many(self, count: int) -> None:
        calls.noop.enqueue_many([(number,) for number in range(count)])

    def stamp(self, path: str, sent_at: float) -> None:
        calls.stamp.enqueue(path, sent_at)

    def ended(self) -> int:
        from catmq_client.contrib.django_tasks.models import TaskRecord

        return int(TaskRecord.objects.filter(status="SUCCESSFUL").count())


class TasksDb:
    """django-tasks-db: it has no verb for many, so all go in one transaction."""

    def one(self, number: int) -> None:
        calls.noop.enqueue(number)

    def many(self, count: int) -> None:
        from django.db import transaction

        with transaction.atomic():
            for number in range(count):
                calls.noop.enqueue(number)

    def stamp(self, path: str, sent_at: float) -> None:
        calls.stamp.enqueue(path, sent_at)

    def ended(self) -> int:
        from django_tasks_db.models import DBTaskResult

        return int(DBTaskResult.objects.filter(status="SUCCESSFUL").count())


class Q2:
    """django-q2 with its ORM broker: it has no verb for many, so all go in one transaction."""

    def one(self, number: int) -> None:
        from django_q.tasks import async_task

        async_task("benchmarks.tasking.calls.noop", number)

    def many(self, count: int) -> None:
        from django.db import transaction

        with transaction.atomic():
            for number in range(count):
                self.one(number)

    def stamp(self, path: str, sent_at: float) -> None:
        from django_q.tasks import async_task

        async_task("benchmarks.tasking.calls.stamp", path, sent_at)

    def ended(self) -> int:
        from django_q.models import Success

        return int(Success.objects.count())


class CeleryRedis:
    """Celery with Redis as broker and for results: many by one producer, as Celery advises."""

    def one(self, number: int) -> None:
        calls.noop.delay(number)

    def many(self, count: int) -> None:
        with calls.app.producer_pool.acquire(block=True) as producer:
            for number in range(count):
                calls.noop.apply_async((number,), producer=producer)

    def stamp(self, path: str, sent_at: float) -> None:
        calls.stamp.delay(path, sent_at)

    def ended(self) -> int:
        client: Any = calls.app.backend.client
        return int(client.dbsize())


SYSTEMS: dict[str, type[System]] = {
    "catmq": Catmq,
    "django-tasks-db": TasksDb,
    "django-q2": Q2,
    "celery": CeleryRedis,
}
