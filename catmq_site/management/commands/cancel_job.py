"""manage.py cancel_job: cancels a run of a Spark job."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from catmq_site.management.base import CatmqCommand
from metadata.jobs import runs


class Command(CatmqCommand):
    help = (
        "Cancels a run of a Spark job. The job stops soon. Results that it has published, such "
        "as archived days, are kept."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("run", type=int, help="id of the run")

    def run(self, **options: Any) -> None:
        runs.cancel(id=options["run"], actor=self.actor)
        self.stdout.write(f"Run {options['run']} was asked to stop.")
