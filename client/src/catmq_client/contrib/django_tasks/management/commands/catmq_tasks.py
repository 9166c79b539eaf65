"""manage.py catmq_tasks: makes what tasks need, tells of them, retries, discards and deletes them."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.utils.connection import ConnectionDoesNotExist

from catmq_client.admin.api import Admin
from catmq_client.contrib.django_outbox import claims
from catmq_client.contrib.django_tasks import connections
from catmq_client.contrib.django_tasks.conf import TaskSettings
from catmq_client.contrib.django_tasks.jobs import alias_of
from catmq_client.contrib.django_tasks.working import topology, upkeep
from catmq_client.errors import CatmqError


class Command(BaseCommand):
    help = (
        "Tasks of a backend: makes their topics, share group and subscriptions (setup), counts them, "
        "retries and discards them, and deletes those that ended too long ago (prune). "
        "Exit codes: 0 done, 1 not all of it, 2 wrong usage."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
        setup = verbs.add_parser("setup", help="make topics, share group and subscriptions that are missing")
        setup.add_argument("--dry-run", action="store_true", help="only say what is missing")
        verbs.add_parser("status", help="count tasks by queue and status, and messages of the outbox")
        for name, what in (("retry", "one more attempt, now"), ("discard", "let them never run")):
            verb = verbs.add_parser(name, help=f"of failed tasks: {what}")
            verb.add_argument("ids", nargs="+", metavar="ID")
        verbs.add_parser("prune", help="delete tasks that are older than RESULT_DAYS and FAILED_DAYS")
        for verb in verbs.choices.values():
            verb.add_argument(
                "--backend", default="default", metavar="ALIAS", help="of TASKS (default: default)"
            )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            settings = upkeep.settings_of(options["backend"])
        except (ConnectionDoesNotExist, ImproperlyConfigured, ValueError) as error:
            raise CommandError(f"--backend {options['backend']}: {error}", returncode=2) from None
        verb = options["verb"]
        try:
            if verb == "setup":
                self._set_up(settings, dry_run=options["dry_run"])
                return
        except CatmqError as error:
            raise CommandError(str(error)) from None
        if settings.results == "none":
            raise CommandError(f"{verb}: with RESULTS 'none' no task is kept", returncode=2)
        {"status": self._status, "prune": self._prune}.get(verb, lambda _: self._change(settings, options))(
            settings
        )

    def _set_up(self, settings: TaskSettings, *, dry_run: bool) -> None:
        done = topology.ensure(Admin(connections.transport()), settings, dry_run=dry_run)
        for line in done:
            self.stdout.write(f"{'would make' if dry_run else 'made'} {line}")
        if not done:
            self.stdout.write("all is there")

    def _status(self, settings: TaskSettings) -> None:
        for (queue, status), number in sorted(upkeep.counts(settings).items()):
            self.stdout.write(f"{queue}  {status}  {number}")
        outbox = claims.counts(using=alias_of(settings))
        self.stdout.write(f"outbox: {outbox.waiting + outbox.claimed} wait, {outbox.failed} refused")

    def _prune(self, settings: TaskSettings) -> None:
        deleted = 0
        while some := upkeep.prune(settings):
            deleted += some
        self.stdout.write(f"{deleted} tasks deleted")

    def _change(self, settings: TaskSettings, options: dict[str, Any]) -> None:
        ids = [*dict.fromkeys(options["ids"])]
        change, done = {
            "retry": (upkeep.retry, "get one more attempt"),
            "discard": (upkeep.discard, "are discarded"),
        }[options["verb"]]
        number = change(settings, ids)
        self.stdout.write(f"{number} tasks {done}")
        if number < len(ids):
            raise CommandError(
                f"{len(ids) - number} tasks were left: they do not exist, or their status is another"
            )
