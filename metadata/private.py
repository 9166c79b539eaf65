"""Files of the data directory, for the installation's own user alone: keys, credentials,
messages.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

UMASK = 0o077
OTHERS = 0o077


class NotPrivate(Exception):
    """Others can read the data directory, and this process cannot change that; the text
    says what to do.
    """


def protect(directory: Path) -> bool:
    """Let this process make files for its own user alone, and close the directory to
    others.

    Returns whether it was open to them. What lies in it is closed with it. Raises
    NotPrivate.
    """
    os.umask(UMASK)
    try:
        mode = directory.stat().st_mode
    except FileNotFoundError:
        return False
    if not mode & OTHERS:
        return False
    if mode & stat.S_ISVTX:
        raise NotPrivate(
            f"{directory} is shared by all users: choose a data directory of its own."
        )
    try:
        directory.chmod(stat.S_IMODE(mode) & ~OTHERS)
    except PermissionError:
        raise NotPrivate(
            f"Other users can read {directory}, which holds keys, and it belongs to one of them: "
            "give it to the user that runs the server, or choose another data directory."
        ) from None
    return True


def protect_or_exit(directory: Path) -> None:
    """The same for a process that starts: it says what it mended, and ends with one line
    where it cannot.
    """
    try:
        if protect(directory):
            sys.stderr.write(
                f"CatMQ: {directory} was open to other users; it is closed to them now.\n"
            )
    except NotPrivate as error:
        sys.exit(f"CatMQ: {error}")
