"""Clients that send slowly, or not at all, or take no answer: everybody else is served as
without them.

A program opens them and keeps them open; probes ask the broker meanwhile. All of them must
be answered, and idle connections must take no thread. How long the answers take is judged
only where it is asked for.
"""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from catmq_client import Consumer, Producer
from tests.acceptance.scenarios.stage import Stage
from tests.support.environment import ROOT
from tests.support.logs import Tail
from tests.support.waiting import until

PROGRAM = ROOT / "tests" / "acceptance" / "programs" / "slow_clients.py"
# for one probe: far less than a thread would be held by a client that may take its time
ANSWER_S = 15.0
SHARES = {"head": 0.7, "small": 0.1, "body": 0.1, "unsent": 0.05, "untaken": 0.05}


@dataclass
class Probes:
    """Requests of others meanwhile, with the seconds that each answer took."""

    stage: Stage
    topic: str
    took: dict[str, list[float]] = field(default_factory=dict)

    def run(self, *, rounds: int) -> None:
        """Asks one after the other: a send, the pull that brings it, /livez on a connection
        of its own.
        """
        server = self.stage.server
        where = {"api_key": server.api_key, "request_timeout_ms": int(ANSWER_S * 1000)}
        with (
            Producer(server.url, **where) as producer,
            Consumer(
                server.url, group=self.stage.fresh("probes"), topics=[self.topic], **where
            ) as consumer,
        ):
            for number in range(-1, rounds):  # the first brings the group into being
                body = self.stage.fresh(f"{number}").encode()
                sent_at = time.monotonic()
                self.timed(
                    "send", lambda body=body: producer.send(self.topic, body).offset >= 0
                )
                until(lambda body=body: self.came(consumer, body), limit_s=4 * ANSWER_S)
                self.took.setdefault("pull", []).append(time.monotonic() - sent_at)
                self.timed("livez", self.lives)
        for took in self.took.values():
            del took[0]

    def came(self, consumer: Consumer, body: bytes) -> bool:
        """Return True if what was sent is among the next messages."""
        return body in [message.body for message in consumer.poll(timeout_s=ANSWER_S)]

    def lives(self) -> bool:
        """Return True if /livez is answered."""
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.stage.server.port, timeout=ANSWER_S
        )
        try:
            connection.request("GET", "/livez")
            return connection.getresponse().status == 200
        finally:
            connection.close()

    def timed(self, what: str, ask: Callable[[], bool]) -> None:
        """Asks, and notes how long the answer took."""
        begun = time.monotonic()
        assert ask(), f"{what} was not answered as it should be"
        self.took.setdefault(what, []).append(time.monotonic() - begun)

    def told(self) -> str:
        """The figures in words, ms."""
        figures = {
            what: [percentile(took, share) for share in (50, 99, 100)]
            for what, took in self.took.items()
        }
        return ", ".join(
            f"{what} p50 {middle:.0f} p99 {most:.0f} max {worst:.0f} ms"
            for what, (middle, most, worst) in sorted(figures.items())
        )


def percentile(took: list[float], share: int) -> float:
    """So many percent of the times are below it, ms."""
    return sorted(took)[min(len(took) - 1, len(took) * share // 100)] * 1000


class Crowd:
    """The slow clients, as a program of their own."""

    def __init__(
        self, stage: Stage, topic: str, every_s: float, kinds: Mapping[str, int]
    ) -> None:
        counts = [f"{kind}={count}" for kind, count in kinds.items()]
        server = stage.server
        given = ["127.0.0.1", str(server.port), topic, str(every_s), *counts]
        name = stage.fresh("slow")
        self.process = stage.terminal.start(
            str(PROGRAM), *given, name=name, stdin=subprocess.PIPE
        )
        self.said = Tail(Path(stage.directory / f"{name}.out"))
        until(lambda: self.said.follow(), limit_s=120)

    def figures(self) -> dict[str, Any]:
        """Return how many are open, and were sent away."""
        told = len(self.said.follow())
        assert self.process.popen.stdin is not None
        self.process.popen.stdin.write(b"\n")
        self.process.popen.stdin.flush()
        return dict(until(lambda: self.said.follow()[told:])[-1])


@contextmanager
def slow_clients(
    stage: Stage, topic: str, every_s: float, kinds: Mapping[str, int]
) -> Iterator[Callable[[], dict[str, Any]]]:
    """So many clients for the length of a block; gives what tells their figures."""
    crowd = Crowd(stage, topic, every_s, kinds)
    try:
        yield crowd.figures
    finally:
        crowd.process.kill()


def threads(stage: Stage) -> list[int]:
    """Return how many threads each worker has."""
    found = [Path(f"/proc/{pid}/status").read_text() for pid in stage.server.workers()]
    return [int(re.findall(r"^Threads:\s+(\d+)", text, re.MULTILINE)[0]) for text in found]


def run(
    stage: Stage,
    *,
    sockets: int,
    idle: int,
    rounds: int,
    every_s: float = 4.0,
    p99_ms: float | None = None,
) -> str:
    """Plays it; the verdict. `p99_ms`: no kind of probe may have a higher one."""
    topic = stage.fresh("slow")
    stage.terminal.run("topic", "create", topic, "--queues", "1")
    calm = Probes(stage, topic)
    calm.run(rounds=rounds)
    stage.say(f"without others: {calm.told()}")
    before = threads(stage)
    with slow_clients(stage, topic, every_s, {"idle": idle}) as figures:
        until(lambda: figures()["open"].get("idle") == idle, limit_s=60)
        assert threads(stage) == before, (
            f"{idle} idle connections take threads: {before}, {threads(stage)}"
        )
        beside = Probes(stage, topic)
        beside.run(rounds=rounds)
        stage.say(f"beside {idle} idle connections: {beside.told()}")
    kinds = {kind: max(1, round(sockets * share)) for kind, share in SHARES.items()}
    with slow_clients(stage, topic, every_s, kinds) as figures:
        under = Probes(stage, topic)
        under.run(rounds=rounds)
        found = figures()
    counted = {what: len(took) for what, took in under.took.items()}
    assert counted == dict.fromkeys(counted, rounds), counted
    if p99_ms is not None:
        late = {
            w: percentile(t, 99) for one in (beside, under) for w, t in one.took.items()
        }
        assert max(late.values()) < p99_ms, f"p99: {late}"
    verdict = f"OK: beside {sockets} slow clients: {under.told()}; {json.dumps(found)}"
    stage.say(verdict)
    return verdict
