"""manage.py run_asked: takes up a run of the data pipeline that somebody asked for in the portal."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from catmq_site.jobs import pipeline
from catmq_site.management.base import CatmqCommand


class Command(CatmqCommand):
    help = (
        "Takes up a run of the data pipeline that was asked for in the portal, and carries it out. A worker "
        "of django-q calls this; by hand it helps where none runs."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("run", type=int, help="the run's id")

    def run(self, **options: Any) -> None:
        done = pipeline.carry_out(options["run"])
        number = options["run"]
        self.stdout.write(
            f"Run {number} is done." if done else f"Run {number} was taken up before, or ended."
        )
