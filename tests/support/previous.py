"""The previous release from git: its brokers run together with ours on the same metadata and
nodes, its client with our brokers, and our client with its brokers.

COMMIT is the only place that names it. With each release it moves to the tag of the release
before; see docs/reference/versions.md.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.environment import ROOT

COMMIT = "7f9794007f47bdb8390c551e4f272abb983a8c19"


def extracted(directory: Path) -> Path:
    """Extract the release's files into a directory, which is created if it is missing."""
    if not directory.exists():
        directory.mkdir(parents=True)
        command = ["git", "rev-parse", "--verify", "--quiet", f"{COMMIT}^{{commit}}"]
        has_commit = (
            subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode
            == 0
        )
        assert has_commit, (
            f"this clone lacks commit {COMMIT}, the previous release: git fetch --unshallow"
        )
        archive = subprocess.run(
            ["git", "archive", COMMIT], cwd=ROOT, capture_output=True, check=True
        )
        subprocess.run(
            ["tar", "-x", "-C", str(directory)], input=archive.stdout, check=True
        )
    return directory
