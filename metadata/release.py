"""The version of this code, and the comparison of versions."""

from __future__ import annotations

import importlib.util
import runpy
from collections.abc import Callable
from pathlib import Path

from metadata.installation import CLIENT_SOURCE, IS_CHECKOUT


def _find_version_file() -> Path:
    """Return the file of the client that defines the version of client and server.

    Raises ImportError if the client is not installed.
    """
    if IS_CHECKOUT:
        return CLIENT_SOURCE / "catmq_client" / "version.py"
    # find_spec() imports nothing of a package at the top.
    spec = importlib.util.find_spec("catmq_client")
    if spec is None or spec.origin is None:
        raise ImportError("catmq-client is not installed, which catmq-server needs.")
    return Path(spec.origin).with_name("version.py")


# The server must not import the client, which defines the version. So this file is run by
# itself.
VERSION_FILE = _find_version_file()
_NAMESPACE = runpy.run_path(str(VERSION_FILE))
VERSION: str = _NAMESPACE["VERSION"]
is_older: Callable[[str, str], bool] = _NAMESPACE["is_older"]
