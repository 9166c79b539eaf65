"""Jobs of the data pipeline in the portal: asked for, taken up once, followed, cancelled."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from catmq_site.background import pipeline as carrying
from messagestore import retention
from messagestore.topology import topics
from metadata import actors
from metadata.cache import snapshot
from metadata.config import config
from metadata.db.clock import database_now
from metadata.errors import Conflict, Forbidden
from metadata.jobs import pipeline, reports, runs
from metadata.jobs.pipeline import Place
from metadata.models import AuditLog, JobRun, Report
from tests.support.forms import browser, carry_out, confirm, filled, text

ME = actors.command("test")


@pytest.fixture
def topic(make_node: Callable[..., str]) -> str:
    """A topic."""
    make_node("main")
    topics.create(name="orders", queues=1, actor=ME)
    snapshot.refresh()
    return "orders"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The archive of this installation."""
    monkeypatch.setattr(
        carrying, "config", dataclasses.replace(config, archive_dir=str(tmp_path))
    )
    return tmp_path


@pytest.fixture
def started(metadata_db: None, home: Path) -> Iterator[list[int]]:
    """The runs that workers were asked to start."""
    found: list[int] = []
    before = pipeline._runner.start, pipeline._runner.place
    pipeline.set_runner(
        found.append, lambda: Place(str(home), "local[2]", "1g", "Java is not here")
    )
    yield found
    pipeline._runner.start, pipeline._runner.place = before


@pytest.fixture
def ada(started: list[int]) -> Client:
    """An administrator's browser."""
    return browser("ada", administrator=True)


def archived(home: Path, topic: str, *, rows: int = 7) -> None:
    """An archive of one day, as far as manifests tell."""
    day = home / topic / "day=2026-11-20"
    day.mkdir(parents=True)
    ranges = [{"queue": 1, "first": 0, "end": rows, "rows": rows, "identity": "x"}]
    part = {
        "directory": "part-1",
        "ranges": ranges,
        "files": [{"name": "f", "bytes": 5, "sha256": "-"}],
    }
    value = {"format": 1, "topic": topic, "day": "2026-11-20", "parts": [part]}
    (day / "manifest.json").write_text(json.dumps(value))


@pytest.mark.one_engine
def test_an_archive_is_asked_for_and_written_down(
    topic: str, started: list[int], ada: Client
) -> None:
    page = text(
        carry_out(
            ada, "/create/archive", topic=topic, rows_per_second="500", master="local[1]"
        )
    )
    run = JobRun.objects.get()
    assert (
        started == [run.pk]
        and f"Run {run.pk} was queued" in page
        and "No worker has started" in page
    )
    assert (run.name, run.asked_by, run.settings["rows_per_second"]) == (
        "spark_archive",
        "ada",
        500,
    )
    row = AuditLog.objects.latest("id")
    assert (row.actor_name, row.verb, row.kind, row.name) == (
        "ada",
        "run",
        "job",
        "spark_archive",
    )
    assert row.after is not None and row.after["topic"] == topic


@pytest.mark.one_engine
def test_what_cannot_be_is_refused_before_anything_is_asked_for(
    topic: str, home: Path, started: list[int], ada: Client
) -> None:
    assert "does not exist" in text(filled(ada, "/create/archive", topic="nothing"))
    both = filled(ada, "/create/archive", topic=topic, through="2026-11-20", up_to_now="on")
    assert "either a last day or today" in text(both)
    elsewhere = text(
        filled(ada, "/create/archive", topic=topic, master="spark://elsewhere:7077")
    )
    assert "Preview of the changes" not in elsewhere, (
        "accounts of nodes go where the settings say"
    )
    assert "has no archived days of this topic" in text(
        filled(ada, "/create/purge", topic=topic)
    )
    archived(home, topic)
    assert "does not exist" in text(
        filled(ada, "/create/replay", topic=topic, to="nothing")
    )
    assert "7 messages of orders" in text(
        filled(ada, "/create/replay", topic=topic, to=topic)
    )
    assert "Java is not here" in text(filled(ada, "/create/archive", topic=topic))
    assert started == [] and not JobRun.objects.exists()


@pytest.mark.one_engine
def test_a_damaged_archive_is_said_where_it_is_shown(
    topic: str, home: Path, ada: Client
) -> None:
    archived(home, topic)
    page = text(ada.get("/pipeline"))
    assert "2026-11-20" in page and "Java is not here" in page
    (home / topic / "day=2026-11-20" / "manifest.json").write_text("{")
    assert "Java is not here" in text(ada.get("/pipeline"))
    pipeline.set_runner(lambda run: None, lambda: Place(str(home), "local[2]", "1g"))
    assert "is damaged" in text(ada.get("/pipeline"))


@pytest.mark.one_engine
def test_a_run_is_asked_for_by_administrators_only(started: list[int], topic: str) -> None:
    somebody = actors.Actor(
        kind="user", name="uma", rights={"manage": ("*",), "admin": ("ord*",)}
    )
    with pytest.raises(Forbidden):
        pipeline.request_run(name=pipeline.PURGE, settings={"topic": topic}, actor=somebody)
    assert started == []


def asked(name: str, **settings: object) -> int:
    """A run that was asked for."""
    return pipeline.request_run(
        name=name,
        settings=settings,
        actor=actors.Actor("user", "ada", rights={"admin": ("*",)}),
    )


def test_a_run_is_taken_up_once(started: list[int]) -> None:
    run = asked(pipeline.PURGE, topic="orders")
    first = pipeline.claim_run(id=run)
    assert first is not None and first[1] == {"topic": "orders"}
    assert pipeline.claim_run(id=run) is None


def test_a_run_that_nobody_took_up_is_cancelled_at_once(
    started: list[int], ada: Client
) -> None:
    run = asked(pipeline.PURGE, topic="orders")
    page = text(carry_out(ada, f"/runs/{run}/cancel"))
    assert "cancelled before it began" in page
    assert not carrying.execute_run(run), "whoever comes later finds it ended"


@pytest.mark.one_engine
def test_a_run_whose_process_died_says_so_and_is_ended(
    started: list[int], ada: Client
) -> None:
    run = asked(pipeline.PURGE, topic="orders")
    assert pipeline.claim_run(id=run) is not None
    long_ago = database_now() - timedelta(milliseconds=runs.SILENT_MS + 5_000)
    JobRun.objects.filter(pk=run).update(seen_at=long_ago)
    assert "not responding" in text(
        ada.get("/pipeline")
    ) and "does not report progress" in text(ada.get(f"/runs/{run}"))
    assert "Its process stopped reporting" in text(carry_out(ada, f"/runs/{run}/cancel"))
    assert JobRun.objects.get(pk=run).state == "cancelled"


@pytest.mark.one_engine
def test_a_run_that_lives_is_asked_and_shows_where_it_is(
    started: list[int], ada: Client
) -> None:
    number = asked(pipeline.ARCHIVE, topic="orders")
    taken = pipeline.claim_run(id=number)
    assert taken is not None
    run = taken[0]
    run.report_progress("day 2026-11-20: writing", 3, 8)
    run.record_alive(log="first line\n<b>second</b>")
    page = text(ada.get(f"/runs/{number}"))
    assert "day 2026-11-20: writing" in page and "3 of 8" in page and 'max="8"' in page
    assert "&lt;b&gt;second" in page, "a log is text"
    carry_out(ada, f"/runs/{number}/cancel")
    assert run.cancel_asked() and JobRun.objects.get(pk=number).state == "running"
    assert "Cancellation requested" in text(ada.get(f"/runs/{number}"))


@pytest.mark.one_engine
def test_what_a_job_raises_stands_in_its_run(
    topic: str, started: list[int], home: Path, ada: Client
) -> None:
    archived(home, topic)  # its file is missing
    run = asked(pipeline.PURGE, topic=topic)
    with pytest.raises(Conflict, match="is missing"):
        carrying.execute_run(run)
    page = text(ada.get(f"/runs/{run}"))
    assert (
        "Why it failed" in page
        and "is missing" in page
        and "checking the archive, day=2026-11-20" in page
    )


@pytest.mark.one_engine
def test_a_purge_ends_between_two_steps_when_it_is_asked_to(
    topic: str, started: list[int], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = asked(pipeline.PURGE, topic=topic)

    def purge(**words: object) -> list[object]:
        JobRun.objects.filter(pk=run).update(cancel_asked=True)
        words["progress"](retention.Progress("partitions", 1, 3))  # type: ignore[operator]
        raise AssertionError("it went on")

    monkeypatch.setattr(retention, "purge", purge)
    with pytest.raises(runs.Cancelled):
        carrying.execute_run(run)
    assert JobRun.objects.get(pk=run).state == "cancelled"


@pytest.mark.one_engine
def test_a_purge_of_many_steps_writes_only_its_last_lines_and_only_now_and_then(
    topic: str, started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = asked(pipeline.PURGE, topic=topic)

    def purge(**words: object) -> list[object]:
        for step in range(1, 1001):
            words["progress"](retention.Progress("partitions", step, 1000))  # type: ignore[operator]
        raise Conflict("it ended early")

    monkeypatch.setattr(retention, "purge", purge)
    with CaptureQueriesContext(connection) as seen, pytest.raises(Conflict):
        carrying.execute_run(run)
    row = JobRun.objects.get(pk=run)
    lines = row.log.splitlines()
    assert (row.done, lines[0], lines[-1]) == (
        1000,
        "partitions 701 of 1,000",
        "partitions 1,000 of 1,000",
    )
    written = [one for one in seen if "log" in one["sql"] and "partitions" in one["sql"]]
    assert 1 <= len(written) < 20, "a run that takes a minute writes it a dozen times"


@pytest.mark.one_engine
def test_a_report_by_spark_is_asked_for_and_found_from_its_run(
    topic: str, started: list[int], ada: Client
) -> None:
    url = "/create/report?engine=spark"
    opened = filled(ada, url, name="volume", topic=topic, engine="spark")
    assert "A Spark job will read the messages" in text(opened)
    confirm(ada, url, opened)
    run = JobRun.objects.get()
    assert (run.name, run.settings) == ("spark_report_volume", {"topic": topic, "days": 7})
    assert not Report.objects.exists()
    made = reports.save_report(
        name="volume",
        engine="spark",
        settings={},
        rows=[{"n": 1}],
        actor=ME,
        job_run=run.pk,
    )
    assert f"/reports/{made}" in text(ada.get(f"/runs/{run.pk}"))


@pytest.mark.one_engine
def test_a_report_is_downloaded_as_parquet_with_its_types(
    started: list[int], ada: Client
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [{"topic": "=1+1", "messages": 3}, {"topic": "ü", "share": 0.5}]
    made = reports.save_report(
        name="odd", engine="direct", settings={}, rows=rows, actor=ME
    )
    answer = ada.get(f"/reports/{made}/parquet")
    assert f'filename="odd-{made}.parquet"' in answer["Content-Disposition"]
    found = parquet.read_table(io.BytesIO(answer.content)).to_pylist()
    assert found == [
        {"topic": "=1+1", "messages": 3, "share": None},
        {"topic": "ü", "messages": None, "share": 0.5},
    ]
    assert f"/reports/{made}/parquet" in text(ada.get("/reports"))


@pytest.mark.one_engine
def test_without_pyarrow_no_parquet_is_offered(
    started: list[int], ada: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metadata.jobs.report_files.can_parquet", lambda: False)
    made = reports.save_report(
        name="odd", engine="direct", settings={}, rows=[{"a": 1}], actor=ME
    )
    assert "parquet" not in text(ada.get("/reports")) + text(ada.get(f"/reports/{made}"))
    answer = ada.get(f"/reports/{made}/parquet")
    assert answer.status_code == 409 and "script/setup --with-spark" in text(answer)
