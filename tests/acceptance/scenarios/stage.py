"""What every scenario plays on: a server, a directory for logs, a source of randomness, a
voice.
"""

from __future__ import annotations

import json
import random
import secrets
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.environment import ROOT
from tests.support.logs import Log, Place
from tests.support.server import Server
from tests.support.terminal import Process, Terminal
from tests.support.waiting import until

CHECK_STREAM = ROOT / "examples" / "check_stream.py"


@dataclass
class Stage:
    """`say` tells what is being done; scenarios raise AssertionError when something does
    not hold.

    `urls` are the brokers that processes on the stage know, separated by commas; by default
    the server's.
    `times` is how often a scenario does what it does, where that may be chosen; None: its
    own choice.
    """

    server: Server
    directory: Path
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    say: Callable[[str], None] = lambda text: None
    urls: str = ""
    times: int | None = None

    def __post_init__(self) -> None:
        self.terminal = Terminal(self.server, self.directory, self.urls)
        self.line = ""

    def note(self, line: str) -> None:
        """Says which line of a schedule is played; `line` is the last one."""
        self.line = line
        self.say(line)

    def fresh(self, name: str) -> str:
        """A name for a topic or group that nothing has had."""
        return f"{name}-{secrets.token_hex(4)}"

    def consumers(
        self, topic: str, group: str, *names: str
    ) -> tuple[list[Process], list[Log]]:
        """Starts `catmq consume` processes of one group; returns when each owns its share
        of the queues.
        """
        started = [
            self.terminal.consume(topic, group, name=f"{group}-{name}") for name in names
        ]
        self.await_owners(group, len(names))
        return started, [Log(process.out) for process in started]

    def await_owners(self, group: str, count: int) -> None:
        """Returns when the group has so many members and each owns a queue."""

        def all_own() -> bool:
            found = [
                one
                for one in self.terminal.admin.groups(search=group)
                if one["name"] == group
            ]
            members = self.terminal.admin.group(group)["members"] if found else []
            return len(members) == count and all(member["queues"] for member in members)

        until(all_own, limit_s=60, every_s=0.1)

    def check_stream(self, logs: Sequence[Log], source: Path, *more: str) -> str:
        """The verdict of examples/check_stream.py on what the consumers printed, which must
        be OK.
        """
        files = [str(log.path) for log in logs]
        command = [
            sys.executable,
            str(CHECK_STREAM),
            *files,
            "--source",
            str(source),
            *more,
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip().replace(f"{self.directory}/", "")

    def stored(self, topic: str) -> int:
        """How many messages the topic's queues hold, by their heads."""
        return sum(
            queue["head"] or 0 for queue in self.terminal.admin.topic(topic)["queues"]
        )


def seq_by_place(logs: Sequence[Log]) -> dict[Place, int]:
    """Which event each message holds, as the consumers printed it."""
    return {
        Place(line["queue"], line["offset"]): json.loads(line["body"])["seq"]
        for log in logs
        for line in log.follow()
    }


def check_receipts(receipts: Log, logs: Sequence[Log], count: int) -> None:
    """Each of the `count` events has one receipt, and it names the one place where the
    event was read.
    """
    told = {
        Place(line["queue"], line["offset"]): line["line"] - 1 for line in receipts.follow()
    }
    assert len(receipts.lines) == len(told) == count, (
        f"{len(receipts.lines)} receipts, {len(told)} places"
    )
    read = seq_by_place(logs)
    wrong = [
        f"{place}: receipt for {told.get(place)}, read {read.get(place)}"
        for place in sorted(told.keys() | read.keys())
        if told.get(place) != read.get(place)
    ]
    assert not wrong, f"{len(wrong)} receipts differ from what was read: {wrong[:5]}"
