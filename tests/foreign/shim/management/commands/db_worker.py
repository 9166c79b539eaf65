"""db_worker: runs a batch with the worker of CatmqBackend, and a broker in memory."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from catmq_client.contrib.django_tasks.working import worker
from catmq_client.contrib.django_tasks.working.upkeep import find_settings
from catmq_client.testing import FakeBroker

worker.EMPTY_S = 0.15
broker: list[FakeBroker] = []


class Command(BaseCommand):
    """Takes what tests give to the command of django-tasks-db."""

    stealth_options = (
        *(
            "backend_name",
            "batch",
            "exclude_queues",
            "interval",
            "max_tasks",
            "queue_name",
            "startup_delay",
        ),
        "worker_id",
    )

    def handle(self, *args: Any, **options: Any) -> None:
        if options.get("backend_name", "default") == "dummy":
            return
        settings = find_settings("default")
        if not broker:
            broker.append(FakeBroker())
            for topic in settings.topics():
                broker[0].create_topic(topic, queues=1)
                broker[0].subscribe(settings.group, topic, mode="share", max_deliveries=0)
        queues = options.get("queue_name", "default").split(",")
        queues = [*settings.queues] if queues == ["*"] else queues
        queues = [
            one for one in queues if one not in options.get("exclude_queues", "").split(",")
        ]
        given = worker.WorkerOptions(
            threads=1,
            queues=tuple(queues),
            batch=True,
            max_tasks=options.get("max_tasks"),
            worker_id=options.get("worker_id"),
            relay_poll_ms=5,
        )
        worker.Worker(settings, broker[0], given).run()
        if options.get("max_tasks"):
            self.stdout.write(f"Run maximum tasks ({options['max_tasks']})")
