"""A temporary directory of a server that a test can make full."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("fulltmp.c")


@dataclass(frozen=True)
class FullTmp:
    """A temporary directory in `home`, for a server started with `environ` and `options`."""

    home: Path

    def __post_init__(self) -> None:
        compiler = shutil.which("cc")
        assert compiler, "a C compiler is needed: apt-get install build-essential"
        (self.home / "temporary").mkdir(parents=True)
        command = [
            compiler,
            "-shared",
            "-fPIC",
            "-O2",
            "-o",
            str(self._library),
            str(SOURCE),
            "-ldl",
        ]
        subprocess.run(command, check=True)
        self._file.write_bytes(bytes(16))

    @property
    def environ(self) -> dict[str, str]:
        """The environment that makes a process use it."""
        directory = str(self.home / "temporary")
        return {
            "LD_PRELOAD": str(self._library),
            "FULLTMP_FILE": str(self._file),
            "FULLTMP_DIR": directory,
        }

    @property
    def options(self) -> tuple[str, ...]:
        """Options of a server with a binary log.

        A transaction above 4 KiB is then written to a temporary file.
        """
        log = (
            "--log-bin=binlog",
            "--server-id=1",
            "--sync-binlog=1",
            "--binlog-format=ROW",
        )
        return (*log, "--binlog-cache-size=4096", f"--tmpdir={self.home / 'temporary'}")

    @contextmanager
    def full(self) -> Iterator[None]:
        """Make the directory full during the block."""
        self._set(1)
        try:
            yield
        finally:
            self._set(0)

    def refused(self) -> int:
        """Return the number of writes that failed for lack of space."""
        return int(struct.unpack_from("q", self._file.read_bytes(), 8)[0])

    def _set(self, full: int) -> None:
        with self._file.open("r+b") as file:
            file.write(struct.pack("q", full))

    @property
    def _library(self) -> Path:
        return self.home / "fulltmp.so"

    @property
    def _file(self) -> Path:
        return self.home / "fulltmp"
