"""The input of the main job: file changes of a real repository, or made ones of the same
shape.

The real file lies beside the checkout. Without it, a stream is made: about as many paths,
some far busier than others, and no path ever has fewer than 0 lines.
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


def made(seed: int = 1) -> Iterator[dict[str, Any]]:
    """A stream like the real one."""
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
    """The whole stream as a .jsonl.gz file; one that has to be made lies in `directory`."""
    if REAL.exists():
        return REAL
    path = directory / "changes.jsonl.gz"
    if not path.exists():
        with gzip.open(path, "wt", compresslevel=1) as out:
            out.writelines(json.dumps(event) + "\n" for event in made())
    return path


def part(directory: Path, count: int) -> Path:
    """The first `count` events, as a .jsonl file in `directory`."""
    path = directory / f"changes-{count}.jsonl"
    with gzip.open(source(directory), "rt") as lines, path.open("w") as out:
        out.writelines(islice(lines, count))
    return path


def events(path: Path) -> list[dict[str, Any]]:
    """The events of a file."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]
