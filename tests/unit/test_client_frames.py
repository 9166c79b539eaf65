"""catmq_client.frames without pyarrow."""

from __future__ import annotations

import subprocess
import sys

# None in sys.modules makes an import fail, as if the package were not installed.
PROGRAM = """
import sys
sys.modules["pyarrow"] = None
import catmq_client
try:
    import catmq_client.frames
except ImportError as error:
    print(error)
"""


def test_without_pyarrow_the_import_names_the_extra() -> None:
    output = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    ).stdout
    assert output == "catmq_client.frames needs pyarrow: pip install './client[arrow]'\n"
