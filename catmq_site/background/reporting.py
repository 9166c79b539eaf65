"""Makes reports, with or without Spark, keeps them, and writes them to files."""

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


def make(
    *,
    name: str,
    topic: str | None,
    days: int,
    engine: str,
    actor: Actor,
    say: spark.Say | None = None,
    record: Run | None = None,
) -> tuple[int, Sequence[Row]]:
    """Make a report; (the id it is kept under, its rows). With `record` a Spark job is part
    of that run.

    Raises Invalid, NotFound, JobFailed, Cancelled.
    """
    if engine not in ENGINES:
        raise Invalid.field(
            "engine", f"{engine} is not an engine; choose from {', '.join(ENGINES)}"
        )
    asked = {"topic": topic, "days": days}
    rows: Sequence[Row] = light_reports.make_report(
        name=name, topic=topic, days=days, actor=actor
    )
    run = None
    if engine == "spark":
        settings, inputs = for_spark(name, rows, topic=topic, days=days, actor=actor)
        run, directory = spark.run(
            f"report_{name}", settings=settings, inputs=inputs, say=say, record=record
        )
        rows = spark.results(directory)["report"]
    kept = reports.save_report(
        name=name, engine=engine, settings=asked, rows=rows, actor=actor, job_run=run
    )
    return kept, rows


def for_spark(
    name: str, rows: Sequence[Row], *, topic: str | None, days: int, actor: Actor
) -> tuple[dict[str, Any], Sequence[Row]]:
    """(settings, inputs) of the job that completes the rows of a report."""
    settings = {
        "days": days,
        "away": light_reports.find_unreadable_queues(topic=topic, actor=actor),
        **_places(topic, actor),
    }
    return settings, [
        with_steps(row, days, actor) for row in rows
    ] if name == "latency" else rows


def _places(topic: str | None, actor: Actor) -> dict[str, Any]:
    """The topics that a job scans, their queues, and which node each queue is on."""
    chosen = (
        topic_rows.list_ready()
        if topic is None
        else [topic_rows.find_topic(name=topic, actor=actor)]
    )
    nodes = {str(queue.queue): queue.node for one in chosen for queue in one.queues}
    queues = {one.name: [queue.queue for queue in one.queues] for one in chosen}
    departments = {one.name: one.department for one in chosen}
    names = [one.name for one in chosen]
    return {"topics": names, "nodes": nodes, "queues": queues, "departments": departments}


def with_steps(row: Row, days: int, actor: Actor) -> dict[str, Any]:
    """A row of the report on latency with what the job needs to know of the group's
    commits.
    """
    steps = commits.commit_times(
        topic=row["topic"], group=row["group"], days=days, actor=actor
    )
    return {**row, "steps": steps}


def save(rows: Sequence[Row], path: Path) -> None:
    """Write rows to a file, whole or not at all; its ending says how. Raises Invalid.

    .parquet needs pyarrow, which comes with Spark's requirements; .csv needs nothing.
    """
    check(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        WRITERS[path.suffix](rows, draft)
        os.replace(draft, path)
    except OSError as error:
        raise Invalid.field(
            "output", f"{path} cannot be written: {error.strerror}"
        ) from None
    finally:
        draft.unlink(missing_ok=True)


def check(path: Path) -> None:
    """Raise Invalid if nothing could write such a file, before a report is made for it."""
    if path.suffix not in WRITERS:
        raise Invalid.field("output", f"{path} must end in {' or '.join(WRITERS)}")
    if not path.parent.is_dir():
        raise Invalid.field("output", f"there is no directory {path.parent}")
    if path.suffix == ".parquet" and not report_files.can_parquet():
        text = "Parquet needs pyarrow: run script/setup --with-spark, or choose .csv"
        raise Invalid.field("output", text)


def _csv(rows: Sequence[Row], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, report_files.columns_of(rows))
        writer.writeheader()
        writer.writerows(rows)


def _parquet(rows: Sequence[Row], path: Path) -> None:
    report_files.write_parquet(rows, to=path)


WRITERS = {".csv": _csv, ".parquet": _parquet}
