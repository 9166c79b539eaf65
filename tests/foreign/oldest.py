"""Runs our tests of the kombu transport with the oldest kombu and Celery that it is for.

    python -m tests.foreign.oldest           or: script/test foreign-oldest

The packages, in pinned versions, go to ~/.cache/catmq/foreign; they stand before the
installed ones.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.foreign import sdists

ROOT = Path(__file__).resolve().parents[2]
OLDEST = ("kombu==5.4.0", "celery==5.4.0")
SUITES = ("tests/contract/test_kombu.py", "tests/unit/test_kombu_parts.py")
PRINT = (
    "import celery, kombu; print('kombu', kombu.__version__, 'Celery', celery.__version__)"
)


def main() -> int:
    """Run them; return 0 if all went well."""
    paths = (sdists.packages(*OLDEST), ROOT / "client/src")
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    subprocess.run((sys.executable, "-c", PRINT), env=environ, check=True)
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *SUITES)
    return subprocess.run(command, cwd=ROOT, env=environ, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
