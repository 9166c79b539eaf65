"""The report on latency against plain Python, on messages and looks of known times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from spark_tasks.jobs import report_latency
from spark_tasks.jobs.running import Job
from tests.spark.stage import Stage

COUNT = 500
# (committed, ms later)
LOOKS = [(0, 0), (40, 900), (40, 2_000), (310, 3_100), (300, 4_000), (450, 5_500)]


def test_waits_lie_between_two_looks_as_plain_python_finds(
    stage: Stage, spark: SparkSession, tmp_path: Path
) -> None:
    topic = stage.topic("maria", queues=1)
    stage.fill(topic, COUNT)
    (queue,) = stage.queues(topic)
    spread = (
        "stored_at = DATE_SUB(stored_at, INTERVAL (10000 + MOD(msg_offset * 7, 900)) "
        "* 1000 MICROSECOND)"
    )
    stage.execute("maria", f"UPDATE {{message_{queue}}} SET {spread}")
    columns = "msg_offset, CAST(UNIX_TIMESTAMP(stored_at) * 1000 AS SIGNED)"
    stored = dict(stage.execute("maria", f"SELECT {columns} FROM {{message_{queue}}}"))
    begun = min(stored.values())
    looks = [(committed, begun + later) for committed, later in LOOKS]
    for group in ("fast", "never"):
        stage.admin.create_group(group)
        stage.admin.subscribe(group, topic)
    looked(stage, topic, "fast", queue, looks)
    fast, never = made(stage, spark, topic, tmp_path)
    expected = plain(stored, looks)
    assert {key: fast[key] for key in expected} == expected
    assert (never["committed"], never["waiting"], never["problem"]) == (
        0,
        COUNT,
        "no commit was seen",
    )


def plain(stored: dict[int, int], looks: list[tuple[int, int]]) -> dict[str, Any]:
    """The figures, looked up message by message."""
    least, most, waiting = [], [], 0
    for offset, at in stored.items():
        number = next(
            (n for n, (committed, _) in enumerate(looks) if committed > offset), None
        )
        if number is None:
            waiting += 1
            continue
        least.append(max(0, looks[number - 1][1] - at))
        most.append(max(0, looks[number][1] - at))
    count = len(most)
    ranks = {
        "p50": -(-count * 50 // 100) - 1,
        "p95": -(-count * 95 // 100) - 1,
        "most": count - 1,
    }
    found = {f"{name}_from_ms": sorted(least)[rank] for name, rank in ranks.items()}
    found |= {f"{name}_to_ms": sorted(most)[rank] for name, rank in ranks.items()}
    widest = max(high - low for low, high in zip(least, most, strict=True))
    return {
        "committed": count,
        "waiting": waiting,
        "not_known": 0,
        "resolution_ms": widest,
        **found,
    }


def looked(
    stage: Stage, topic: str, group: str, queue: int, looks: list[tuple[int, int]]
) -> None:
    """Writes looks as the job that records lag would have."""
    code = (
        "from metadata.db.clock import database_now; "
        "from metadata.models import CommitLook, ConsumerGroup, Topic; "
        "now = database_now(); "
        f"t = Topic.objects.get(name='{topic}').pk; g = "
        f"ConsumerGroup.objects.get(name='{group}').pk; "
        "CommitLook.objects.filter(topic_ref=t).delete(); "
        "[CommitLook.objects.create(topic_ref=t, group_ref=g, at=now, "
        f"positions={{'{queue}': [c, a, a]}})"
        f" for c, a in {looks}]"
    )
    stage.server.manage("shell", "-v", "0", "-c", code)


def made(
    stage: Stage, spark: SparkSession, topic: str, where: Path
) -> list[dict[str, Any]]:
    """The rows of the report, by the job in the session's Spark with the server's own
    inputs.
    """
    code = (
        "import json; from catmq_site.background import reporting; from messagestore.inspect "
        "import light_reports; "
        "from metadata import actors; a = actors.command('test'); "
        f"rows = light_reports.make_report(name='latency', topic='{topic}', days=7, actor=a); "
        "print(json.dumps([reporting.add_commit_times(row, 7, a) for row in rows]))"
    )
    (where / "inputs.json").write_text(stage.server.manage("shell", "-v", "0", "-c", code))
    (where / "settings.json").write_text("{}")
    job = Job("report_latency", where)
    job._spark = spark
    report_latency.run(job)
    return [json.loads(line) for line in (where / "report.jsonl").read_text().splitlines()]
