"""manage.py cancel_job: asks a running Spark job to stop."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from catmq_site.management.base import CatmqCommand
from metadata.jobs import runs


class Command(CatmqCommand):
    help = "Asks a run of a Spark job to stop; what it has published stays whole."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("run", type=int, help="the run's id")

    def run(self, **options: Any) -> None:
        runs.cancel(id=options["run"], actor=self.actor)
        self.stdout.write(f"Run {options['run']} is asked to stop.")
