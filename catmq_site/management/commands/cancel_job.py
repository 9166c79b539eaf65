"""manage.py cancel_job: asks a running Spark job to stop."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from catmq_site.management.base import CatmqCommand
from metadata.jobs import runs


class Command(CatmqCommand):
    help = "Asks a run of a Spark job to stop. What it has published stays complete."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("run", type=int, help="id of the run")

    def run(self, **options: Any) -> None:
        runs.cancel(id=options["run"], actor=self.actor)
        self.stdout.write(f"Run {options['run']} was asked to stop.")
