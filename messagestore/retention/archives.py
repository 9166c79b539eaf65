"""Verification of archives, which Spark jobs write (spark_tasks/archives.py).

ARCHIVE/<topic>/day=<day>/manifest.json names parts, their files with SHA-256, and the
offsets of each queue.
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


class Archived(NamedTuple):
    """The offsets first … end - 1 of a queue, from the node whose data has this `identity`."""

    first: int
    end: int
    identity: str


class Stock(NamedTuple):
    """Contents of an archive for a topic. Days have the form 2026-11-22."""

    topic: str
    days: int
    first_day: str
    last_day: str
    rows: int
    bytes: int


def stock(archive: Path) -> list[Stock]:
    """List the contents of an archive by topic. Raises Conflict if a manifest is damaged.

    Only manifests are read. The files that they name are not checked.
    """
    topics = grouped(
        (manifest.parent.parent.name, manifest)
        for manifest in sorted(archive.glob("*/day=*/manifest.json"))
    )
    stocks = []
    for topic, topic_manifests in topics.items():
        days = [manifest.parent.name.removeprefix("day=") for manifest in topic_manifests]
        entries = [entry for path in topic_manifests for entry in _read_parts(path, topic)]
        rows = sum(span["rows"] for entry in entries for span in entry["ranges"])
        size = sum(file["bytes"] for entry in entries for file in entry["files"])
        stocks.append(Stock(topic, len(days), days[0], days[-1], rows, size))
    return stocks


def proven(
    archive: Path, topic: str, *, say: Callable[[str, int, int], None] | None = None
) -> dict[int, list[Archived]]:
    """Check every file of an archived topic. Return the archived spans by queue, rising.

    `say` is called before each day with a text, the number of checked days, and the number
    of all. Raises Invalid if the archive has no such topic, Conflict if a file is missing
    or damaged.
    """
    topic_folder = archive / topic
    if not topic_folder.is_dir():
        raise Invalid.field("archive", f"{archive} has no archived days of topic {topic}")
    archived: dict[int, list[Archived]] = {}
    manifests = sorted(topic_folder.glob("day=*/manifest.json"))
    for number, manifest in enumerate(manifests):
        if say is not None:
            say(f"checking the archive, {manifest.parent.name}:", number, len(manifests))
        for entry in _read_parts(manifest, topic):
            # After a purge the archive has the only copy, so each size and checksum is
            # compared.
            for file in entry["files"]:
                path = manifest.parent / entry["directory"] / file["name"]
                if not path.exists():
                    raise Conflict(f"{path} is missing; take it from a backup.")
                with path.open("rb") as content:
                    checksum = hashlib.file_digest(content, "sha256").hexdigest()
                if path.stat().st_size != file["bytes"] or checksum != file["sha256"]:
                    raise Conflict(f"{path} is damaged; take it from a backup.")
            for span in entry["ranges"]:
                archived.setdefault(span["queue"], []).append(
                    Archived(span["first"], span["end"], span["identity"])
                )
    return {queue: sorted(spans) for queue, spans in archived.items()}


def covered(held: Sequence[Archived], low: int) -> int:
    """Return the offset up to which spans in rising order hold everything from `low` on.

    >>> covered([Archived(0, 10, ""), Archived(10, 20, ""), Archived(25, 30, "")], 5)
    20
    >>> covered([Archived(10, 20, "")], 5)
    5
    """
    reached = low
    for span in held:
        if span.first <= reached:
            reached = max(reached, span.end)
    return reached


def _read_parts(manifest: Path, topic: str) -> list[dict[str, Any]]:
    """Return the parts that a manifest names. Raises Conflict if the manifest is damaged."""
    try:
        value = json.loads(manifest.read_text())
        if (value["format"], value["topic"]) != (FORMAT, topic):
            raise ValueError(f"format {value['format']} of topic {value['topic']}")
        return list(value["parts"])
    except (ValueError, KeyError, TypeError) as error:
        raise Conflict(f"{manifest} is damaged ({error}); take it from a backup.") from None
