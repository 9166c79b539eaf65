"""A slow disk: syncing a server's redo log takes longer by a time that a test sets."""

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
# The default directory may be in memory, where a server maps its log and never syncs it.
DISK = "/var/tmp"
_INSIDE = 16  # position of the third number in the file (slowsync.c)


@dataclass(frozen=True)
class SlowSync:
    """A server started with `environ` syncs its log with the delay that was set."""

    library: Path
    file: Path

    @property
    def home(self) -> Path:
        """The directory where a server's files must be."""
        return self.file.parent / "server"

    @property
    def environ(self) -> dict[str, str]:
        """The environment that makes a process use it."""
        return {"LD_PRELOAD": str(self.library), "SLOWSYNC_FILE": str(self.file)}

    def set(self, milliseconds: int, *, thread: int = 0) -> None:
        """Delay every sync, or those of a thread. A smaller delay ends longer delays that
        are running.
        """
        with self.file.open("r+b") as file:
            # The library maps the file, so the new delay holds at once, also for a sync
            # that waits.
            file.write(struct.pack("qq", milliseconds, thread))

    def delay_ms(self) -> int:
        """Return the delay that was set."""
        return int(struct.unpack_from("q", self.file.read_bytes())[0])

    def inside(self) -> int:
        """Return the number of threads in a slow sync now."""
        return int(struct.unpack_from("q", self.file.read_bytes(), _INSIDE)[0])

    def forget(self) -> None:
        """Reset the delay and the count, for the next start of a killed server."""
        self.file.write_bytes(bytes(24))


@contextmanager
def slow_disk() -> Iterator[SlowSync]:
    """Yield a disk without delay, with a directory that is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="catmq-slow-", dir=DISK) as directory:
        yield slow_sync(Path(directory))


def slow_sync(directory: Path) -> SlowSync:
    """Return a disk without delay. The library is compiled in `directory`, which is on that
    disk.
    """
    compiler = shutil.which("cc")
    assert compiler, "a C compiler is needed: apt-get install build-essential"
    library, file = directory / "slowsync.so", directory / "slowsync"
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    file.write_bytes(bytes(24))
    return SlowSync(library, file)
