"""manage.py archive: copies days of a topic into Parquet files, by a Spark job."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from catmq_site.jobs import spark
from catmq_site.management.base import CatmqCommand


class Command(CatmqCommand):
    help = (
        "Copies the days of a topic that are over, and not archived yet, into Parquet files. A day is "
        "published only when rows and checksums of its files equal the source's. manage.py purge then "
        "removes from the nodes what the archive proves."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("topic")
        parser.add_argument("directory", type=Path, help="the archive; on a cluster, where all see it")
        when = parser.add_mutually_exclusive_group()
        when.add_argument("--through", metavar="DAY", help="the last day (default: yesterday)")
        when.add_argument("--up-to-now", action="store_true", help="also today, as far as it is")
        parser.add_argument("--rows-per-second", type=int, default=0, help="of each task; default: no limit")
        parser.add_argument("--master", help="Spark's master, instead of CATMQ_SPARK_MASTER")

    def run(self, **options: Any) -> None:
        settings = {
            "topic": options["topic"],
            "archive": str(options["directory"].resolve()),
            "up_to_now": options["up_to_now"],
            "rows_per_second": options["rows_per_second"],
            **({"through": options["through"]} if options["through"] else {}),
            **({"master": options["master"]} if options["master"] else {}),
        }
        _, directory = spark.run("archive", settings=settings, say=self.stderr.write)
        found = spark.results(directory)
        for one in found["days"]:
            self.stdout.write(f"{one['day']}: {one['rows']:,} messages, {one['bytes']:,} bytes")
        for one in found["notes"]:
            self.stdout.write(f"note: {one['note']}")
        self.stdout.write(f"{len(found['days'])} days archived and verified.")
