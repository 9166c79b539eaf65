"""manage.py report: makes a report, with or without Spark, and stores it."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from catmq_site.background import reporting
from catmq_site.management.base import CatmqCommand, align_columns
from messagestore.inspect import light_reports
from metadata.jobs import report_files


class Command(CatmqCommand):
    help = (
        "Creates a report, prints it and stores it. --engine direct reads log end "
        "offsets, partitions and a few rows, which takes moments. --engine spark scans "
        "all messages and adds exact bytes, keys, skew, and how long each message waited "
        "for its commit."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", choices=sorted(light_reports.REPORTS))
        parser.add_argument("--topic", help="only this topic (default: all)")
        parser.add_argument(
            "--days", type=int, default=7, help="days to include (default %(default)s)"
        )
        parser.add_argument("--engine", choices=reporting.ENGINES, default="direct")
        parser.add_argument(
            "--output", type=Path, metavar="FILE", help="also write a .csv or .parquet file"
        )
        parser.add_argument(
            "--json", action="store_true", help="print one JSON object per line"
        )

    def run(self, **options: Any) -> None:
        output = options["output"]
        # Checked first: a report may take minutes.
        if output is not None:
            reporting.check_output_path(output)
        report_options = {key: options[key] for key in ("name", "topic", "days", "engine")}
        report_id, rows = reporting.make_report(
            **report_options, actor=self.actor, on_progress=self.stderr.write
        )
        if output is not None:
            reporting.save_report_file(rows, output)
        if options["json"]:
            self.stdout.writelines(json.dumps(row) + "\n" for row in rows)
        else:
            self.stdout.write("\n".join(format_table(rows)))
            self.stdout.write(f"Kept as report {report_id}.")


def format_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return rows as aligned text. Whole numbers get separators."""
    columns = report_files.columns_of(rows)
    cells = [[column.upper() for column in columns]]
    cells += [[format_value(row.get(column)) for column in columns] for row in rows]
    return align_columns(cells)


def format_value(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if type(value) is int else str(value)
