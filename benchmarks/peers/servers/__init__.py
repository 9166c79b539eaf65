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

START_S = 180.0
STOP_S = 60.0
TOOL_S = 120.0


class CannotBeHad(Exception):
    """A system cannot be measured here. The text has the reason and a remedy."""


class Server(ABC):
    """A server that runs in a directory of its own and listens on 127.0.0.1 only."""

    title: str
    client: str  # module of benchmarks.peers.clients
    python: Path  # interpreter of client processes
    client_path: Sequence[Path] = ()  # first places of their PYTHONPATH
    version: str = ""
    # True: read messages are deleted, so the topic is filled for each measure.
    deletes_read_messages: ClassVar[bool] = False

    def __init__(self, home: Path) -> None:
        self.home = home

    @abstractmethod
    def start(self) -> None:
        """Start the server, and set `version`. Raises CannotBeHad."""

    @abstractmethod
    def stop(self) -> None:
        """End all processes, if any runs. May be called again."""

    @abstractmethod
    def connection(self) -> Mapping[str, Any]:
        """Return address, credentials and the like for clients, as JSON takes them."""

    @abstractmethod
    def sides(self) -> Mapping[str, Sequence[int]]:
        """Return the process ids of `server` and, if it is another program, `database`.

        The CPU time of all processes below them counts as well.
        """

    @abstractmethod
    def make_topic(self, topic: str) -> None:
        """Create an empty topic. Raises CannotBeHad."""

    def clear_topic(self, topic: str) -> None:  # noqa: B027  most keep them in files
        """Delete the messages of a topic, where they would pile up in memory.

        Raises CannotBeHad.
        """


def run_tool(
    command: Sequence[str | Path], environ: Mapping[str, str] | None = None
) -> str:
    """Run a program of a system and return its output. Raises CannotBeHad if it fails."""
    try:
        done = subprocess.run(
            command,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=TOOL_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotBeHad(f"{Path(command[0]).name}: {error}") from error
    if done.returncode:
        text = done.stderr.strip() or done.stdout.strip()
        raise CannotBeHad(f"{Path(command[0]).name}: {text[-300:]}")
    return done.stdout


def launch(
    command: Sequence[str | Path],
    *,
    log: Path,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a server process in a session of its own, so Ctrl-C reaches only this program.

    The kernel sends it SIGTERM if this program is killed. Raises CannotBeHad if the program
    cannot be run.
    """
    with log.open("ab") as output:
        try:
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
        except OSError as error:
            raise CannotBeHad(f"{command[0]}: {error}") from error


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
