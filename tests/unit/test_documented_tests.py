"""The tests that docs/how-to/test-without-a-broker.md shows pass."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.environment import ROOT

PAGE = ROOT / "docs" / "how-to" / "test-without-a-broker.md"


def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    blocks = re.findall(
        r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    assert len(blocks) == 2
    file = tmp_path / "test_page.py"
    file.write_text("\n\n".join(blocks))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:django",
        str(file),
    ]
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "client/src")}
    done = subprocess.run(
        command,
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout + done.stderr
