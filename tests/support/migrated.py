"""Metadata databases that are migrated once for all tests: files of SQLite, copied wherever
one is needed.

To migrate takes as long as many tests. The files are kept below .test until a migration or
a package changes.
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
# All apps on both: an app whose tables are not on a database is recorded there, so nobody
# looks again.
ALIASES = {
    "metadata.sqlite3": ("migrate",),
    "jobs.sqlite3": ("migrate", "--database", "jobs"),
}


def copy_to(directory: Path, *, prefix: str = "") -> None:
    """Put migrated databases without rows into a directory, each with an incarnation of its
    own.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in ALIASES:
        shutil.copyfile(_made() / name, directory / f"{prefix}{name}")
        (directory / f"{prefix}{name}").chmod(0o600)
    with (
        closing(sqlite3.connect(directory / f"{prefix}metadata.sqlite3")) as database,
        database,
    ):
        database.execute(
            "UPDATE metadata_changecounter SET incarnation = ?", [str(uuid.uuid4())]
        )


def _made() -> Path:
    """Return the directory of the migrated files, made by the first who asks."""
    CACHE.mkdir(parents=True, exist_ok=True)
    made = CACHE / _state()
    with (CACHE / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
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
            draft.rename(made)
    return made


def _state() -> str:
    """Return a name that changes with everything that migrations depend on."""
    digest = hashlib.sha256((ROOT / "requirements.lock").read_bytes())
    digest.update(repr(ALIASES).encode())
    for room in ("migrations", "models"):
        for file in sorted((ROOT / "metadata" / room).glob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
