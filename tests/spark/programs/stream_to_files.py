"""A driver that streams a topic into Parquet files: TOPIC DIRECTORY [--until-empty]."""

from __future__ import annotations

import sys
from pathlib import Path

from spark_tasks import sessions


def main(topic: str, directory: str, *arguments: str) -> None:
    """Streams in small batches, so that a kill falls between two or into one."""
    home = Path(directory)
    spark = sessions.start("stream", master="local[1]", memory="512m")
    reader = spark.readStream.format("catmq").option("topic", topic).option("maxOffsetsPerTrigger", 500)
    writer = (
        reader.load().writeStream.format("parquet").option("checkpointLocation", str(home / "checkpoint"))
    )
    if "--until-empty" in arguments:
        writer = writer.trigger(availableNow=True)
    writer.start(str(home / "out")).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
