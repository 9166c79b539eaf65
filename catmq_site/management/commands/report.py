"""manage.py report: makes a report, with or without Spark, and keeps it."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from typing import Any

from catmq_site import spark
from catmq_site.management.base import CatmqCommand
from messagestore import reports as direct
from metadata import reports, topics
from metadata.actors import Actor
from metadata.errors import Invalid

SCANNED = ("capacity", "size_and_expiry", "topics", "volume")


class Command(CatmqCommand):
    """Makes a report."""

    help = (
        "Makes a report, prints it and keeps it. --engine direct reads heads, partitions and a few rows, in "
        "moments; --engine spark scans the messages and adds what only a scan tells: exact bytes, keys, skew."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """The command line."""
        parser.add_argument("name", choices=sorted(direct.REPORTS))
        parser.add_argument("--topic", help="only this topic (default: all)")
        parser.add_argument("--days", type=int, default=7, help="how far back (default %(default)s)")
        parser.add_argument("--engine", choices=("direct", "spark"), default="direct")
        parser.add_argument("--json", action="store_true", help="one JSON object a line")

    def run(self, **options: Any) -> None:
        """Calls messagestore.reports, perhaps a job, and metadata.reports."""
        name, asked = options["name"], {"topic": options["topic"], "days": options["days"]}
        rows: Sequence[Mapping[str, Any]] = direct.make(name=name, actor=self.actor, **asked)
        run = None
        if options["engine"] == "spark" and name not in SCANNED:
            raise Invalid.field("engine", f"{name} needs no scan; there are {', '.join(SCANNED)} for spark")
        if options["engine"] == "spark":
            settings = {"days": options["days"], **places(options["topic"], self.actor)}
            run, directory = spark.run(
                f"report_{name}", settings=settings, inputs=rows, say=self.stderr.write
            )
            rows = spark.results(directory)["report"]
        kept = reports.keep(
            name=name, engine=options["engine"], settings=asked, rows=rows, actor=self.actor, job_run=run
        )
        if options["json"]:
            self.stdout.writelines(json.dumps(row) + "\n" for row in rows)
        else:
            self.stdout.write("\n".join(table(rows)))
            self.stdout.write(f"Kept as report {kept}.")


def places(topic: str | None, actor: Actor) -> dict[str, Any]:
    """The topics that a job scans, and which node each queue is on."""
    chosen = topics.ready() if topic is None else [topics.named(name=topic, actor=actor)]
    nodes = {str(queue.queue): queue.node for one in chosen for queue in one.queues}
    return {"topics": [one.name for one in chosen], "nodes": nodes}


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Rows as aligned text; whole numbers with separators."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    cells = [[column.upper() for column in columns]]
    cells += [[text(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(line[number]) for line in cells) for number in range(len(columns))]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in cells]


def text(value: object) -> str:
    """A cell."""
    if value is None or value == "":
        return "-"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if type(value) is int else str(value)
