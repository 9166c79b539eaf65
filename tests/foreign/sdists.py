"""Source distributions of others, in pinned versions with their hashes; kept in
~/.cache/catmq/foreign.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

CACHE = Path.home() / ".cache/catmq/foreign"
# Name, version, sha256.
Sdist = tuple[str, str, str]


def read(source: Sdist, path: str) -> str:
    """Return the text of a file of an sdist."""
    name, version, _ = source
    with tarfile.open(fetched(source)) as packed:
        file = packed.extractfile(f"{name}-{version}/{path}")
        if file is None:
            raise SystemExit(f"{name} {version} has no file {path}")
        return file.read().decode()


def unpacked(source: Sdist, place: Path) -> Path:
    """Unpack an sdist below a directory; return where it is."""
    name, version, _ = source
    with tarfile.open(fetched(source)) as packed:
        packed.extractall(place, filter="data")
    return place / f"{name}-{version}"


def fetched(source: Sdist) -> Path:
    """Return the archive, downloaded if it is not there."""
    name, version, digest = source
    archive = CACHE / f"{name}-{version}.tar.gz"
    if not archive.exists():
        download(name, version)
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != digest:
        raise SystemExit(
            f"{archive}: its sha256 is {found}, not {digest}: delete it and run again"
        )
    return archive


def download(name: str, version: str) -> None:
    """Fetch an sdist by pip, from the registry that it knows."""
    CACHE.mkdir(parents=True, exist_ok=True)
    words = (
        "--no-binary",
        ":all:",
        "--ignore-requires-python",
        "--dest",
        str(CACHE),
        f"{name}=={version}",
    )
    pip("download", *words)


def packages(*pinned: str) -> Path:
    """Return a directory for PYTHONPATH with packages, each as name==version, without what
    they need.
    """
    place = (
        CACHE
        / f"packages-{hashlib.sha256(repr((pinned, sys.version)).encode()).hexdigest()[:12]}"
    )
    if not place.exists():
        made = place.with_suffix(".new")
        shutil.rmtree(made, ignore_errors=True)
        pip("install", "--target", str(made), *pinned)
        made.rename(place)
    return place


def pip(action: str, *words: str) -> None:
    command = (
        sys.executable,
        "-m",
        "pip",
        action,
        "-q",
        "--disable-pip-version-check",
        "--no-deps",
        *words,
    )
    if subprocess.run(command, check=False).returncode:
        raise SystemExit(f"CANNOT BE HAD here: {words[-1]}, see above")
