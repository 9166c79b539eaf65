"""manage.py report: makes a report, with or without Spark, and keeps it."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from catmq_site.jobs import reporting
from catmq_site.management.base import CatmqCommand, aligned
from messagestore.inspect import light_reports
from metadata.jobs import report_files


class Command(CatmqCommand):
    help = (
        "Makes a report, prints it and keeps it. --engine direct reads heads, partitions and a few rows, in "
        "moments; --engine spark scans the messages and adds what only a scan tells: exact bytes, keys, "
        "skew, how long each message waited for its commit."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", choices=sorted(light_reports.REPORTS))
        parser.add_argument("--topic", help="only this topic (default: all)")
        parser.add_argument("--days", type=int, default=7, help="how far back (default %(default)s)")
        parser.add_argument("--engine", choices=reporting.ENGINES, default="direct")
        parser.add_argument("--output", type=Path, metavar="FILE", help="also into a .csv or .parquet file")
        parser.add_argument("--json", action="store_true", help="one JSON object a line")

    def run(self, **options: Any) -> None:
        output = options["output"]
        if output is not None:
            reporting.check(output)
        asked = {key: options[key] for key in ("name", "topic", "days", "engine")}
        kept, rows = reporting.make(**asked, actor=self.actor, say=self.stderr.write)
        if output is not None:
            reporting.save(rows, output)
        if options["json"]:
            self.stdout.writelines(json.dumps(row) + "\n" for row in rows)
        else:
            self.stdout.write("\n".join(table(rows)))
            self.stdout.write(f"Kept as report {kept}.")


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Rows as aligned text; whole numbers with separators."""
    columns = report_files.columns_of(rows)
    cells = [[column.upper() for column in columns]]
    cells += [[text(row.get(column)) for column in columns] for row in rows]
    return aligned(cells)


def text(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if type(value) is int else str(value)
