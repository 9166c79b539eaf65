"""manage.py cleanup: deletes messages past retention, or shows which would be deleted."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from catmq_site.background import spark
from catmq_site.management.base import RETRY_LATER, CatmqCommand, align_columns
from messagestore import retention
from messagestore.retention import Cleaned, QueuePlan
from metadata.errors import Invalid

HEADINGS = (
    "TOPIC",
    "QUEUE",
    "NODE",
    "KEPT",
    "DELETED",
    "BY",
    "MESSAGES",
    "PARTITIONS",
    "BYTES",
)


class Command(CatmqCommand):
    help = (
        "Deletes the messages that are past the retention of their topics, by age and by "
        "size. The job expire_messages does the same every ten minutes. --dry-run "
        "changes nothing. It shows for each queue what would be deleted, and which of "
        "these messages a group has not read. Exit codes: 0 done, 1 refused, 3 a queue "
        "could not be cleaned."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--topic", help="only this topic (default: all)")
        parser.add_argument(
            "--dry-run",
            action="store_true",
            help="show what would be deleted, and change nothing",
        )
        parser.add_argument(
            "--engine",
            choices=("direct", "spark"),
            default="direct",
            help="spark: archive the complete days of --topic, then delete archived messages",
        )
        parser.add_argument(
            "--archive", type=Path, help="archive directory, with --engine spark"
        )

    def run(self, **options: Any) -> None:
        if options["engine"] == "spark":
            cleaned_queues = self._archive_and_purge(
                options["topic"], options["archive"], dry_run=options["dry_run"]
            )
        else:
            cleaned_queues = retention.clean(
                topic=options["topic"],
                dry_run=options["dry_run"],
                progress=self.progress_writer(),
                actor=self.actor,
            )
        write_result(
            self.stdout.write, cleaned_queues, "cleaned", dry_run=options["dry_run"]
        )

    def _archive_and_purge(
        self, topic: str | None, archive: Path | None, *, dry_run: bool
    ) -> list[Cleaned]:
        """Run the job `archive`, then delete the messages that the archive holds. With
        `dry_run`, change nothing.
        """
        if topic is None or archive is None:
            field = "topic" if topic is None else "archive"
            raise Invalid.field(field, f"--engine spark needs --{field}")
        # The archive must exist before its messages are deleted.
        if not dry_run:
            settings = {"topic": topic, "archive": str(archive.resolve())}
            spark.run_job("archive", settings=settings, on_progress=self.stderr.write)
        return retention.purge(
            topic=topic,
            archive=archive,
            dry_run=dry_run,
            progress=self.progress_writer(),
            actor=self.actor,
        )


def write_result(
    write: Callable[[str], object],
    cleaned_queues: Sequence[Cleaned],
    verb: str,
    *,
    dry_run: bool,
) -> None:
    """Write the result, and end the command with 3 if a queue failed."""
    write("\n".join(format_result(cleaned_queues, dry_run=dry_run)))
    # Raised after all lines are written, so the user sees the queues that were cleaned.
    failed = sum(find_problem(cleaned) is not None for cleaned in cleaned_queues)
    if failed:
        raise CommandError(
            f"{failed} of {len(cleaned_queues)} queues could not be {verb}.",
            returncode=RETRY_LATER,
        )


def format_result(cleaned_queues: Sequence[Cleaned], *, dry_run: bool) -> list[str]:
    """Return the lines of the result: table, notes about single queues, and total."""
    table = [HEADINGS, *(format_row(cleaned.plan) for cleaned in cleaned_queues)]
    lines = align_columns(table)
    for cleaned in cleaned_queues:
        name = f"{cleaned.plan.topic} queue {cleaned.plan.queue} (node {cleaned.plan.node})"
        lines += [f"{name}: {text}" for text in list_notes(cleaned)]
    return [*lines, "", summarize(cleaned_queues, dry_run=dry_run)]


def list_notes(cleaned: Cleaned) -> list[str]:
    plan, problem = cleaned.plan, find_problem(cleaned)
    lines = [
        f"group {loss.group} has not read {loss.messages:,} of these messages"
        for loss in plan.unread
    ]
    if plan.messages and plan.keep_from == plan.head:
        lines.append("all its messages are deleted")
    lines += plan.notes
    return [*lines, f"not cleaned: {problem}"] if problem is not None else lines


def find_problem(cleaned: Cleaned) -> str | None:
    """Return why a queue was not cleaned, or not as far as its topic's retention requires."""
    return cleaned.problem or cleaned.plan.blocked_by


def format_row(plan: QueuePlan) -> tuple[str, ...]:
    name = (plan.topic, str(plan.queue), plan.node)
    if plan.problem is not None:
        return (*name, "-", "-", "-", "-", "-", "-")
    return (
        *name,
        format_offsets(plan.keep_from, plan.head),
        format_offsets(plan.low, plan.keep_from),
        plan.why or "-",
        f"{plan.messages:,}",
        "-" if plan.partitions is None else f"{plan.partitions:,}",
        f"{plan.bytes:,}",
    )


def format_offsets(first: int, end: int) -> str:
    """Return a range of offsets as text, with the last offset included."""
    return f"{first:,} … {end - 1:,}" if first < end else "none"


def summarize(cleaned_queues: Sequence[Cleaned], *, dry_run: bool) -> str:
    messages = sum(
        cleaned.plan.messages for cleaned in cleaned_queues if dry_run or cleaned.raised
    )
    if dry_run:
        size = sum(cleaned.plan.bytes for cleaned in cleaned_queues)
        return (
            f"{len(cleaned_queues)} queues: {messages:,} messages, about {size:,} bytes, would "
            "be deleted."
        )
    dropped, deleted = (
        sum(cleaned.dropped for cleaned in cleaned_queues),
        sum(cleaned.deleted for cleaned in cleaned_queues),
    )
    counts = f"{dropped:,} partitions dropped, {deleted:,} rows deleted"
    return f"{len(cleaned_queues)} queues: {messages:,} messages are no longer served; {counts}."
