"""manage.py catmq_tasks: creates the topics and group of tasks; counts, retries, resends,
discards and deletes tasks.
"""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from datetime import timedelta
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.utils.connection import ConnectionDoesNotExist

from catmq_client.admin.api import Admin
from catmq_client.contrib.django_outbox import claims
from catmq_client.contrib.django_tasks import connections
from catmq_client.contrib.django_tasks.conf import TaskSettings
from catmq_client.contrib.django_tasks.jobs import database_alias
from catmq_client.contrib.django_tasks.working import topology, upkeep
from catmq_client.errors import CatmqError


def days(text: str) -> timedelta:
    """Parse a number of days, which may have a fraction. Raises ArgumentTypeError."""
    try:
        age = timedelta(days=float(text))
    except (ValueError, OverflowError):
        raise ArgumentTypeError(f"{text!r} is no number of days") from None
    if age < timedelta(0):
        raise ArgumentTypeError(f"{text} is negative")
    return age


class Command(BaseCommand):
    help = (
        "Tasks of a backend: creates their topics, share group and subscriptions (setup), "
        "counts, retries and discards tasks, sends tasks again that no worker ran (resend), and "
        "deletes tasks that ended too long ago (prune). "
        "Exit codes: 0 done, 1 not all of it, 2 wrong usage."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
        verbs.add_parser(
            "setup", help="make topics, share group and subscriptions that are missing"
        ).add_argument("--dry-run", action="store_true", help="only say what is missing")
        verbs.add_parser(
            "status", help="count tasks by queue and status, and messages of the outbox"
        )
        for name, effect in (
            ("retry", "one more attempt, now"),
            ("discard", "let them never run"),
        ):
            verbs.add_parser(name, help=f"of failed tasks: {effect}").add_argument(
                "ids", nargs="+", metavar="ID"
            )
        verbs.add_parser(
            "resend",
            help="send tasks again that are due and were not run: without a worker for longer than "
            "retention_days of the topic, brokers delete their messages",
        ).add_argument(
            "--older-than",
            type=days,
            default=timedelta(days=1),
            metavar="DAYS",
            help="those that were enqueued so long ago (default 1)",
        )
        verbs.add_parser(
            "prune", help="delete tasks that are older than RESULT_DAYS and FAILED_DAYS"
        )
        for verb in verbs.choices.values():
            verb.add_argument(
                "--backend",
                default="default",
                metavar="ALIAS",
                help="of TASKS (default: default)",
            )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            settings = upkeep.find_settings(options["backend"])
        except (ConnectionDoesNotExist, ImproperlyConfigured, ValueError) as error:
            raise CommandError(
                f"--backend {options['backend']}: {error}", returncode=2
            ) from None
        verb = options["verb"]
        try:
            if verb == "setup":
                self._set_up(settings, dry_run=options["dry_run"])
                return
        except CatmqError as error:
            raise CommandError(str(error)) from None
        if settings.results == "none":
            raise CommandError(f"{verb}: with RESULTS 'none' no task is kept", returncode=2)
        if verb == "status":
            self._status(settings)
        elif verb == "prune":
            deleted = 0
            while batch := upkeep.prune(settings):
                deleted += batch
            self.stdout.write(f"{deleted} tasks deleted")
        elif verb == "resend":
            number = upkeep.resend(settings, older_than=options["older_than"])
            self.stdout.write(f"{number} tasks are sent again")
        else:
            self._change(settings, options)

    def _set_up(self, settings: TaskSettings, *, dry_run: bool) -> None:
        lines = topology.create_missing(
            Admin(connections.transport()), settings, dry_run=dry_run
        )
        for line in lines:
            self.stdout.write(f"{'would make' if dry_run else 'made'} {line}")
        if not lines:
            self.stdout.write("all is there")

    def _status(self, settings: TaskSettings) -> None:
        for (queue, status), number in sorted(upkeep.count_tasks(settings).items()):
            self.stdout.write(f"{queue}  {status}  {number}")
        for queue, since in sorted(upkeep.waiting_since(settings).items()):
            self.stdout.write(
                f"{queue}: the oldest task that is due was enqueued at {since:%Y-%m-%d %H:%M}"
            )
        outbox = claims.count_rows(using=database_alias(settings))
        self.stdout.write(
            f"outbox: {outbox.waiting + outbox.claimed} wait, {outbox.failed} refused"
        )

    def _change(self, settings: TaskSettings, options: dict[str, Any]) -> None:
        ids = [*dict.fromkeys(options["ids"])]
        change, outcome = {
            "retry": (upkeep.retry, "get one more attempt"),
            "discard": (upkeep.discard, "are discarded"),
        }[options["verb"]]
        number = change(settings, ids)
        self.stdout.write(f"{number} tasks {outcome}")
        if number < len(ids):
            raise CommandError(
                f"{len(ids) - number} tasks were left: they do not exist, or their status "
                "is another"
            )
