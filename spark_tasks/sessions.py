"""Start a Spark session with the format `catmq`. On a cluster, executors get the code as a
zip file.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

import catmq_client
import spark_tasks
from spark_tasks.errors import JobError
from spark_tasks.reading.source import register

NO_JAVA = (
    "Spark needs Java 17 or 21, and there is no `java` here. On Debian or Ubuntu, as root: "
    "apt-get install -y default-jre-headless   (or set JAVA_HOME)"
)


def start(
    name: str,
    *,
    master: str = "local[*]",
    memory: str = "1g",
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a session on `master`, this machine or a cluster. Raises JobError without
    Java.
    """
    check_java()
    # Without this, workers run the first `python3` of the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    roots = [
        str(Path(package.__path__[0]).parent) for package in (spark_tasks, catmq_client)
    ]
    earlier_roots = [
        root for root in os.environ.get("PYTHONPATH", "").split(os.pathsep) if root
    ]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*roots, *earlier_roots]))
    builder = SparkSession.builder.master(master).appName(name)
    defaults = {
        "spark.driver.memory": memory,
        "spark.executor.memory": memory,
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "8",
        # Rows with bodies are large, so few at a time go from Python to Java.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        "spark.sql.parquet.compression.codec": "zstd",
    }
    for key, value in {**defaults, **(conf or {})}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    if not master.startswith("local"):
        spark.sparkContext.addPyFile(str(_zip_code()))
    spark.sparkContext.setLogLevel("WARN")
    register(spark)
    return spark


def check_java() -> None:
    home = os.environ.get("JAVA_HOME")
    if not (home and Path(home, "bin", "java").exists()) and shutil.which("java") is None:
        raise JobError(NO_JAVA)


def _zip_code() -> Path:
    """Return a zip file of the code that executors need; other packages are installed
    there.
    """
    path = Path(tempfile.mkdtemp(prefix="catmq-spark-"), "catmq_code.zip")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in (spark_tasks, catmq_client):
            root = Path(package.__path__[0])
            for file in sorted(root.rglob("*.py")):
                archive.write(file, str(Path(package.__name__, file.relative_to(root))))
    return path
