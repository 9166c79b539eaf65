"""Makes reports, with or without Spark, stores them, and writes them to files."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from catmq_site.background import spark
from messagestore.inspect import light_reports
from metadata.actors import Actor
from metadata.errors import Invalid
from metadata.groups import commits
from metadata.jobs import report_files, reports
from metadata.jobs.runs import Run
from metadata.topics import topic_rows

ENGINES = ("direct", "spark")
Row = Mapping[str, Any]


def make_report(
    *,
    name: str,
    topic: str | None,
    days: int,
    engine: str,
    actor: Actor,
    on_progress: spark.OnProgress | None = None,
    parent_run: Run | None = None,
) -> tuple[int, Sequence[Row]]:
    """Make and store a report. Return (id of the stored report, rows).

    With `parent_run`, a Spark job is a part of that run. Raises Invalid, NotFound,
    JobFailed, Cancelled.
    """
    if engine not in ENGINES:
        raise Invalid.field(
            "engine", f"{engine} is not an engine; choose from {', '.join(ENGINES)}"
        )
    report_settings = {"topic": topic, "days": days}
    # Without Spark these rows are the report; with Spark they choose the queues to scan.
    rows: Sequence[Row] = light_reports.make_report(
        name=name, topic=topic, days=days, actor=actor
    )
    job_run = None
    if engine == "spark":
        settings, inputs = prepare_spark_job(
            name, rows, topic=topic, days=days, actor=actor
        )
        job_run, directory = spark.run_job(
            f"report_{name}",
            settings=settings,
            inputs=inputs,
            on_progress=on_progress,
            parent_run=parent_run,
        )
        rows = spark.read_results(directory)["report"]
    report_id = reports.save_report(
        name=name,
        engine=engine,
        settings=report_settings,
        rows=rows,
        actor=actor,
        job_run=job_run,
    )
    return report_id, rows


def prepare_spark_job(
    name: str, rows: Sequence[Row], *, topic: str | None, days: int, actor: Actor
) -> tuple[dict[str, Any], Sequence[Row]]:
    """Return (settings, inputs) of the Spark job that completes the rows of a report."""
    unreadable_queues = light_reports.find_unreadable_queues(topic=topic, actor=actor)
    if topic is None:
        topics = topic_rows.list_ready()
    else:
        topics = [topic_rows.find_topic(name=topic, actor=actor)]
    settings = {
        "days": days,
        "away": unreadable_queues,
        "topics": [t.name for t in topics],
        "nodes": {str(queue.queue): queue.node for t in topics for queue in t.queues},
        "queues": {t.name: [queue.queue for queue in t.queues] for t in topics},
        "departments": {t.name: t.department for t in topics},
    }
    if name == "latency":
        return settings, [add_commit_times(row, days, actor) for row in rows]
    return settings, rows


def add_commit_times(row: Row, days: int, actor: Actor) -> dict[str, Any]:
    """Add the commit times of the group to a row of the report `latency`."""
    steps = commits.commit_times(
        topic=row["topic"], group=row["group"], days=days, actor=actor
    )
    return {**row, "steps": steps}


def save_report_file(rows: Sequence[Row], path: Path) -> None:
    """Write rows to a file, completely or not at all. Its suffix chooses the format. Raises
    Invalid.

    .parquet needs pyarrow, which comes with Spark's requirements; .csv needs nothing.
    """
    check_output_path(path)
    draft_path = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        WRITERS[path.suffix](rows, to=draft_path)
        # Atomic, so a reader never sees a part of the file.
        os.replace(draft_path, path)
    except OSError as error:
        raise Invalid.field(
            "output", f"{path} cannot be written: {error.strerror}"
        ) from None
    finally:
        draft_path.unlink(missing_ok=True)


def check_output_path(path: Path) -> None:
    """Raise Invalid if a file cannot be written there. Called before the report is made."""
    if path.suffix not in WRITERS:
        raise Invalid.field("output", f"{path} must end in {' or '.join(WRITERS)}")
    if not path.parent.is_dir():
        raise Invalid.field("output", f"there is no directory {path.parent}")
    if path.suffix == ".parquet" and not report_files.can_parquet():
        text = "Parquet needs pyarrow: run script/setup --with-spark, or choose .csv"
        raise Invalid.field("output", text)


def _write_csv(rows: Sequence[Row], *, to: Path) -> None:
    with to.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, report_files.columns_of(rows))
        writer.writeheader()
        writer.writerows(rows)


WRITERS = {".csv": _write_csv, ".parquet": report_files.write_parquet}
