"""The jobs of the data pipeline that run once a day, where settings want them.

They may take hours, so no worker of django-q waits for them: each runs as a process of its
own (see tasks).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from catmq_site.background import reporting, spark
from messagestore import retention
from metadata import actors
from metadata.config import config
from metadata.errors import CatmqError
from metadata.jobs.runs import Cancelled

EVERY_MINUTES = 24 * 60
DAYS = 7  # that reports look back


def archive_topics() -> int:
    """Archive the days that are over of the topics that settings name; return how many
    topics.

    With CATMQ_ARCHIVE_PURGES what an archive proves is dropped then. Raises JobFailed.
    """
    return _each(config.archive_topics, _archive)


def make_reports() -> int:
    """Make the reports that settings name; return how many. Raises JobFailed."""
    return _each(config.daily_reports, _report)


def _archive(topic: str) -> None:
    archive = Path(config.archive_dir)
    spark.run("archive", settings={"topic": topic, "archive": str(archive)})
    if config.archive_purges:
        actor = actors.job("archive_topics")
        found = retention.purge(topic=topic, archive=archive, dry_run=False, actor=actor)
        problems = [one.problem or one.plan.blocked_by for one in found]
        if any(problems):
            raise spark.JobFailed("; ".join(filter(None, problems)))


def _report(text: str) -> None:
    name, _, engine = text.partition(":")
    actor = actors.job("make_reports")
    reporting.make(name=name, topic=None, days=DAYS, engine=engine or "direct", actor=actor)


def _each(names: Iterable[str], do: Callable[[str], None]) -> int:
    """Do it for every name, also behind one that fails. Raises JobFailed with all that went
    wrong.
    """
    count, faults = 0, []
    for name in names:
        try:
            do(name)
            count += 1
        except (CatmqError, Cancelled) as error:
            faults.append(f"{name}: {error}")
    if faults:
        raise spark.JobFailed(" | ".join(faults))
    return count
