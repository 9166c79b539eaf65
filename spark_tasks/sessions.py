"""A Spark session with the format `catmq`; on a cluster, with the code that its executors
need.
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
    """A session on `master`, this machine or a cluster. Raises JobError without Java."""
    check_java()
    # Python of the workers: else they take whatever `python3` the PATH has.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    roots = [
        str(Path(package.__path__[0]).parent) for package in (spark_tasks, catmq_client)
    ]
    given = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*roots, *given]))
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in {**_defaults(memory), **(conf or {})}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    if not master.startswith("local"):
        spark.sparkContext.addPyFile(str(_packed()))
    spark.sparkContext.setLogLevel("WARN")
    register(spark)
    return spark


def check_java() -> None:
    home = os.environ.get("JAVA_HOME")
    if not (home and Path(home, "bin", "java").exists()) and shutil.which("java") is None:
        raise JobError(NO_JAVA)


def _defaults(memory: str) -> dict[str, str]:
    return {
        "spark.driver.memory": memory,
        "spark.executor.memory": memory,
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "8",
        # A column of bodies: few rows at a time between Python and Java.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        "spark.sql.parquet.compression.codec": "zstd",
    }


def _packed() -> Path:
    """The code that executors need, as one zip; other packages they have themselves."""
    path = Path(tempfile.mkdtemp(prefix="catmq-spark-"), "catmq_code.zip")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for package in (spark_tasks, catmq_client):
            root = Path(package.__path__[0])
            for file in sorted(root.rglob("*.py")):
                out.write(file, str(Path(package.__name__, file.relative_to(root))))
    return path
