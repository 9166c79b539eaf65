"""The broker is restarted at random moments, while a stream is sent and consumed; clients
go on.

What must hold afterwards: every event was read, in order; each has exactly one receipt,
which names the place where it was read; the topic holds nothing else.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.acceptance.scenarios.stage import Stage, check_receipts
from tests.support.changes import events
from tests.support.logs import Log, await_count, await_messages, distinct
from tests.support.terminal import Process

QUEUES = 4
STALL_S = 150.0  # a restart may take long, and the pauses between restarts grow
TERM, KILL, WORKER = "SIGTERM", "kill -9", "kill -9 of a worker"


@dataclass
class Restarts:
    """One play: restarts of these kinds during sending, then again while a second group
    reads a backlog.
    """

    stage: Stage
    source: Path
    kinds: Sequence[str]
    batch: int = 10
    session_ms: int = 15_000
    topic: str = ""
    consumers: list[Process] = field(default_factory=list)
    logs: list[Log] = field(default_factory=list)

    def run(self) -> None:
        """Plays both halves."""
        self.count = len(events(self.source))
        self.topic = self.stage.fresh("restarted")
        self.stage.terminal.run("topic", "create", self.topic, "--queues", str(QUEUES))
        self.send_and_consume()
        self.read_again()

    def send_and_consume(self) -> None:
        """Restarts in the middle of sending, while a group reads what comes."""
        self.consumers, self.logs = self.stage.consumers(self.topic, self.group(), "a", "b")
        words = [
            "--key-field",
            "path",
            "--file",
            str(self.source),
            "--batch",
            str(self.batch),
        ]
        sender = self.stage.terminal.catmq(
            "send", self.topic, *words, "--output", "json", name=self.topic
        )
        receipts = Log(sender.out)
        self.play(lambda: len(receipts.follow()), "receipts")
        sender.wait(limit_s=600)
        self.finish()
        receipts.follow()
        check_receipts(receipts, self.logs, self.count)

    def read_again(self) -> None:
        """Another group reads the whole topic from the beginning, through as many restarts."""
        group = self.group()
        names = [f"{group}-{name}" for name in "ab"]
        self.consumers = [
            self.stage.terminal.consume(self.topic, group, name=name) for name in names
        ]
        self.logs = [Log(consumer.out) for consumer in self.consumers]
        self.play(lambda: distinct(self.logs), "messages read")
        self.finish()

    def group(self) -> str:
        """A new group with the session timeout of this play."""
        name = self.stage.fresh("readers")
        self.stage.terminal.run(
            "group", "create", name, "--session-timeout-ms", str(self.session_ms)
        )
        return name

    def play(self, reached: Callable[[], int], what: str) -> None:
        """Restarts in random order of kinds, each when a random share of the work is done."""
        order = list(self.kinds)
        self.stage.rng.shuffle(order)
        for index, kind in enumerate(order):
            share = (index + self.stage.rng.uniform(0.1, 0.9)) / (len(order) + 0.5)
            await_count(reached, int(self.count * share), stall_s=STALL_S)
            self.stage.say(f"{kind} at {reached()} of {self.count} {what}")
            begun = time.monotonic()
            self.restart(kind)
            took_s = time.monotonic() - begun
            self.stage.say(f"  serves again after {took_s:.1f} s, at {reached()} {what}")

    def restart(self, kind: str) -> None:
        """Does it, and returns when the broker serves again."""
        if kind == WORKER:
            self.stage.server.kill_worker(self.stage.rng.randrange(2))
        else:
            self.stage.server.restart_broker(
                {TERM: signal.SIGTERM, KILL: signal.SIGKILL}[kind]
            )

    def finish(self) -> None:
        """Waits for the rest and judges; both consumers must have lived through everything."""
        await_messages(self.logs, self.count, stall_s=STALL_S)
        for consumer in self.consumers:
            consumer.end()
        assert self.stage.stored(self.topic) == self.count
        self.stage.say(self.stage.check_stream(self.logs, self.source))


def run(
    stage: Stage,
    *,
    source: Path,
    kinds: Sequence[str],
    batch: int = 10,
    session_ms: int = 15_000,
) -> None:
    """Plays it once. Raises AssertionError when something does not hold."""
    Restarts(stage, source=source, kinds=kinds, batch=batch, session_ms=session_ms).run()
