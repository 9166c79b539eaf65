"""archive_sums.py ARCHIVE TOPIC: rows and sums per path of an archive of the real input, as
JSON on stdout.

It imports nothing of the project, so that what it finds owes nothing to the code that wrote
the archive: only pyarrow, and what docs/how-to/archive-and-replay.md says of the directory.
Run it with
`python -I`.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as parquet


def files(archive: Path, topic: str) -> Iterator[Path]:
    """The files that the manifests name; others are of runs that died."""
    for manifest in sorted((archive / topic).glob("day=*/manifest.json")):
        for part in json.loads(manifest.read_text())["parts"]:
            for file in part["files"]:
                yield manifest.parent / part["directory"] / file["name"]


def main(archive: str, topic: str) -> None:
    """Prints {"rows": …, "sums": {path: lines added - lines deleted}}."""
    rows, sums = 0, Counter[str]()
    for file in files(Path(archive), topic):
        for batch in parquet.ParquetFile(file).iter_batches(columns=["key", "body"]):
            rows += batch.num_rows
            for key, body in zip(
                batch["key"].to_pylist(), batch["body"].to_pylist(), strict=True
            ):
                event = json.loads(body)
                sums[key] += event["added"] - event["deleted"]
    json.dump({"rows": rows, "sums": sums}, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
