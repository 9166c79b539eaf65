"""manage.py run_asked: executes a run of the data pipeline that a user requested in the
portal.
"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from catmq_site.background import pipeline
from catmq_site.management.base import CatmqCommand


class Command(CatmqCommand):
    help = (
        "Runs a run of the data pipeline that was requested in the portal. A worker of "
        "django-q calls this command. Call it by hand where no worker runs."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("run", type=int, help="id of the run")

    def run(self, **options: Any) -> None:
        was_executed = pipeline.execute_run(options["run"])
        number = options["run"]
        self.stdout.write(
            f"Run {number} is done."
            if was_executed
            else f"Run {number} has already started or ended."
        )
