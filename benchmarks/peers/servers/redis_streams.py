"""Redis that syncs its log before it answers."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import task_rivals
from benchmarks.peers import programs
from benchmarks.peers.servers import CannotBeHad, Server, await_start, end, launch, run_tool
from tests.support.environment import free_port

OPTIONS = (
    *("--bind", "127.0.0.1", "--save", ""),
    *("--appendonly", "yes", "--appendfsync", "always"),
    # A rewrite of the log in the background would slow whichever line is measured then.
    *("--auto-aof-rewrite-percentage", "0"),
)


class RedisServer(Server):
    title = "Redis Streams, fsync always"
    client = "redis_streams"

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._program: list[str] = []
        self._environ: dict[str, str] = {}

    def start(self) -> None:
        self.python = programs.python()
        directory = task_rivals.CACHE / "redis"
        if not (directory / "usr/bin/redis-server").exists():
            raise CannotBeHad(
                f"there is no redis-server: {programs.INSTALL}, if there is apt-get"
            )
        self._program, self._environ = task_rivals.redis_program(directory)
        log = self.home / "server.log"
        command = [*self._program, "--port", str(self._port), "--dir", str(self.home)]
        self._process = launch([*command, *OPTIONS], log=log, environ=self._environ)
        await_start(
            self._process, lambda: b"Ready to accept connections" in log.read_bytes(), log
        )
        version = run_tool([*self._program, "--version"], self._environ)
        self.version = "Redis " + version.partition("v=")[2].split()[0]

    def stop(self) -> None:
        end(self._process)

    def connection(self) -> Mapping[str, Any]:
        return {"port": self._port}

    def sides(self) -> Mapping[str, Sequence[int]]:
        assert self._process is not None
        return {"server": [self._process.pid]}

    def make_topic(self, topic: str) -> None:
        self._command("XGROUP", "CREATE", topic, "made", "$", "MKSTREAM")

    def clear_topic(self, topic: str) -> None:
        self._command("XTRIM", topic, "MAXLEN", "0")

    def _command(self, *arguments: str) -> None:
        program = Path(self._program[0]).with_name("redis-cli")
        # -e: an error of the server is a failure of the program.
        run_tool([program, "-e", "-p", str(self._port), *arguments], self._environ)
