"""Input of the main job: file changes of a real repository, or generated changes of the
same shape.

The real file is in ../shared/data. Without it a stream is generated, with about as many
paths, some far busier than others; no path ever has fewer than 0 lines.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from tests.support.environment import ROOT

REAL = ROOT.parent / "shared" / "data" / "nats-server-file-changes.jsonl.gz"
EVENTS, PATHS = 19_988, 1_362  # of the real file


def generate(seed: int = 1) -> Iterator[dict[str, Any]]:
    """Yield a stream like the real stream."""
    rng = random.Random(seed)
    lines = dict.fromkeys((f"server/file_{number}.go" for number in range(PATHS)), 0)
    paths = list(lines)
    for seq in range(EVENTS):
        path = paths[
            min(int(rng.paretovariate(0.4)) - 1, PATHS - 1) if seq >= PATHS else seq
        ]
        added, deleted = rng.randrange(200), rng.randrange(min(lines[path], 150) + 1)
        lines[path] += added - deleted
        commit = f"{rng.getrandbits(48):012x}"
        yield {
            "seq": seq,
            "commit": commit,
            "time": 1_351_527_145 + seq,
            "path": path,
            "added": added,
            "deleted": deleted,
        }


def source(directory: Path) -> Path:
    """Return the whole stream as a .jsonl.gz file. A generated stream is stored in
    `directory`.
    """
    if REAL.exists():
        return REAL
    path = directory / "changes.jsonl.gz"
    if not path.exists():
        with gzip.open(path, "wt", compresslevel=1) as out:
            out.writelines(json.dumps(event) + "\n" for event in generate())
    return path


def part(directory: Path, count: int) -> Path:
    """Write the first `count` events to a .jsonl file in `directory`."""
    path = directory / f"changes-{count}.jsonl"
    with gzip.open(source(directory), "rt") as lines, path.open("w") as out:
        out.writelines(islice(lines, count))
    return path


def events(path: Path) -> list[dict[str, Any]]:
    """Return the events of a file."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]
