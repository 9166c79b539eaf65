"""The check of the data directory when a process starts: it exists, and can be written to."""

from __future__ import annotations

import errno
import os
from pathlib import Path

# A process writes a log, a pid, metrics and, on SQLite, its databases.
NEEDED_BYTES = 1 << 20
CHOOSE_ANOTHER = "or name another directory with CATMQ_DATA_DIR (serve: --data)"
REMEDIES = {
    errno.ENOSPC: "free space or files (inodes) there",
    errno.EDQUOT: "raise the quota of its user, or free space there",
    errno.EROFS: "mount a writable volume there",
    errno.ENOTDIR: "move the file that is in its place",
    errno.EEXIST: "move the file that is in its place",
}


class Unusable(Exception):
    """The data directory cannot be used. The text names it, the cause and the remedy."""


def describe_error(directory: Path, error: OSError) -> str:
    """Return why a data directory cannot be used, and what to do."""
    remedy = REMEDIES.get(
        error.errno or 0, f"let the user {os.geteuid()} of this process write there"
    )
    return (
        f"The data directory {directory} cannot be used: {error.strerror}. "
        f"{remedy.capitalize()}, {CHOOSE_ANOTHER}."
    )


def require_usable(directory: Path) -> None:
    """Create the directory if it is missing, and write a file of 1 MiB for a moment.

    A full volume and a read-only one accept nothing later either, and would stop the server
    in the middle of its start. Raises Unusable.
    """
    probe = directory / f".space.{os.getpid()}"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with open(
                os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb"
            ) as file:
                file.write(bytes(NEEDED_BYTES))
                file.flush()
                # A file system may assign space only when it writes the file to the disk.
                os.fsync(file.fileno())
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        raise Unusable(describe_error(directory, error)) from None
