"""Archives: a directory of Parquet files for each topic and day, with a manifest of the
published parts.

    ARCHIVE/<topic>/day=2026-11-22/manifest.json     the published parts of a day
    ARCHIVE/<topic>/day=2026-11-22/part-<run>/…      the files that a run wrote
    ARCHIVE/<topic>/.lock                            held by the job that writes

Readers use only the parts that the manifest names. The manifest is replaced by a rename, so
a crash leaves the day unchanged, plus files that no reader opens. For each queue a part
records its offsets, the identity of the node they came from, the number of rows, and two
checksums. The checksums were computed from the source and again from the files, and were
equal. The SHA-256 of each file detects later damage. All writers must see the directory
under the same path, because the lock is a file in it.
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

from spark_tasks.errors import ArchiveError
from spark_tasks.nodes.plans import Span

FORMAT = 1
MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A file of a part. `name` is its path within the part's directory."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ArchivedRange:
    """The offsets first … end - 1 of a queue. `rows` is smaller if gaps were declared.

    `xor` and `sum` are checksums over the hashes of the rows. They do not depend on the
    order of rows; a changed, missing or doubled row changes them.
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
    """The files of a day that a run published. `directory` is its name within the day."""

    directory: str
    ranges: tuple[ArchivedRange, ...]
    files: tuple[ArchivedFile, ...]


def topic_directory(archive: str | Path, topic: str) -> Path:
    return Path(archive, topic)


def list_days(archive: str | Path, topic: str) -> list[str]:
    """Return the published days in ascending order, such as 2026-11-22."""
    manifests = topic_directory(archive, topic).glob(f"day=*/{MANIFEST}")
    return sorted(path.parent.name.removeprefix("day=") for path in manifests)


def day_directory(archive: str | Path, topic: str, day: str) -> Path:
    return topic_directory(archive, topic) / f"day={day}"


def read_parts(archive: str | Path, topic: str, day: str) -> list[Part]:
    """Return the published parts of a day, [] without a manifest.

    Raises ArchiveError if the manifest is damaged.
    """
    path = day_directory(archive, topic, day) / MANIFEST
    if not path.exists():
        return []
    try:
        manifest = json.loads(path.read_text())
        if manifest["format"] != FORMAT:
            raise ValueError(f"format {manifest['format']}, this version knows {FORMAT}")
        if (manifest["topic"], manifest["day"]) != (topic, day):
            raise ValueError(f"it is of topic {manifest['topic']}, day {manifest['day']}")
        return [
            Part(
                part["directory"],
                tuple(ArchivedRange(**fields) for fields in part["ranges"]),
                tuple(ArchivedFile(**fields) for fields in part["files"]),
            )
            for part in manifest["parts"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise ArchiveError(f"{path} is damaged ({error}); take it from a backup") from None


def publish(archive: str | Path, topic: str, day: str, part: Part, *, draft: Path) -> None:
    """Move the files in `draft` into a day as a new part.

    Readers see the whole part or nothing of it: it counts once the manifest is replaced.
    """
    directory = day_directory(archive, topic, day)
    directory.mkdir(parents=True, exist_ok=True)
    published = read_parts(archive, topic, day)
    target = directory / part.directory
    # Left by a run that crashed after this rename and before its manifest.
    if target.exists():
        shutil.rmtree(target)
    os.rename(draft, target)
    manifest = {
        "format": FORMAT,
        "topic": topic,
        "day": day,
        "parts": [asdict(published_part) for published_part in (*published, part)],
    }
    write_atomically(directory / MANIFEST, json.dumps(manifest, indent=1) + "\n")


def write_atomically(path: Path, text: str) -> None:
    """Replace the content of a file in a single rename. The text is on disk when this
    returns.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    with draft.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.rename(draft, path)
    # The rename itself is durable only once the directory is flushed.
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def list_files(directory: Path) -> tuple[ArchivedFile, ...]:
    """Flush the Parquet files under a directory, and return them with sizes and SHA-256."""
    files = []
    for path in sorted(directory.rglob("*.parquet")):
        with path.open("rb") as file:
            os.fsync(file.fileno())
        files.append(
            ArchivedFile(
                str(path.relative_to(directory)), path.stat().st_size, file_sha256(path)
            )
        )
    return tuple(files)


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_files(archive: str | Path, topic: str, day: str) -> list[Path]:
    """Return the paths of a day's files after comparing each with its manifest.

    Raises ArchiveError for the first file that is missing or damaged.
    """
    paths = []
    for part in read_parts(archive, topic, day):
        for file in part.files:
            path = day_directory(archive, topic, day) / part.directory / file.name
            if not path.exists():
                raise ArchiveError(f"{path} is missing; take it from a backup")
            if path.stat().st_size != file.bytes or file_sha256(path) != file.sha256:
                raise ArchiveError(f"{path} is damaged; take it from a backup")
            paths.append(path)
    return paths


def find_coverage(
    archive: str | Path, topic: str, queue: int, span: Span
) -> list[tuple[str, Span]]:
    """Return the archived offsets within a span as (day, offsets), in ascending order."""
    archived = []
    for day, archived_range in iterate_ranges(archive, topic):
        first = max(archived_range.first, span.first)
        end = min(archived_range.end, span.end)
        if archived_range.queue == queue and first < end:
            archived.append((day, Span(first, end)))
    return sorted(archived, key=lambda pair: pair[1])


def iterate_ranges(archive: str | Path, topic: str) -> Iterator[tuple[str, ArchivedRange]]:
    """Yield the ranges of all published parts, with their days. Raises ArchiveError."""
    for day in list_days(archive, topic):
        for part in read_parts(archive, topic, day):
            for archived_range in part.ranges:
                yield day, archived_range


@contextmanager
def lock_archive(archive: str | Path, topic: str) -> Iterator[None]:
    """Keep other jobs from writing to a topic's archive.

    Raises ArchiveError if another job holds the lock. The kernel releases the lock when its
    process ends, so a killed job leaves none. On NFS this needs version 4.
    """
    directory = topic_directory(archive, topic)
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ArchiveError(
                f"another job is writing to the archive of topic {topic} in {archive}; "
                "start again later"
            ) from None
        yield
