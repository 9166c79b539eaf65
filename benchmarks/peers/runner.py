"""Starts client processes together, and takes rates and CPU time of a measure."""

from __future__ import annotations

import json
import os
import select
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

from benchmarks.bench import HOME
from benchmarks.peers.report import Measure
from benchmarks.peers.servers import Server
from benchmarks.peers.worker import Job, Result
from benchmarks.processes import tree_cpu_s

READY_S = 60.0  # until a client process has connected and has its share of the topic
RESULT_S = 60.0  # after the seconds of a job
FILL_S = 900.0  # of a job with a number of messages instead of seconds
CLOSE_S = 30.0


class ClientFailed(Exception):
    """A client process ended without a result, or did not answer in time."""


class Client:
    """A client process, which is killed if it does not end by itself."""

    def __init__(self, server: Server, job: Job, log: Path) -> None:
        self._log = log
        search_path = [str(directory) for directory in (*server.client_path, HOME)]
        # PYTHONPATH of script/bench has this checkout's client before an earlier one's.
        environ = {
            name: value for name, value in os.environ.items() if "PYTHON" not in name
        }
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [server.python, "-P", "-m", "benchmarks.peers.worker", job.to_json()],
                env={**environ, "PYTHONPATH": ":".join(search_path)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def read_line(self, limit_s: float) -> str:
        """Return the next line of the process. Raises ClientFailed without one in time."""
        assert self._process.stdout is not None
        # A line in the buffer of the stream would be missed, but the process writes its
        # second line only after begin().
        if not select.select([self._process.stdout], [], [], limit_s)[0]:
            raise ClientFailed(f"a client did not answer within {limit_s:g} s")
        line = self._process.stdout.readline()
        if not line:
            tail = self._log.read_text(errors="replace").strip()[-600:]
            raise ClientFailed(tail or f"status {self._process.wait(CLOSE_S)}")
        return line.strip()

    def begin(self) -> None:
        """Start the job of the process. Raises ClientFailed if it has ended."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("go\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ClientFailed("a client ended before its start") from None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is not None:
            self._process.kill()
        try:
            self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            # The result is there; only the connection was not closed.
            self._process.kill()
            self._process.wait()
        # A line that could not be written fails again when the stream is closed.
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()


def run(server: Server, jobs: Sequence[Job]) -> tuple[list[Result], dict[str, float]]:
    """Run client processes that begin together. Return their results in the order of the
    jobs, and CPU seconds of the server's sides until the last result.

    Raises ClientFailed if a process ends early or does not answer.
    """
    with ExitStack() as stack:
        clients = [
            stack.enter_context(Client(server, job, server.home / f"client-{number}.log"))
            for number, job in enumerate(jobs)
        ]
        for client in clients:
            client.read_line(READY_S)
        sides = server.sides()
        before = {name: tree_cpu_s(pids) for name, pids in sides.items()}
        for client in clients:
            client.begin()
        results = [
            Result(
                **json.loads(
                    client.read_line(FILL_S if job.count else job.seconds + RESULT_S)
                )
            )
            for client, job in zip(clients, jobs, strict=True)
        ]
        cpu_s = {name: tree_cpu_s(pids) - before[name] for name, pids in sides.items()}
    return results, cpu_s


def throughput(server: Server, job: Job, *, processes: int) -> Measure:
    """Run the same job in several processes. The rate is of all messages in the time of the
    slowest process, since a topic is read only when its last part is.

    Raises ClientFailed if there were no messages.
    """
    jobs = [replace(job, worker=worker, workers=processes) for worker in range(processes)]
    results, cpu_s = run(server, jobs)
    messages = sum(result.messages for result in results)
    if not messages:
        raise ClientFailed("there were no messages")
    return Measure(
        messages=messages,
        rate=messages / max(result.seconds for result in results),
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
