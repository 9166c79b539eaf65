"""Reports: results of report jobs, which are stored for KEPT_DAYS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from metadata.actors import Actor
from metadata.db import access, audit
from metadata.db.clock import database_now, ms
from metadata.db.prune import PruneRule
from metadata.db.transactions import reachable, transactional
from metadata.errors import NotFound
from metadata.jobs.report_files import columns_of
from metadata.models import Report, ReportRow
from metadata.rules.audit_verbs import Verb

KEPT_DAYS = 400
BATCH = 1_000  # rows per statement
Row = Mapping[str, Any]


class ReportView(Struct, frozen=True):
    id: int
    name: str
    engine: str
    made_at_ms: int
    settings: Mapping[str, Any]
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


@transactional
def save_report(
    *,
    name: str,
    engine: str,
    settings: Row,
    rows: Sequence[Row],
    actor: Actor,
    job_run: int | None = None,
) -> int:
    """Store a report. Return its id. Needs `admin` on everything, because reports include
    every topic.
    """
    access.require_everything(actor, name, what="report")
    columns = columns_of(rows)
    report = Report.objects.create(
        name=name, engine=engine, settings=dict(settings), columns=columns,
        made_at=database_now(), job_run_id=job_run,
    )  # fmt: skip
    ReportRow.objects.bulk_create(
        (
            ReportRow(report=report, number=number, values=dict(row))
            for number, row in enumerate(rows)
        ),
        batch_size=BATCH,
    )
    after = {"id": report.pk, "engine": engine, "rows": len(rows)}
    audit.record(actor=actor, verb=Verb.KEEP, kind="report", name=name, after=after)
    return int(report.pk)


def find_report(*, id: int, actor: Actor) -> ReportView:
    """Return a report with its rows. Needs `admin` on everything. Raises NotFound."""
    access.require_everything(actor, str(id), what="report")
    with reachable():
        row = Report.objects.filter(pk=id).first()
        if row is None:
            raise NotFound(f"There is no report {id}.")
        values = tuple(row.rows.order_by("number").values_list("values", flat=True))
    return ReportView(
        row.pk,
        row.name,
        row.engine,
        ms(row.made_at),
        row.settings,
        tuple(row.columns),
        values,
    )


prune = PruneRule(Report.objects.all(), at="made_at", days=KEPT_DAYS)
