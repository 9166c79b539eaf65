"""manage.py verify: proves that no message of a topic is missing, double or out of order."""

from __future__ import annotations

import json
import re
from argparse import SUPPRESS, ArgumentParser
from datetime import datetime
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from catmq_site.management.base import LATER, CatmqCommand, aligned
from messagestore import verify
from messagestore.verify import QueueReport, Report, Since
from metadata.errors import Invalid

FOUND = 1
UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
HEADINGS = ("TOPIC", "QUEUE", "NODE", "OFFSETS", "ROWS", "BATCHES", "POSITIONS", "RESULT")

FINDING = ("kind", "where", "what", "first", "end", "means", "advice")


class Command(CatmqCommand):
    help = (
        "Verifies that no message of the topics is missing, stored twice or out of order, "
        "and that log end "
        "offsets, committed offsets and metadata are consistent. Only reads, also while "
        "topics are in use. "
        "Exit codes: 0 no problems; 1 something is wrong; 3 something could not be "
        "checked. Ctrl-C prints "
        "the progress."
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
            since=parsed_since(options["since"]),
            rows_per_s=options["rows_per_second"],
            digests=options["digests"],
            progress=self.progress(),
            actor=self.actor,
        )
        to_stdout = options["json"] == Path("-")
        if not to_stdout:
            self.stdout.write("\n".join(shown(report)))
        if options["json"]:
            text = json.dumps(as_json(report), indent=2, ensure_ascii=False)
            self.stdout.write(text) if to_stdout else options["json"].write_text(
                text + "\n"
            )
        conclude(report)


def parsed_since(text: str | None) -> Since | None:
    """The time that --since means; a date without a zone is this machine's. Raises Invalid.

    >>> parsed_since("90m"), parsed_since("1772366400000"), parsed_since("2026-03-01T12:00Z").at_ms
    (Since(at_ms=None, ago_ms=5400000), Since(at_ms=1772366400000, ago_ms=None),
    1772366400000)
    """
    if text is None:
        return None
    if ago := re.fullmatch(r"([0-9]{1,9})([smhd])", text):
        return Since(ago_ms=int(ago[1]) * UNITS_MS[ago[2]])
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


def conclude(report: Report) -> None:
    """End the command with 1 or 3 unless everything was looked at and is well."""
    wrong = sum(bool(queue.findings) for queue in report.queues)
    if wrong:
        stopped = "" if report.complete else "Stopped. "
        text = (
            f"{stopped}{len(report.findings)} findings in {wrong} of "
            f"{len(report.queues)} queues."
        )
        raise CommandError(text, returncode=FOUND)
    if not report.complete:
        raise CommandError(
            "Stopped: no problems so far, but not everything was checked.", returncode=LATER
        )
    if report.unseen:
        text = f"{len(report.unseen)} of {len(report.queues)} queues could not be checked."
        raise CommandError(text, returncode=LATER)


def shown(report: Report) -> list[str]:
    """The table, the notes, the findings and the sum, line by line."""
    table = [HEADINGS, *(row(queue, report) for queue in report.queues)]
    lines = aligned(table)
    for queue in report.queues:
        name = f"{queue.expected.topic} queue {queue.id} (node {queue.expected.node})"
        lines += [f"{name}: {note}" for note in queue.notes]
        lines += [f"{name}: not looked at: {queue.unseen}"] if queue.unseen else []
        for one in queue.findings:
            lines += [
                "",
                f"{name}: {one.kind}, {one.where}",
                f"  {one.what}",
                f"  Means: {one.means}",
                f"  Do: {one.advice}",
            ]
    rows, batches = (
        sum(getattr(queue, what) for queue in report.queues) for what in ("rows", "batches")
    )
    return [
        *lines,
        "",
        f"{len(report.queues)} queues, {rows:,} rows, {batches:,} batches: {verdict(report)}.",
    ]


def verdict(report: Report) -> str:
    if report.findings:
        return "not clean"
    return "clean" if report.complete and not report.unseen else "nothing wrong so far"


def row(queue: QueueReport, report: Report) -> tuple[str, ...]:
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
        result(queue, report),
    )


def result(queue: QueueReport, report: Report) -> str:
    if queue.findings:
        return f"{len(queue.findings)} findings"
    if queue.unseen:
        return "not looked at"
    return "ok" if report.complete else "stopped"


def as_json(report: Report) -> dict[str, Any]:
    clean = report.complete and not report.findings and not report.unseen
    return {
        "clean": clean,
        "complete": report.complete,
        "findings": len(report.findings),
        "queues": [queue_as_json(queue) for queue in report.queues],
    }


def queue_as_json(queue: QueueReport) -> dict[str, Any]:
    """A queue's part of it; offsets `end` and `head` are exclusive."""
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
            {name: getattr(one, name) for name in FINDING} for one in queue.findings
        ],
    }
