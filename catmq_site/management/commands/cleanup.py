"""manage.py cleanup: delete messages past retention, or show which would be deleted."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from catmq_site.background import spark
from catmq_site.management.base import LATER, CatmqCommand, aligned
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
        "size. The job "
        "expire_messages does the same every ten minutes. --dry-run changes nothing. It "
        "shows for each "
        "queue what would be deleted, and which of these messages a group has not read. "
        "Exit codes: 0 "
        "done, 1 refused, 3 a queue could not be cleaned."
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
            found = self._archived_first(
                options["topic"], options["archive"], dry_run=options["dry_run"]
            )
        else:
            found = retention.clean(
                topic=options["topic"],
                dry_run=options["dry_run"],
                progress=self.progress(),
                actor=self.actor,
            )
        conclude(self.stdout.write, found, "cleaned", dry_run=options["dry_run"])

    def _archived_first(
        self, topic: str | None, archive: Path | None, *, dry_run: bool
    ) -> list[Cleaned]:
        """Run the job `archive`, unless nothing is to be changed, and purge what the
        archive proves.
        """
        if topic is None or archive is None:
            field = "topic" if topic is None else "archive"
            raise Invalid.field(field, f"--engine spark needs --{field}")
        if not dry_run:
            settings = {"topic": topic, "archive": str(archive.resolve())}
            spark.run_job("archive", settings=settings, on_progress=self.stderr.write)
        return retention.purge(
            topic=topic,
            archive=archive,
            dry_run=dry_run,
            progress=self.progress(),
            actor=self.actor,
        )


def conclude(
    write: Callable[[str], object], found: Sequence[Cleaned], done: str, *, dry_run: bool
) -> None:
    """Write what came of it; end the command with 3 if a queue could not be `done`."""
    write("\n".join(shown(found, dry_run=dry_run)))
    failed = sum(problem_of(one) is not None for one in found)
    if failed:
        raise CommandError(
            f"{failed} of {len(found)} queues could not be {done}.", returncode=LATER
        )


def shown(found: Sequence[Cleaned], *, dry_run: bool) -> list[str]:
    """The table, what is to be said of single queues, and the sum, line by line."""
    table = [HEADINGS, *(row(one.plan) for one in found)]
    lines = aligned(table)
    for one in found:
        name = f"{one.plan.topic} queue {one.plan.queue} (node {one.plan.node})"
        lines += [f"{name}: {text}" for text in notes(one)]
    return [*lines, "", summary(found, dry_run=dry_run)]


def notes(one: Cleaned) -> list[str]:
    plan, problem = one.plan, problem_of(one)
    said = [
        f"group {loss.group} has not read {loss.messages:,} of these messages"
        for loss in plan.unread
    ]
    if plan.messages and plan.keep_from == plan.head:
        said.append("all its messages are deleted")
    said += plan.notes
    return [*said, f"not cleaned: {problem}"] if problem is not None else said


def problem_of(one: Cleaned) -> str | None:
    """Return why a queue was not cleaned, or not as its topic wants it."""
    return one.problem or one.plan.blocked_by


def row(plan: QueuePlan) -> tuple[str, ...]:
    name = (plan.topic, str(plan.queue), plan.node)
    if plan.problem is not None:
        return (*name, "-", "-", "-", "-", "-", "-")
    return (
        *name,
        span(plan.keep_from, plan.head),
        span(plan.low, plan.keep_from),
        plan.why or "-",
        f"{plan.messages:,}",
        "-" if plan.partitions is None else f"{plan.partitions:,}",
        f"{plan.bytes:,}",
    )


def span(first: int, end: int) -> str:
    """Offsets, the last one included."""
    return f"{first:,} … {end - 1:,}" if first < end else "none"


def summary(found: Sequence[Cleaned], *, dry_run: bool) -> str:
    messages = sum(one.plan.messages for one in found if dry_run or one.raised)
    if dry_run:
        size = sum(one.plan.bytes for one in found)
        return (
            f"{len(found)} queues: {messages:,} messages, about {size:,} bytes, would "
            "be deleted."
        )
    dropped, deleted = sum(one.dropped for one in found), sum(one.deleted for one in found)
    done = f"{dropped:,} partitions dropped, {deleted:,} rows deleted"
    return f"{len(found)} queues: {messages:,} messages are no longer served; {done}."
