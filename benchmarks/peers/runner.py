"""Starts client processes together, and takes rates and CPU time of one measure."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks.bench import HOME
from benchmarks.peers.report import Measure
from benchmarks.peers.servers import Server
from benchmarks.peers.worker import Job, Result
from benchmarks.processes import tree_cpu_s


class ClientFailed(Exception):
    """A client process ended without a result."""


class Client:
    """A client process, which is killed if it does not end by itself."""

    def __init__(self, server: Server, job: Job, log: Path) -> None:
        self._log = log
        path = [str(place) for place in (*server.client_path, HOME)]
        environ = {
            name: value for name, value in os.environ.items() if "PYTHON" not in name
        }
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [server.python, "-P", "-m", "benchmarks.peers.worker", job.to_json()],
                env={**environ, "PYTHONPATH": ":".join(path)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def read_line(self) -> str:
        """Return the next line of the process. Raises ClientFailed if it has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            tail = self._log.read_text(errors="replace").strip()[-600:]
            raise ClientFailed(tail or f"status {self._process.wait(10)}")
        return line.strip()

    def begin(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is not None:
            self._process.kill()
        self._process.wait(60)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


def run(server: Server, jobs: Sequence[Job]) -> tuple[list[Result], dict[str, float]]:
    """Run client processes that begin together. Return their results in the order of the
    jobs, and CPU seconds of the server's sides until the last result.

    Raises ClientFailed if a process ends early.
    """
    with ExitStack() as stack:
        clients = [
            stack.enter_context(Client(server, job, server.home / f"client-{number}.log"))
            for number, job in enumerate(jobs)
        ]
        for client in clients:
            client.read_line()
        sides = server.sides()
        before = {name: tree_cpu_s(pids) for name, pids in sides.items()}
        for client in clients:
            client.begin()
        results = [Result(**json.loads(client.read_line())) for client in clients]
        cpu_s = {name: tree_cpu_s(pids) - before[name] for name, pids in sides.items()}
    return results, cpu_s


def throughput(server: Server, job: Job, *, processes: int) -> Measure:
    """Run the same job in several processes. The rate is the sum of their rates.

    Raises ClientFailed if a process has done nothing: its rate would be no rate.
    """
    jobs = [replace(job, worker=worker, workers=processes) for worker in range(processes)]
    results, cpu_s = run(server, jobs)
    if not all(result.messages for result in results):
        raise ClientFailed("a process had no messages; is the backlog too small?")
    return Measure(
        messages=sum(result.messages for result in results),
        rate=sum(result.messages / max(result.seconds, 1e-9) for result in results),
        cpu_s={"client": sum(result.cpu_s for result in results), **cpu_s},
    )


def end_to_end(server: Server, job: Job) -> Measure:
    """Run a paced publisher and a consumer. The first tenth of the latencies is left out.

    Raises ClientFailed if messages are missing.
    """
    consumer = replace(job, role="consume_timed", commits="defaults")
    results, cpu_s = run(server, [replace(job, role="publish_paced"), consumer])
    published, received = results
    if received.messages < published.messages:
        raise ClientFailed(
            f"{published.messages} messages were sent, {received.messages} received"
        )
    return Measure(
        messages=received.messages,
        rate=published.messages / published.seconds,
        cpu_s={"client": sum(result.cpu_s for result in results), **cpu_s},
        latencies_s=received.latencies_s[received.messages // 10 :],
    )
