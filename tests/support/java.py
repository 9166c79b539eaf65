"""Java of tests: it lives for seconds, so it compiles quickly rather than well, and has one
collector.

Spark's classes come from an archive (class data sharing), which saves a third of each
start. It is made when it is missing, and kept in the user's cache for this Java, this Spark
and its place.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import uuid
from contextlib import suppress
from pathlib import Path

import pyspark

from tests.support.environment import ROOT

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "catmq" / "spark"
LIMIT_S = 300
# What most jobs do: read rows, shuffle them, write files.
PROGRAM = """
import sys
from spark_tasks import sessions
few = {"spark.sql.shuffle.partitions": "1"}
session = sessions.start("classes", master="local[1]", memory="512m", conf=few)
rows = session.range(100).selectExpr("id % 7 AS part",
"CAST(id AS STRING) AS text").groupBy("part").count()
rows.write.parquet(sys.argv[1])
session.read.parquet(sys.argv[1]).orderBy("part").collect()
session.stop()
"""


def options() -> str:
    """Return the options of every Java, with the archive if it could be made."""
    archive = CACHE / f"{_state()}.jsa"
    if not archive.exists():
        _make(archive)
    return f"{QUICK} -XX:SharedArchiveFile={archive}" if archive.exists() else QUICK


def _make(archive: Path) -> None:
    archive.parent.mkdir(parents=True, exist_ok=True)
    draft = archive.with_name(f"{uuid.uuid4().hex}.draft")  # somebody else may make it, too
    environ = {
        **os.environ,
        "JDK_JAVA_OPTIONS": f"{QUICK} -XX:ArchiveClassesAtExit={draft}",
    }
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-c", PROGRAM, f"{scratch}/rows"]
        # Java ends after Python; it has both pipes, so this waits for it. If that takes too
        # long, tests run without the archive.
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(
                command,
                env=environ,
                cwd=ROOT,
                check=True,
                capture_output=True,
                timeout=LIMIT_S,
            )
    if draft.exists():
        draft.rename(archive)


def _state() -> str:
    """Return a name that changes with what an archive depends on."""
    java = Path(os.environ.get("JAVA_HOME", "/none"), "bin", "java")
    command = [str(java) if java.exists() else "java", "-version"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    place = Path(pyspark.__file__).resolve()
    return hashlib.sha256(f"{told} {pyspark.__version__} {place}".encode()).hexdigest()[:16]
