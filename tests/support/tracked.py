"""The files of a checkout that git tracks. Folders that a user made in it are not part of
the project.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.environment import ROOT


def tracked_files(*patterns: str, root: Path = ROOT) -> list[Path]:
    """Return the existing tracked files that match git's patterns (default: all), relative
    to `root`.
    """
    command = ["git", "ls-files", "-z", "--", *patterns]
    output = subprocess.run(
        command, cwd=root, check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    # A file that was removed and not committed yet is still listed.
    return [Path(name) for name in output.split("\0") if name and (root / name).exists()]
