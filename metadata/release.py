"""The version of this code, and the comparison of versions."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

# The server must not import the client, which defines the version. So this file is run by
# itself.
VERSION_FILE = Path(__file__).parents[1] / "client/src/catmq_client/version.py"
_NAMESPACE = runpy.run_path(str(VERSION_FILE))
VERSION: str = _NAMESPACE["VERSION"]
is_older: Callable[[str, str], bool] = _NAMESPACE["is_older"]
