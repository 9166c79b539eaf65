"""Archives: a directory of Parquet files by topic and day, and the manifest that says what
counts.

    ARCHIVE/<topic>/day=2026-11-22/manifest.json     what is published of a day
    ARCHIVE/<topic>/day=2026-11-22/part-<run>/…      the files of one run, one part
    ARCHIVE/<topic>/.lock                            held by the job that writes

A part counts only once the manifest names it, and the manifest is replaced in one rename: a
crash leaves the day as it was, and files that nobody reads. Each part says, per queue,
which offsets it holds, whose data it is (the node's identity), how many rows, and two
checksums that were computed twice: of the source and of the files. A file's SHA-256 tells
damage later. All writers see the directory under the same path.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from spark_tasks.errors import ArchiveError
from spark_tasks.nodes.plans import Span

FORMAT = 1
MANIFEST = "manifest.json"
BLOCK = 1 << 20  # bytes read at once


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A file of a part, by its name within the part."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ArchivedRange:
    """The offsets first … end - 1 of a queue. `rows` is less where a gap was declared.

    `xor` and `sum` are over the rows' hashes: order does not matter, a changed, missing or
    doubled row does.
    """

    queue: int
    node: str
    identity: str
    first: int
    end: int
    rows: int
    xor: int
    sum: int


@dataclass(frozen=True, slots=True)
class Part:
    """Part of a day that one run published. `directory` is its name within the day."""

    directory: str
    ranges: tuple[ArchivedRange, ...]
    files: tuple[ArchivedFile, ...]


def topic_directory(archive: str | Path, topic: str) -> Path:
    return Path(archive, topic)


def days(archive: str | Path, topic: str) -> list[str]:
    """The days that are published, rising: 2026-11-22."""
    found = topic_directory(archive, topic).glob(f"day=*/{MANIFEST}")
    return sorted(path.parent.name.removeprefix("day=") for path in found)


def day_directory(archive: str | Path, topic: str, day: str) -> Path:
    return topic_directory(archive, topic) / f"day={day}"


def parts(archive: str | Path, topic: str, day: str) -> list[Part]:
    """The published parts of a day, none if there are none. Raises ArchiveError for a
    damaged manifest.
    """
    path = day_directory(archive, topic, day) / MANIFEST
    if not path.exists():
        return []
    try:
        return _read(json.loads(path.read_text()), topic, day)
    except (ValueError, KeyError, TypeError) as error:
        raise ArchiveError(f"{path} is damaged ({error}); take it from a backup") from None


def _read(value: Any, topic: str, day: str) -> list[Part]:
    if value["format"] != FORMAT:
        raise ValueError(f"format {value['format']}, this version knows {FORMAT}")
    if (value["topic"], value["day"]) != (topic, day):
        raise ValueError(f"it is of topic {value['topic']}, day {value['day']}")
    return [
        Part(
            one["directory"],
            tuple(ArchivedRange(**found) for found in one["ranges"]),
            tuple(ArchivedFile(**found) for found in one["files"]),
        )
        for one in value["parts"]
    ]


def publish(archive: str | Path, topic: str, day: str, part: Part, *, draft: Path) -> None:
    """Make the files in `draft` part of a day: from one rename to the next all of it, or
    nothing.
    """
    directory = day_directory(archive, topic, day)
    directory.mkdir(parents=True, exist_ok=True)
    known = parts(archive, topic, day)
    target = directory / part.directory
    if target.exists():  # of a run that died just before its manifest
        shutil.rmtree(target)
    os.rename(draft, target)
    value = {
        "format": FORMAT, "topic": topic, "day": day, "parts": [asdict(one) for one in (*known,
        part)],
    }  # fmt: skip
    write_atomically(directory / MANIFEST, json.dumps(value, indent=1) + "\n")


def write_atomically(path: Path, text: str) -> None:
    """Replace a file by one with this text, on disk when this returns."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    with draft.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.rename(draft, path)
    opened = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def described(directory: Path) -> tuple[ArchivedFile, ...]:
    """The Parquet files in a directory, with what tells damage later; each is on disk when
    this returns.
    """
    found = []
    for path in sorted(directory.rglob("*.parquet")):
        with path.open("rb") as file:
            os.fsync(file.fileno())
        found.append(
            ArchivedFile(
                str(path.relative_to(directory)), path.stat().st_size, sha256_of(path)
            )
        )
    return tuple(found)


def sha256_of(path: Path) -> str:
    sums = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            sums.update(block)
    return sums.hexdigest()


def check_files(archive: str | Path, topic: str, day: str) -> list[Path]:
    """The files of a day, each as it was published. Raises ArchiveError, naming one that is
    not.
    """
    found = []
    for part in parts(archive, topic, day):
        for file in part.files:
            path = day_directory(archive, topic, day) / part.directory / file.name
            if not path.exists():
                raise ArchiveError(f"{path} is missing; take it from a backup")
            if path.stat().st_size != file.bytes or sha256_of(path) != file.sha256:
                raise ArchiveError(f"{path} is damaged; take it from a backup")
            found.append(path)
    return found


def coverage(
    archive: str | Path, topic: str, queue: int, span: Span
) -> list[tuple[str, Span]]:
    """List the offsets that the archive holds: (day, offsets), rising."""
    found = []
    for day in days(archive, topic):
        for one in (one for part in parts(archive, topic, day) for one in part.ranges):
            first, end = max(one.first, span.first), min(one.end, span.end)
            if one.queue == queue and first < end:
                found.append((day, Span(first, end)))
    return sorted(found, key=lambda pair: pair[1])


@contextmanager
def locked(archive: str | Path, topic: str) -> Iterator[None]:
    """Keep other jobs from writing to a topic's archive. Raises ArchiveError if one does.

    The lock goes with the process, so a job that was killed leaves none. On NFS it needs
    version 4.
    """
    directory = topic_directory(archive, topic)
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            what = (
                f"another job is writing to the archive of topic {topic} in {archive}; "
                "start again later"
            )
            raise ArchiveError(what) from None
        yield
