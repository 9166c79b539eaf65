"""Branches of the product that the gate's tests take: measured by SlipCover, merged, held against a number.

SlipCover takes its probes out again once they were met, so a long run costs little more than without it.
Processes that tests start are not measured, so acceptance tests add nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PACKAGES = ("messagestore", "metadata", "brokerapi", "portal", "catmq_site", "client/src/catmq_client")
FEWEST = Path(__file__).parent / "coverage.txt"  # per cent of branches; raise it when there are more
# pytest cannot look into a module that is there before it; warnings are errors here.
QUIET = ("-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning")


def measuring(command: Sequence[str], report: Path) -> tuple[str, ...]:
    """Return a pytest command that also writes which branches it took."""
    python, *rest = command
    given = ("--branch", "--json", "--out", str(report), "--source", ",".join(PACKAGES))
    return (python, "-m", "slipcover", *given, *rest, *QUIET)


def judge(reports: Sequence[Path], merged: Path) -> tuple[str, bool]:
    """Return a line on the branches that all runs together took, and True if they are too few."""
    command = (sys.executable, "-m", "slipcover", "--branch", "--json", "--out", str(merged), "--merge")
    done = subprocess.run((*command, *map(str, reports)), capture_output=True, text=True, check=False)
    if done.returncode:
        return f"branches: not counted: {done.stderr.strip()}", True
    found = json.loads(merged.read_text())["summary"]
    taken, missed = found["covered_branches"], found["missing_branches"]
    share, least = 100 * taken / ((taken + missed) or 1), float(FEWEST.read_text())
    few = f", fewer than the {least:.1f} % of {FEWEST.name}" if share < least else ""
    return f"branches: {share:.2f} % of {taken + missed} taken{few}", share < least
