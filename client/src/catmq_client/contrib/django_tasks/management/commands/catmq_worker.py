"""manage.py catmq_worker: runs tasks, and sends the messages of the outbox to the brokers."""

from __future__ import annotations

import logging
from argparse import ArgumentParser
from dataclasses import replace
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.utils.connection import ConnectionDoesNotExist

from catmq_client.admin.api import Admin
from catmq_client.contrib.django_tasks import connections
from catmq_client.contrib.django_tasks.conf import TaskSettings
from catmq_client.contrib.django_tasks.working import processes, topology
from catmq_client.contrib.django_tasks.working.upkeep import find_settings
from catmq_client.contrib.django_tasks.working.worker import Worker, WorkerOptions
from catmq_client.errors import CatmqError, Forbidden

log: logging.Logger = logging.getLogger("catmq.tasks")


class Command(BaseCommand):
    help = (
        "Runs the tasks of a backend until SIGTERM or Ctrl-C, and sends the messages of "
        "the outbox. At the "
        "first signal no task is begun any more, and those at work may end; the second one "
        "ends it at once. "
        "Brokers and API key: CATMQ_OUTBOX in the settings, else CATMQ_URL and CATMQ_API_KEY. "
        "Exit codes: 0 done, 1 it could not go on, 2 wrong usage."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--backend",
            default="default",
            metavar="ALIAS",
            help="of TASKS (default: default)",
        )
        parser.add_argument(
            "--queues",
            metavar="A,B",
            help="only these queues (default: all of the backend)",
        )
        parser.add_argument("--exclude", metavar="A,B", help="all queues but these")
        parser.add_argument(
            "--threads",
            type=int,
            default=8,
            help="tasks at a time, in a process (default 8)",
        )
        parser.add_argument(
            "--processes", type=int, default=1, help="worker processes (default 1)"
        )
        parser.add_argument(
            "--worker-id",
            metavar="NAME",
            help="tells workers apart (default: of host and process)",
        )
        parser.add_argument("--batch", action="store_true", help="end when no task is left")
        parser.add_argument(
            "--max-tasks",
            type=int,
            metavar="N",
            help="end after so many deliveries of tasks",
        )
        parser.add_argument(
            "--no-relay", action="store_true", help="leave the outbox to other processes"
        )
        parser.add_argument(
            "--relay-poll-ms",
            type=int,
            default=50,
            metavar="MS",
            help="how often to look into the outbox, if commits are not notified (default 50)",
        )
        parser.add_argument(
            "--drain-s",
            type=float,
            default=30.0,
            metavar="S",
            help="how long tasks may take to end (default 30)",
        )
        parser.add_argument(
            "--health-file",
            metavar="PATH",
            help="written every 5 s while the process works",
        )
        parser.add_argument(
            "--no-setup", action="store_true", help="do not make missing topics and groups"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            settings = find_settings(options["backend"])
        except (ConnectionDoesNotExist, ImproperlyConfigured, ValueError) as error:
            raise CommandError(
                f"--backend {options['backend']}: {error}", returncode=2
            ) from None
        worker_options = _parse_options(options, settings)
        try:
            if not options["no_setup"]:
                self._set_up(settings)
            if options["processes"] == 1:
                self._run(settings, worker_options, in_child=False)
                return
        except CatmqError as error:
            raise CommandError(
                str(error), returncode=2 if error.code == "option" else 1
            ) from None

        def work(number: int) -> int:
            # Names and health files of the processes have to differ.
            own_options = replace(
                worker_options,
                worker_id=worker_options.worker_id
                and f"{worker_options.worker_id}-{number}",
                health_file=worker_options.health_file
                and f"{worker_options.health_file}-{number}",
            )
            try:
                self._run(settings, own_options, in_child=True)
            except CatmqError as error:
                log.error("%s", error)
                return 1
            return 0

        processes.Supervisor(
            options["processes"],
            work,
            drain_s=worker_options.drain_s,
            once=worker_options.batch or worker_options.max_tasks is not None,
        ).run()

    def _set_up(self, settings: TaskSettings) -> None:
        try:
            for line in topology.create_missing(Admin(connections.transport()), settings):
                self._say(f"made {line}")
        except Forbidden as error:
            # A worker's API key may be allowed to read only. The topics may exist all the same.
            log.warning("whether topics and groups are there was not looked at: %s", error)

    def _run(
        self, settings: TaskSettings, options: WorkerOptions, *, in_child: bool
    ) -> None:
        worker = Worker(settings, connections.transport(), options)
        processes.stop_on_signals(worker.stop)
        if in_child:
            processes.stop_with_parent(worker.stop)
        self._say(
            f"worker {worker.worker_id}: {options.threads} threads, "
            f"queues {', '.join(options.queues or settings.queues)}"
        )
        worker.run()

    def _say(self, text: str) -> None:
        self.stdout.write(text)
        self.stdout.flush()


def _parse_options(options: dict[str, Any], settings: TaskSettings) -> WorkerOptions:
    for name in ("threads", "processes", "max_tasks", "relay_poll_ms"):
        value = options[name]
        if value is not None and value < 1:
            raise CommandError(
                f"--{name.replace('_', '-')}: give a whole number, at least 1", returncode=2
            )
    if options["drain_s"] < 0:
        raise CommandError("--drain-s: give seconds, at least 0", returncode=2)
    return WorkerOptions(
        threads=options["threads"],
        queues=_select_queues(options, settings),
        worker_id=options["worker_id"],
        batch=options["batch"],
        max_tasks=options["max_tasks"],
        relay=not options["no_relay"],
        relay_poll_ms=options["relay_poll_ms"],
        health_file=options["health_file"],
        drain_s=options["drain_s"],
    )


def _select_queues(
    options: dict[str, Any], settings: TaskSettings
) -> tuple[str, ...] | None:
    by_option = {
        name: [queue for queue in (options[name] or "").split(",") if queue]
        for name in ("queues", "exclude")
    }
    # "*" is what the command of django-tasks-db takes for all queues.
    if by_option["queues"] == ["*"]:
        by_option["queues"] = []
    for name, queues in by_option.items():
        for queue in queues:
            if queue not in settings.queues:
                raise CommandError(
                    f"--{name}: {queue} is no queue of the backend: "
                    f"{', '.join(settings.queues)}",
                    returncode=2,
                )
    selected = [
        queue
        for queue in by_option["queues"] or settings.queues
        if queue not in by_option["exclude"]
    ]
    if not selected:
        raise CommandError(
            "no queue is left: name other --queues, or less to --exclude", returncode=2
        )
    return tuple(selected)
