"""manage.py replay: sends the messages of an archive to a topic, with a Spark job."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from catmq_site.background import spark
from catmq_site.management.base import CatmqCommand


class Command(CatmqCommand):
    help = (
        "Checks every file of an archive and sends its messages to a topic, in the order "
        "of each queue. If a run is repeated within a day with the same --run-id, "
        "nothing is stored twice."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("directory", type=Path, help="archive directory")
        parser.add_argument("topic", help="archived topic")
        parser.add_argument("to", help="topic to send to")
        parser.add_argument(
            "--since",
            metavar="DAY",
            default="0000",
            help="first day (default: the first one archived)",
        )
        parser.add_argument(
            "--through",
            metavar="DAY",
            default="9999",
            help="last day (default: the last one archived)",
        )
        parser.add_argument(
            "--messages-per-second",
            type=int,
            default=0,
            help="maximum rate of the whole run (default: no limit)",
        )
        parser.add_argument(
            "--run-id", help="name of the run; repeat a run with the same name"
        )
        parser.add_argument("--master", help="Spark master (default: CATMQ_SPARK_MASTER)")

    def run(self, **options: Any) -> None:
        settings = {
            "archive": str(options["directory"].resolve()),
            **{
                name: options[name]
                for name in ("topic", "to", "since", "through", "messages_per_second")
            },
            **{name: options[name] for name in ("run_id", "master") if options[name]},
        }
        _, directory = spark.run_job(
            "replay", settings=settings, on_progress=self.stderr.write
        )
        for row in spark.read_results(directory)["days"]:
            self.stdout.write(f"{row['day']}: {row['messages']:,} messages sent")
