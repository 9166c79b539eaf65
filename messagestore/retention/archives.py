"""Proof of what an archive holds; Spark jobs write archives, spark_tasks/archives.py says how.

ARCHIVE/<topic>/day=<day>/manifest.json names parts, their files with SHA-256, and the offsets of each queue.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from metadata.errors import Conflict, Invalid
from metadata.grouping import grouped

FORMAT = 1
BLOCK = 1 << 20  # bytes read at once


class Archived(NamedTuple):
    """The offsets first … end - 1 of a queue, of the node whose data carries `identity`."""

    first: int
    end: int
    identity: str


class Stock(NamedTuple):
    """Contents of an archive for one topic; days are such as 2026-11-22."""

    topic: str
    days: int
    first_day: str
    last_day: str
    rows: int
    bytes: int


def stock(archive: Path) -> list[Stock]:
    """List an archive by topic; its files are not looked at. Raises Conflict for a damaged manifest."""
    topics = grouped((one.parent.parent.name, one) for one in sorted(archive.glob("*/day=*/manifest.json")))
    return [_stock(topic, manifests) for topic, manifests in topics.items()]


def _stock(topic: str, manifests: Sequence[Path]) -> Stock:
    days = [manifest.parent.name.removeprefix("day=") for manifest in manifests]
    parts = [part for manifest in manifests for part in _parts(manifest, topic)]
    rows = sum(one["rows"] for part in parts for one in part["ranges"])
    size = sum(file["bytes"] for part in parts for file in part["files"])
    return Stock(topic, len(days), days[0], days[-1], rows, size)


def proven(
    archive: Path, topic: str, *, say: Callable[[str, int, int], None] | None = None
) -> dict[int, list[Archived]]:
    """{queue: what the archive holds of it, rising}, after every file was found as it was published.

    `say` hears which day is checked, how many were, of how many. Raises Invalid if there is no such archive,
    Conflict if it is damaged.
    """
    home = archive / topic
    if not home.is_dir():
        raise Invalid.field("archive", f"{archive} has no archived days of topic {topic}")
    held: dict[int, list[Archived]] = {}
    manifests = sorted(home.glob("day=*/manifest.json"))
    for number, manifest in enumerate(manifests):
        if say is not None:
            say(f"checking the archive, {manifest.parent.name}:", number, len(manifests))
        for part in _parts(manifest, topic):
            _check(manifest.parent / part["directory"], part["files"])
            for one in part["ranges"]:
                held.setdefault(one["queue"], []).append(Archived(one["first"], one["end"], one["identity"]))
    return {queue: sorted(mine) for queue, mine in held.items()}


def covered(held: Sequence[Archived], low: int) -> int:
    """The offset up to which an archive holds everything from `low` on; parts rise.

    >>> covered([Archived(0, 10, ""), Archived(10, 20, ""), Archived(25, 30, "")], 5)
    20
    >>> covered([Archived(10, 20, "")], 5)
    5
    """
    reached = low
    for one in held:
        if one.first <= reached:
            reached = max(reached, one.end)
    return reached


def _parts(manifest: Path, topic: str) -> list[dict[str, Any]]:
    try:
        value = json.loads(manifest.read_text())
        if (value["format"], value["topic"]) != (FORMAT, topic):
            raise ValueError(f"format {value['format']} of topic {value['topic']}")
        return list(value["parts"])
    except (ValueError, KeyError, TypeError) as error:
        raise Conflict(f"{manifest} is damaged ({error}); take it from a backup.") from None


def _check(part: Path, files: Sequence[dict[str, Any]]) -> None:
    for file in files:
        path = part / file["name"]
        if not path.exists():
            raise Conflict(f"{path} is missing; take it from a backup.")
        if path.stat().st_size != file["bytes"] or _sha256(path) != file["sha256"]:
            raise Conflict(f"{path} is damaged; take it from a backup.")


def _sha256(path: Path) -> str:
    sums = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            sums.update(block)
    return sums.hexdigest()
