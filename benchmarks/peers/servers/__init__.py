"""Servers of each system, with one interface."""

from __future__ import annotations

import os
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from catmq_site.server.supervisor import die_with_parent

START_S = 60.0
STOP_S = 60.0


class CannotBeHad(Exception):
    """A system cannot be measured here; the text says why, and what to do about it."""


class Server(ABC):
    """A server that runs in a directory of its own and listens on 127.0.0.1 only."""

    name: ClassVar[str]
    title: str
    client: str  # module of benchmarks.peers.clients
    python: Path  # interpreter of client processes
    client_path: Sequence[Path] = ()  # first places of their PYTHONPATH
    version: str = ""
    # True: a message that was read is gone, so the topic is filled for each measure.
    deletes_read_messages: ClassVar[bool] = False

    def __init__(self, home: Path) -> None:
        self.home = home

    @abstractmethod
    def start(self) -> None:
        """Start the server. Raises CannotBeHad."""

    @abstractmethod
    def stop(self) -> None:
        """End all processes; nothing to do if none runs."""

    @abstractmethod
    def connection(self) -> Mapping[str, Any]:
        """Return what clients need to connect, as JSON takes it."""

    @abstractmethod
    def sides(self) -> Mapping[str, Sequence[int]]:
        """Return process ids whose CPU time counts, with that of all processes below
        them: of `server` and, where it is another program, of `database`.
        """

    @abstractmethod
    def make_topic(self, topic: str) -> None:
        """Create an empty topic."""

    def clear_topic(self, topic: str) -> None:  # noqa: B027  most keep them in files
        """Delete the messages of a topic, where they would otherwise pile up in memory."""


def launch(
    command: Sequence[str | Path],
    *,
    log: Path,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a server process in a session of its own, so Ctrl-C reaches only this program.

    The kernel sends it SIGTERM if this program is killed.
    """
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            cwd=cwd or log.parent,
            env={**os.environ, **(environ or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            # preexec_fn is safe: this program has a single thread.
            preexec_fn=die_with_parent(os.getpid()),
        )


def await_start(
    process: subprocess.Popen[bytes], is_up: Callable[[], bool], log: Path
) -> None:
    """Return when `is_up` returns True. Raises CannotBeHad if the process ends or is late."""
    give_up_at = time.monotonic() + START_S
    while not is_up():
        if process.poll() is not None or time.monotonic() > give_up_at:
            text = log.read_text(errors="replace").strip() if log.exists() else ""
            raise CannotBeHad(f"it does not start: {text[-300:]}")
        time.sleep(0.05)


def end(process: subprocess.Popen[bytes] | None) -> None:
    """Send SIGTERM, and SIGKILL if the process is still there after STOP_S."""
    if process is None or process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
