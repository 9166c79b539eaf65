"""Metadata databases that are migrated once for all tests: SQLite files, copied where they
are needed.

Migrating takes as long as many tests. The files are kept in .test until a migration or a
package changes.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import uuid
from contextlib import closing
from pathlib import Path

from tests.support.environment import ROOT

CACHE = ROOT / ".test" / "migrated"
# All apps on both: migrations of apps without tables on a database are recorded, too, so
# that they are not examined again.
ALIASES = {
    "metadata.sqlite3": ("migrate",),
    "jobs.sqlite3": ("migrate", "--database", "jobs"),
}


def copy_to(directory: Path, *, prefix: str = "") -> None:
    """Copy migrated databases without rows into a directory, each with a new incarnation."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in ALIASES:
        shutil.copyfile(_migrated_files() / name, directory / f"{prefix}{name}")
        (directory / f"{prefix}{name}").chmod(0o600)
    with (
        closing(sqlite3.connect(directory / f"{prefix}metadata.sqlite3")) as database,
        database,
    ):
        database.execute(
            "UPDATE metadata_changecounter SET incarnation = ?", [str(uuid.uuid4())]
        )


def _migrated_files() -> Path:
    """Return the directory of the migrated files. The first caller creates it."""
    CACHE.mkdir(parents=True, exist_ok=True)
    files = CACHE / _fingerprint()
    with (CACHE / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not files.exists():
            draft = Path(tempfile.mkdtemp(dir=CACHE))
            environ = {
                name: value
                for name, value in os.environ.items()
                if not name.startswith("CATMQ_")
            }
            environ |= {
                "CATMQ_DATA_DIR": str(draft),
                "DJANGO_SETTINGS_MODULE": "catmq_site.settings",
            }
            for arguments in ALIASES.values():
                command = [
                    sys.executable,
                    str(ROOT / "manage.py"),
                    *arguments,
                    "--verbosity",
                    "0",
                ]
                subprocess.run(command, env=environ, cwd=ROOT, check=True, timeout=300)
            draft.rename(files)
    return files


def _fingerprint() -> str:
    """Return a name that changes with everything that migrations depend on."""
    digest = hashlib.sha256((ROOT / "requirements.lock").read_bytes())
    digest.update(repr(ALIASES).encode())
    for package in ("migrations", "models"):
        for file in sorted((ROOT / "metadata" / package).glob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
