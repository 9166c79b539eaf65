"""Programs that run with mounts of their own, which need no root: full volumes, read-only
volumes, and secrets as containers get them.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys

import pytest

from tests.support.environment import ROOT
from tests.support.server import clean_environment

UNSHARE = ("unshare", "--map-root-user", "--mount")


@functools.cache
def is_possible() -> bool:
    """Return True if this user may mount in a namespace of its own."""
    try:
        return subprocess.run([*UNSHARE, "true"], check=False).returncode == 0
    except FileNotFoundError:
        return False


def run_python(program: str, *, mounts: str, **environ: str) -> str:
    """Run the shell commands `mounts`, then a Python program, in a namespace of their own.
    Return the program's output. Skips the test if the system does not allow it.
    """
    if not is_possible():
        pytest.skip("mounts need user namespaces, which are not allowed here")
    result = subprocess.run(
        [*UNSHARE, "sh", "-ec", f'{mounts}\nexec "$0" -c "$1"', sys.executable, program],
        env=clean_environment() | {"PYTHONPATH": str(ROOT), **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def drop_root_rights() -> tuple[str, ...]:
    """Return what precedes a command, so that root may write and read only what modes allow."""
    rights = "-dac_override,-dac_read_search"
    if os.geteuid():
        return ()
    return ("setpriv", f"--bounding-set={rights}", f"--inh-caps={rights}")
