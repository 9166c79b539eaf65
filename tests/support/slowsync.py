"""A slow disk: the redo log of a server takes as much longer to be synced as a test says."""

from __future__ import annotations

import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("slowsync.c")
# temporary files may lie in memory, where a server maps its log and never syncs it
DISK = "/var/tmp"
_INSIDE = 16  # where the third number is in the file (slowsync.c)


@dataclass(frozen=True)
class SlowSync:
    """A server started with `environ` syncs its log as slowly as was last set."""

    library: Path
    file: Path

    @property
    def home(self) -> Path:
        """Where the files of a server have to lie."""
        return self.file.parent / "server"

    @property
    def environ(self) -> dict[str, str]:
        """What makes a process use it."""
        return {"LD_PRELOAD": str(self.library), "SLOWSYNC_FILE": str(self.file)}

    def set(self, milliseconds: int, *, thread: int = 0) -> None:
        """Makes every sync, or those of one thread, so much longer; who sleeps ends early
        if it is less.
        """
        with self.file.open("r+b") as file:
            file.write(struct.pack("qq", milliseconds, thread))

    def delay_ms(self) -> int:
        """What was last set."""
        return int(struct.unpack_from("q", self.file.read_bytes())[0])

    def inside(self) -> int:
        """How many threads are in a slow sync now."""
        return int(struct.unpack_from("q", self.file.read_bytes(), _INSIDE)[0])

    def forget(self) -> None:
        """Nothing is slow, and nobody is inside: for the next start of a server that was
        killed.
        """
        self.file.write_bytes(bytes(24))


@contextmanager
def slow_disk() -> Iterator[SlowSync]:
    """A disk that is not slow so far, with a directory on it that is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="catmq-slow-", dir=DISK) as directory:
        yield slow_sync(Path(directory))


def slow_sync(directory: Path) -> SlowSync:
    """A disk that is not slow so far; the library is compiled in `directory`, which lies on
    it.
    """
    compiler = shutil.which("cc")
    assert compiler, "a C compiler is needed: apt-get install build-essential"
    library, file = directory / "slowsync.so", directory / "slowsync"
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    file.write_bytes(bytes(24))
    return SlowSync(library, file)
