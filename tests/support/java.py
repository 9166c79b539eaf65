"""Java options for tests: quick compilation and a single collector, because processes live
for seconds.

Spark's classes come from an archive (class data sharing), which saves a third of each
start. It is created if it is missing, and stored in the user's cache for this Java, Spark
and path.
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
# The work of most jobs: read rows, shuffle them, write files.
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
    """Return the options of every Java process, with the archive if it could be created."""
    archive = CACHE / f"{_fingerprint()}.jsa"
    if not archive.exists():
        _create_archive(archive)
    return f"{QUICK} -XX:SharedArchiveFile={archive}" if archive.exists() else QUICK


def _create_archive(archive: Path) -> None:
    archive.parent.mkdir(parents=True, exist_ok=True)
    # Another process may create it at the same time.
    draft = archive.with_name(f"{uuid.uuid4().hex}.draft")
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


def _fingerprint() -> str:
    """Return a name that changes with Java, Spark and its path."""
    java = Path(os.environ.get("JAVA_HOME", "/none"), "bin", "java")
    command = [str(java) if java.exists() else "java", "-version"]
    version = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    path = Path(pyspark.__file__).resolve()
    return hashlib.sha256(f"{version} {pyspark.__version__} {path}".encode()).hexdigest()[
        :16
    ]
