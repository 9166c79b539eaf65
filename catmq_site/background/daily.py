"""The jobs of the data pipeline that run once a day, as the settings configure them.

They may take hours, so no worker of django-q waits for them: each runs in a process of its
own (catmq_site/jobs/tasks.py).
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
REPORT_DAYS = 7  # that a report covers


def archive_topics() -> int:
    """Archive the complete days of the configured topics. Return the number of topics.

    With CATMQ_ARCHIVE_PURGES, archived messages are then deleted from the nodes. Raises
    JobFailed.
    """
    archive, actor = Path(config.archive_dir), actors.job("archive_topics")

    def archive_topic(topic: str) -> None:
        spark.run_job("archive", settings={"topic": topic, "archive": str(archive)})
        # Only after a verified archive: retention.purge() checks each file again.
        if config.archive_purges:
            cleaned_queues = retention.purge(
                topic=topic, archive=archive, dry_run=False, actor=actor
            )
            problems = [
                cleaned.problem or cleaned.plan.blocked_by for cleaned in cleaned_queues
            ]
            if any(problems):
                raise spark.JobFailed("; ".join(filter(None, problems)))

    return _run_for_each(config.archive_topics, archive_topic)


def make_reports() -> int:
    """Make the configured reports. Return the number of reports. Raises JobFailed."""
    actor = actors.job("make_reports")

    def make_report(text: str) -> None:
        name, _, engine = text.partition(":")
        reporting.make_report(
            name=name, topic=None, days=REPORT_DAYS, engine=engine or "direct", actor=actor
        )

    return _run_for_each(config.daily_reports, make_report)


def _run_for_each(names: Iterable[str], job: Callable[[str], None]) -> int:
    """Call `job` with every name, even if a call fails. Raises JobFailed with all
    failures.
    """
    count, failures = 0, []
    for name in names:
        try:
            job(name)
            count += 1
        # A topic that fails must not keep the others from their turn.
        except (CatmqError, Cancelled) as error:
            failures.append(f"{name}: {error}")
    if failures:
        raise spark.JobFailed(" | ".join(failures))
    return count
