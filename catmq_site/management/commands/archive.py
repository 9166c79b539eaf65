"""manage.py archive: archives days of a topic as Parquet files, with a Spark job."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from catmq_site.background import spark
from catmq_site.management.base import CatmqCommand


class Command(CatmqCommand):
    help = (
        "Archives complete days of a topic as Parquet files, except those that are "
        "archived already. A day is published only when the row counts and checksums of "
        "its files equal those of the source. manage.py purge then deletes archived "
        "messages from the nodes."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("topic")
        parser.add_argument(
            "directory",
            type=Path,
            help="archive directory; on a cluster, the same path on all machines",
        )
        days = parser.add_mutually_exclusive_group()
        days.add_argument("--through", metavar="DAY", help="last day (default: yesterday)")
        days.add_argument(
            "--up-to-now", action="store_true", help="also archive today up to now"
        )
        parser.add_argument(
            "--rows-per-second",
            type=int,
            default=0,
            help="maximum rate of each task (default: no limit)",
        )
        parser.add_argument("--master", help="Spark master (default: CATMQ_SPARK_MASTER)")

    def run(self, **options: Any) -> None:
        settings = {
            "topic": options["topic"],
            "archive": str(options["directory"].resolve()),
            "up_to_now": options["up_to_now"],
            "rows_per_second": options["rows_per_second"],
            **({"through": options["through"]} if options["through"] else {}),
            **({"master": options["master"]} if options["master"] else {}),
        }
        _, directory = spark.run_job(
            "archive", settings=settings, on_progress=self.stderr.write
        )
        results = spark.read_results(directory)
        for row in results["days"]:
            self.stdout.write(
                f"{row['day']}: {row['rows']:,} messages, {row['bytes']:,} bytes"
            )
        for row in results["notes"]:
            self.stdout.write(f"note: {row['note']}")
        self.stdout.write(f"{len(results['days'])} days archived and verified.")
