"""Commands as processes: `catmq …` and small programs, with the broker in their
environment.
"""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from catmq_client.admin.api import Admin
from catmq_client.http.transport import HttpTransport
from tests.support.environment import ROOT
from tests.support.server import Server, clean_environment

LIMIT_S = 180.0
CATMQ = (sys.executable, "-m", "catmq_client")


class Process:
    """A running command; what it prints lies in the files `out` and `err`."""

    def __init__(
        self, argv: list[str], *, environ: Mapping[str, str], out: Path, **options: Any
    ) -> None:
        self.out, self.err = out, out.with_suffix(".err")
        self.argv = argv
        with self.out.open("ab") as stdout, self.err.open("ab") as stderr:
            given = {
                "stdin": subprocess.DEVNULL,
                "stdout": stdout,
                "stderr": stderr,
                **options,
            }
            self.popen: subprocess.Popen[bytes] = subprocess.Popen(
                argv, env=dict(environ), cwd=ROOT, **given
            )

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self.popen.poll() is None

    def wait(self, *codes: int, limit_s: float = LIMIT_S) -> None:
        """Waits for its end, which must have one of these exit codes (0 when none is
        given).
        """
        found, wanted = self.popen.wait(timeout=limit_s), codes or (0,)
        said = self.err.read_text(errors="replace")
        assert found in wanted, (
            f"{' '.join(self.argv[2:])}: exit code {found}, not in {wanted}:\n{said}"
        )
        assert "Traceback" not in said, said

    def end(self, number: signal.Signals = signal.SIGTERM, *, code: int = 0) -> None:
        """Sends a signal and waits for its end."""
        self.popen.send_signal(number)
        self.wait(code)

    def kill(self) -> None:
        """kill -9; returns when it is dead."""
        self.popen.kill()
        self.popen.wait()

    def close(self) -> None:
        """Kills it if it still runs, and closes its pipes."""
        self.kill()
        for pipe in (self.popen.stdin, self.popen.stdout, self.popen.stderr):
            if pipe is not None:
                pipe.close()


class Terminal:
    """Runs commands against one server, or those at `urls`; all that still run are killed
    by close().
    """

    def __init__(self, server: Server, directory: Path, urls: str = "") -> None:
        urls = urls or server.url
        self.environ = {
            **clean_environment(),
            "CATMQ_URL": urls,
            "CATMQ_API_KEY": server.api_key,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'client/src'}",
        }
        self.directory = directory
        self.directory.mkdir(parents=True, exist_ok=True)
        self._transport = HttpTransport(urls, api_key=server.api_key)
        self.admin = Admin(self._transport)
        self._running: list[Process] = []
        self._numbers = itertools.count(1)

    def start(
        self,
        *argv: str,
        name: str = "",
        environ: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Process:
        """Starts a program of Python's; `name` names its output's file, `environ` adds to
        its environment.
        """
        out = self.directory / f"{name or f'process-{next(self._numbers)}'}.out"
        given = {**self.environ, **(environ or {})}
        made = Process([sys.executable, *argv], environ=given, out=out, **options)
        self._running.append(made)
        return made

    def catmq(self, *arguments: str, name: str = "", **options: Any) -> Process:
        """Starts `catmq` with these arguments."""
        return self.start("-m", "catmq_client", *arguments, name=name, **options)

    def run(self, *arguments: str, code: int = 0) -> str:
        """Runs `catmq` to its end, which must have this exit code; its output."""
        process = self.catmq(*arguments)
        process.wait(code)
        return process.out.read_text()

    def consume(self, topic: str, group: str, *arguments: str, name: str) -> Process:
        """Starts `catmq consume`, which prints into the file `name`.out."""
        return self.catmq("consume", topic, "--group", group, *arguments, name=name)

    def close(self) -> None:
        """Kills what still runs."""
        for process in self._running:
            process.close()
        self._transport.close()
