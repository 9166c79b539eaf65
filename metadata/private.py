"""Protection of the data directory, which holds keys, credentials and messages: only the
installation's own user may read it.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

UMASK = 0o077
OTHERS = 0o077


class NotPrivate(Exception):
    """Other users can read the data directory, and this process cannot change that. The
    text has the remedy.
    """


def protect(directory: Path) -> bool:
    """Set the umask of this process, and close the directory and so all files in it to
    other users.

    Returns True if it was open to them. Raises NotPrivate.
    """
    os.umask(UMASK)
    try:
        mode = directory.stat().st_mode
    except FileNotFoundError:
        return False
    if not mode & OTHERS:
        return False
    # The sticky bit marks directories such as /tmp, which must stay open.
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
    """Protect the directory when a process starts. Reports a change on stderr, and exits
    with a line of text if it is impossible.
    """
    try:
        if protect(directory):
            sys.stderr.write(
                f"CatMQ: {directory} was open to other users; it is closed to them now.\n"
            )
    except NotPrivate as error:
        sys.exit(f"CatMQ: {error}")
