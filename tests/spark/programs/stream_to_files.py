"""A driver that streams a topic into Parquet files: TOPIC DIRECTORY."""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamWriter

from spark_tasks import sessions


def stream(spark: SparkSession, topic: str, home: Path) -> DataStreamWriter:
    """The stream, in small batches, so that a kill falls between two or into one."""
    reader = (
        spark.readStream.format("catmq")
        .option("topic", topic)
        .option("maxOffsetsPerTrigger", 500)
    )
    return (
        reader.load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(home / "checkpoint"))
    )


def main(topic: str, directory: str) -> None:
    """Streams until it is killed."""
    spark = sessions.start("stream", master="local[1]", memory="512m")
    stream(spark, topic, Path(directory)).start(
        str(Path(directory, "out"))
    ).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
