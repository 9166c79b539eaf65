"""The release that this code is, and the order of releases."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

# The client is never imported here, so the one file of it that holds the version is run alone.
VERSION_FILE = Path(__file__).parents[1] / "client/src/catmq_client/version.py"
VERSION: str = runpy.run_path(str(VERSION_FILE))["VERSION"]


def is_older(release: str, than: str) -> bool:
    """Return True if a release is before another; what a number lacks counts as 0.

    >>> is_older("0.9.1", "0.10"), is_older("0.3.0", "0.3"), is_older("0.3.0", "")
    (True, False, False)
    """
    return _numbers(release) < _numbers(than)


def _numbers(release: str) -> tuple[int, int, int]:
    found = [int(number) for number in re.findall(r"\d+", release)[:3]]
    major, minor, patch = [*found, 0, 0, 0][:3]
    return major, minor, patch
