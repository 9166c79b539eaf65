"""The release before this one, as git has it: its brokers run beside ours, on the same
metadata and nodes.

COMMIT is the only place that names it. A release moves it to the tag of the release before:
see docs/reference/versions.md.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.environment import ROOT

COMMIT = "13a6562257293857b2cf1143158c3bbfc06b29af"


def extracted(directory: Path) -> Path:
    """The release's files, in a directory that is made if it is missing."""
    if not directory.exists():
        directory.mkdir(parents=True)
        known = ["git", "rev-parse", "--verify", "--quiet", f"{COMMIT}^{{commit}}"]
        found = (
            subprocess.run(known, cwd=ROOT, capture_output=True, check=False).returncode
            == 0
        )
        assert found, (
            f"this clone lacks commit {COMMIT}, the previous release: git fetch --unshallow"
        )
        packed = subprocess.run(
            ["git", "archive", COMMIT], cwd=ROOT, capture_output=True, check=True
        )
        subprocess.run(["tar", "-x", "-C", str(directory)], input=packed.stdout, check=True)
    return directory
