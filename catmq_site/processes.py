"""How processes of a server start other processes of it."""

from __future__ import annotations

import os
import sys

from metadata.installation import CLIENT_SOURCE, HOME, IS_CHECKOUT


def command(*arguments: str) -> list[str]:
    """Return the command line of `catmq-server ARGUMENTS` for a child process."""
    # -P: never import from the working directory.
    return [sys.executable, "-P", "-m", "catmq_site.program", *arguments]


def environ() -> dict[str, str]:
    """Return the environment of a child process, which imports the same packages."""
    if not IS_CHECKOUT:
        return dict(os.environ)
    roots = [str(HOME), str(CLIENT_SOURCE), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, roots))}
