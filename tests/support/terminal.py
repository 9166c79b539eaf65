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
    """A running command. Its output goes to the files `out` and `err`."""

    def __init__(
        self, argv: list[str], *, environ: Mapping[str, str], out: Path, **options: Any
    ) -> None:
        self.out, self.err = out, out.with_suffix(".err")
        self.argv = argv
        # Files, because a pipe that is not read would block the command when it is full.
        with self.out.open("ab") as stdout, self.err.open("ab") as stderr:
            arguments = {
                "stdin": subprocess.DEVNULL,
                "stdout": stdout,
                "stderr": stderr,
                **options,
            }
            self.popen: subprocess.Popen[bytes] = subprocess.Popen(
                argv, env=dict(environ), cwd=ROOT, **arguments
            )

    @property
    def runs(self) -> bool:
        """True if it has not ended."""
        return self.popen.poll() is None

    def wait(self, *codes: int, limit_s: float = LIMIT_S) -> None:
        """Wait for its end. Its exit code must be in `codes` (default 0)."""
        exit_code, expected_codes = self.popen.wait(timeout=limit_s), codes or (0,)
        error_text = self.err.read_text(errors="replace")
        assert exit_code in expected_codes, (
            f"{' '.join(self.argv[2:])}: exit code {exit_code}, not in {expected_codes}:"
            f"\n{error_text}"
        )
        assert "Traceback" not in error_text, error_text

    def end(self, number: signal.Signals = signal.SIGTERM, *, code: int = 0) -> None:
        """Send a signal and wait for its end."""
        self.popen.send_signal(number)
        self.wait(code)

    def kill(self) -> None:
        """Kill it with SIGKILL and wait."""
        self.popen.kill()
        self.popen.wait()

    def close(self) -> None:
        """Kill it if it still runs, and close its pipes."""
        self.kill()
        for pipe in (self.popen.stdin, self.popen.stdout, self.popen.stderr):
            if pipe is not None:
                pipe.close()


class Terminal:
    """Runs commands against a server, or the brokers at `urls`. close() kills all that
    still run.
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
        python: str = sys.executable,
        **options: Any,
    ) -> Process:
        """Start a Python program. `name` names its output file, `environ` adds to its
        environment.
        """
        out = self.directory / f"{name or f'process-{next(self._numbers)}'}.out"
        whole_environ = {**self.environ, **(environ or {})}
        process = Process([python, *argv], environ=whole_environ, out=out, **options)
        self._running.append(process)
        return process

    def catmq(self, *arguments: str, name: str = "", **options: Any) -> Process:
        """Start `catmq` with these arguments."""
        return self.start("-m", "catmq_client", *arguments, name=name, **options)

    def run(self, *arguments: str, code: int = 0) -> str:
        """Run `catmq` to its end with this exit code, and return its output."""
        process = self.catmq(*arguments)
        process.wait(code)
        return process.out.read_text()

    def consume(self, topic: str, group: str, *arguments: str, name: str) -> Process:
        """Start `catmq consume`, which prints to the file `name`.out."""
        return self.catmq("consume", topic, "--group", group, *arguments, name=name)

    def close(self) -> None:
        """Kill the commands that still run."""
        for process in self._running:
            process.close()
        self._transport.close()
