"""A wall clock that a test can move, for a process and its children. Waits and monotonic
time stay.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("skew.c")
WIDTH = 32  # bytes of the file, as in skew.c


@dataclass(frozen=True)
class WallClock:
    """Processes started with `environ` see the machine's wall clock plus the set offset."""

    library: Path
    file: Path

    @property
    def environ(self) -> dict[str, str]:
        """The environment that makes a process use it."""
        return {"LD_PRELOAD": str(self.library), "SKEW_FILE": str(self.file)}

    def set(self, seconds: int) -> None:
        """Move the clock to an offset of `seconds`, also for running processes."""
        with self.file.open("r+b") as file:
            os.pwrite(file.fileno(), str(seconds).encode().ljust(WIDTH, b"\0"), 0)


def wall_clock(directory: Path, name: str = "skew") -> WallClock:
    """Return a clock without offset. The library is compiled in `directory` at the first
    use.
    """
    compiler = shutil.which("cc")
    assert compiler, "a C compiler is needed: apt-get install build-essential"
    library, file = directory / "skew.so", directory / f"{name}.seconds"
    if not library.exists():
        command = [
            compiler,
            "-shared",
            "-fPIC",
            "-O2",
            "-o",
            str(library),
            str(SOURCE),
            "-ldl",
        ]
        subprocess.run(command, check=True)
    file.write_bytes(b"0".ljust(WIDTH, b"\0"))
    return WallClock(library, file)
