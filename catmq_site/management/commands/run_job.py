"""manage.py run_job: runs a scheduled job in this process, and records the run."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from catmq_site.background.table import JOBS
from catmq_site.jobs import tasks
from catmq_site.management.base import CatmqCommand


class Command(CatmqCommand):
    help = (
        "Runs a scheduled job now, in this process, and records the run. The schedule is "
        "not changed."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "name", choices=sorted(JOBS), metavar="NAME", help=", ".join(sorted(JOBS))
        )

    def run(self, **options: Any) -> None:
        # Here even if the job normally runs in a process of its own: the caller waits.
        count = tasks.run_here(options["name"])
        self.stdout.write(f"{options['name']}: done {count:,}.")
