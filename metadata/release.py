"""The release that this code is, and the order of releases."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

# The client is never imported here, so the one file of it that holds the version is run
# alone.
VERSION_FILE = Path(__file__).parents[1] / "client/src/catmq_client/version.py"
_FOUND = runpy.run_path(str(VERSION_FILE))
VERSION: str = _FOUND["VERSION"]
is_older: Callable[[str, str], bool] = _FOUND["is_older"]
