"""NATS with JetStream in files, synced every two minutes (the default) or always."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers import programs
from benchmarks.peers.servers import Server, await_start, end, launch, run_tool
from tests.support.environment import free_port

# Run by the environment of the clients, which has the library.
STREAM = """\
import asyncio, json, sys, nats
async def run(port, verb, topic):
    client = await nats.connect(f"nats://127.0.0.1:{port}")
    streams = client.jetstream()
    if verb == "make":
        await streams.add_stream(name=topic, subjects=[topic])
    else:
        await streams.purge_stream(topic)
    await client.close()
asyncio.run(run(*json.loads(sys.argv[1])))
"""


class NatsServer(Server):
    client = "nats_jetstream"

    def __init__(self, home: Path, *, is_synced: bool) -> None:
        super().__init__(home)
        self.title = "NATS JetStream, " + ("sync always" if is_synced else "files")
        self._is_synced, self._port = is_synced, free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.python = programs.python()
        program = programs.nats_server()
        settings = {"store_dir": str(self.home / "data")}
        if self._is_synced:
            settings["sync_interval"] = "always"
        config = self.home / "server.json"
        config.write_text(
            json.dumps({"host": "127.0.0.1", "port": self._port, "jetstream": settings})
        )
        log = self.home / "server.log"
        self._process = launch([program, "-c", str(config)], log=log)
        await_start(self._process, lambda: b"Server is ready" in log.read_bytes(), log)
        self.version = "NATS " + run_tool([program, "--version"]).split()[-1].lstrip("v")

    def stop(self) -> None:
        end(self._process)

    def connection(self) -> Mapping[str, Any]:
        return {"port": self._port}

    def sides(self) -> Mapping[str, Sequence[int]]:
        assert self._process is not None
        return {"server": [self._process.pid]}

    def make_topic(self, topic: str) -> None:
        self._stream("make", topic)

    def clear_topic(self, topic: str) -> None:
        self._stream("clear", topic)

    def _stream(self, verb: str, topic: str) -> None:
        arguments = json.dumps([self._port, verb, topic])
        run_tool([self.python, "-I", "-c", STREAM, arguments])
