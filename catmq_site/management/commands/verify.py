"""manage.py verify: checks that no message of a topic is missing, stored twice or out of
order.
"""

from __future__ import annotations

import json
import re
from argparse import SUPPRESS, ArgumentParser
from datetime import datetime
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from catmq_site.management.base import RETRY_LATER, CatmqCommand, align_columns
from messagestore import verify
from messagestore.verify import QueueReport, Report, Since
from metadata.errors import Invalid
from metadata.installation import name_programs

FINDINGS = 1
UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
HEADINGS = ("TOPIC", "QUEUE", "NODE", "OFFSETS", "ROWS", "BATCHES", "POSITIONS", "RESULT")

FINDING_FIELDS = ("kind", "where", "what", "first", "end", "means", "advice")


class Command(CatmqCommand):
    help = (
        "Verifies that no message of the topics is missing, stored twice or out of "
        "order, and that log end offsets, committed offsets and metadata are consistent. "
        "Only reads, also while topics are in use. Exit codes: 0 no problems; 1 "
        "something is wrong; 3 something could not be checked. Ctrl-C prints the "
        "progress."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("topics", nargs="*", metavar="TOPIC")
        parser.add_argument("--all", action="store_true", help="all topics")
        parser.add_argument(
            "--since",
            metavar="TIME",
            help="only messages stored since TIME, such as 2h ago (2h), 2026-03-01T12:00, "
            "or ms since 1970",
        )
        parser.add_argument(
            "--json",
            type=Path,
            metavar="FILE",
            help="also write the report as JSON; - for stdout",
        )
        parser.add_argument(
            "--rows-per-second",
            type=int,
            default=verify.ROWS_PER_S,
            help="maximum rows to read per second (default %(default)s; 0: no limit)",
        )
        parser.add_argument(  # a former name
            "--rows-per-s",
            dest="rows_per_second",
            type=int,
            default=SUPPRESS,
            help=SUPPRESS,
        )
        parser.add_argument(
            "--digests",
            action="store_true",
            help="also read every message and compare it with the digest of its batch",
        )

    def run(self, **options: Any) -> None:
        if bool(options["topics"]) == options["all"]:
            raise Invalid("Name topics, or give --all.")
        report = verify.verify(
            topics=None if options["all"] else options["topics"],
            since=parse_since(options["since"]),
            rows_per_s=options["rows_per_second"],
            digests=options["digests"],
            progress=self.progress_writer(),
            actor=self.actor,
        )
        # With JSON on stdout, nothing else may be printed there.
        to_stdout = options["json"] == Path("-")
        if not to_stdout:
            self.stdout.write("\n".join(format_report(report)))
        if options["json"]:
            text = json.dumps(report_as_json(report), indent=2, ensure_ascii=False)
            self.stdout.write(text) if to_stdout else options["json"].write_text(
                text + "\n"
            )
        exit_with_status(report)


def parse_since(text: str | None) -> Since | None:
    """Return the time that --since means. A date without a zone is in this machine's time
    zone. Raises Invalid.

    >>> parse_since("90m"), parse_since("1772366400000")
    (Since(at_ms=None, ago_ms=5400000), Since(at_ms=1772366400000, ago_ms=None))
    >>> parse_since("2026-03-01T12:00Z").at_ms
    1772366400000
    """
    if text is None:
        return None
    if age := re.fullmatch(r"([0-9]{1,9})([smhd])", text):
        return Since(ago_ms=int(age[1]) * UNITS_MS[age[2]])
    if re.fullmatch(r"[0-9]{9,15}", text):
        return Since(at_ms=int(text))
    try:
        return Since(
            at_ms=round(datetime.fromisoformat(text).astimezone().timestamp() * 1000)
        )
    except (ValueError, OverflowError):
        raise Invalid.field(
            "since", f"{text!r} must look like 2h, 2026-03-01T12:00 or 1772366400000"
        ) from None


def exit_with_status(report: Report) -> None:
    """End the command with 1 after findings, and with 3 if something could not be checked."""
    wrong_queues = sum(bool(queue.findings) for queue in report.queues)
    if wrong_queues:
        stopped = "" if report.complete else "Stopped. "
        text = (
            f"{stopped}{len(report.findings)} findings in {wrong_queues} of "
            f"{len(report.queues)} queues."
        )
        raise CommandError(text, returncode=FINDINGS)
    if not report.complete:
        raise CommandError(
            "Stopped: no problems so far, but not everything was checked.",
            returncode=RETRY_LATER,
        )
    # Checked last: a finding is certain, while a queue that was not seen may be clean.
    if report.unseen:
        text = f"{len(report.unseen)} of {len(report.queues)} queues could not be checked."
        raise CommandError(text, returncode=RETRY_LATER)


def format_report(report: Report) -> list[str]:
    """Return the lines of the report: table, notes, findings and total."""
    table = [HEADINGS, *(format_row(queue, report) for queue in report.queues)]
    lines = align_columns(table)
    for queue in report.queues:
        name = f"{queue.expected.topic} queue {queue.id} (node {queue.expected.node})"
        lines += [f"{name}: {note}" for note in queue.notes]
        lines += [f"{name}: not looked at: {queue.unseen}"] if queue.unseen else []
        for finding in queue.findings:
            lines += [
                "",
                f"{name}: {finding.kind}, {finding.where}",
                f"  {finding.what}",
                f"  Means: {finding.means}",
                name_programs(f"  Do: {finding.advice}"),
            ]
    rows, batches = (
        sum(getattr(queue, figure) for queue in report.queues)
        for figure in ("rows", "batches")
    )
    return [
        *lines,
        "",
        f"{len(report.queues)} queues, {rows:,} rows, {batches:,} batches: "
        f"{describe_verdict(report)}.",
    ]


def describe_verdict(report: Report) -> str:
    if report.findings:
        return "not clean"
    return "clean" if report.complete and not report.unseen else "nothing wrong so far"


def format_row(queue: QueueReport, report: Report) -> tuple[str, ...]:
    opening = queue.opening
    offsets = "-"
    if opening is not None:
        offsets = (
            f"{opening.start:,} … {opening.head - 1:,}"
            if opening.start < opening.head
            else "none"
        )
        if queue.reached < opening.head:
            offsets += f", seen up to {max(queue.reached, opening.start):,}"
    numbers = (f"{queue.rows:,}", f"{queue.batches:,}", f"{queue.readers:,}")
    return (
        queue.expected.topic,
        str(queue.id),
        queue.expected.node,
        offsets,
        *numbers,
        describe_result(queue, report),
    )


def describe_result(queue: QueueReport, report: Report) -> str:
    if queue.findings:
        return f"{len(queue.findings)} findings"
    if queue.unseen:
        return "not looked at"
    return "ok" if report.complete else "stopped"


def report_as_json(report: Report) -> dict[str, Any]:
    clean = report.complete and not report.findings and not report.unseen
    return {
        "clean": clean,
        "complete": report.complete,
        "findings": len(report.findings),
        "queues": [queue_as_json(queue) for queue in report.queues],
    }


def queue_as_json(queue: QueueReport) -> dict[str, Any]:
    """Return a queue as JSON. The offsets `end` and `head` are exclusive."""
    opening = queue.opening
    return {
        "topic": queue.expected.topic,
        "queue": queue.id,
        "number": queue.expected.number,
        "node": queue.expected.node,
        "start": opening.start if opening else None,
        "low": opening.low if opening else None,
        "head": opening.head if opening else None,
        "reached": queue.reached,
        "rows": queue.rows,
        "batches": queue.batches,
        "positions": queue.readers,
        "unseen": queue.unseen,
        "notes": queue.notes,
        "findings": [
            {name: getattr(finding, name) for name in FINDING_FIELDS}
            for finding in queue.findings
        ],
    }
