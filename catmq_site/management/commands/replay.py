"""manage.py replay: sends an archive's messages to a topic, by a Spark job."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from catmq_site.jobs import spark
from catmq_site.management.base import CatmqCommand


class Command(CatmqCommand):
    help = (
        "Sends the messages of an archive to a topic, in the order of each queue, after checking every file. "
        "With the same --run-id a repeat within a day stores nothing twice."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("directory", type=Path, help="the archive")
        parser.add_argument("topic", help="the topic that was archived")
        parser.add_argument("to", help="the topic to send to")
        parser.add_argument("--since", metavar="DAY", default="0000", help="the first day")
        parser.add_argument("--through", metavar="DAY", default="9999", help="the last day")
        parser.add_argument("--messages-per-second", type=int, default=0, help="in all; default: no limit")
        parser.add_argument("--run-id", help="a name of your choice, given again by a repeat")
        parser.add_argument("--master", help="Spark's master, instead of CATMQ_SPARK_MASTER")

    def run(self, **options: Any) -> None:
        settings = {
            "archive": str(options["directory"].resolve()),
            **{name: options[name] for name in ("topic", "to", "since", "through", "messages_per_second")},
            **{name: options[name] for name in ("run_id", "master") if options[name]},
        }
        _, directory = spark.run("replay", settings=settings, say=self.stderr.write)
        for one in spark.results(directory)["days"]:
            self.stdout.write(f"{one['day']}: {one['messages']:,} messages sent")
