"""Members of both kinds in the same group, each a process, and the messages they handled or
reported as failed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.environment import ROOT

Handled = tuple[str, int, int, str]  # member, queue, epoch, body
Owners = dict[tuple[int, int], set[str]]  # (queue, epoch) → consumer ids


@dataclass
class MixedGroup:
    """Members that write to files. Bodies end in a dot, so that a line cut off by a kill is
    recognised.
    """

    group: str
    topic: str
    directory: Path
    api_key: str
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, *names: str, url: str) -> None:
        """Start members. The name begins with the kind of the member."""
        for name in names:
            kind = name.partition("-")[0]
            command = [
                sys.executable,
                "-m",
                f"tests.support.{kind}_member",
                url,
                self.group,
                self.topic,
            ]
            with (self.directory / name).open("wb") as output:
                self.processes[name] = subprocess.Popen(
                    command if kind == "java" else [*command, name],
                    stdout=output,
                    cwd=ROOT,
                    env={**os.environ, "CATMQ_API_KEY": self.api_key},
                )

    def kill(self, name: str) -> None:
        """Kill with SIGKILL, so that the member neither commits nor leaves."""
        self.processes[name].kill()
        self.processes[name].wait()

    def alive(self) -> list[str]:
        """Return the names of running members in the order of their starts."""
        return [name for name, process in self.processes.items() if process.poll() is None]

    def lines(self) -> Iterator[tuple[str, list[str]]]:
        """Yield (member, words) of all lines."""
        for name in self.processes:
            for line in (self.directory / name).read_text().splitlines():
                if line.endswith("."):
                    yield name, line.split(" ")

    def all_handled(self) -> list[Handled]:
        handled = [(name, words) for name, words in self.lines() if len(words) == 3]
        return [
            (name, int(queue), int(epoch), body) for name, (queue, epoch, body) in handled
        ]

    def failed(self) -> dict[str, str]:
        """Return the member at which each body failed."""
        return {words[1]: name for name, words in self.lines() if words[0] == "failed"}

    def bodies(self) -> set[str]:
        return {body for *_, body in self.all_handled()}

    def members(self) -> set[str]:
        return {name for name, *_ in self.all_handled()}

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


def assert_one_member_of_an_epoch(handled: Iterable[Handled]) -> None:
    """Fail if two members handled messages of a queue under the same epoch.

    A reader row names a single owner.
    """
    members: Owners = {}
    for name, queue, epoch, _ in handled:
        members.setdefault((queue, epoch), set()).add(name)
    assert [key for key, names in members.items() if len(names) > 1] == []


def assert_one_owner_of_an_epoch(owners_by_epoch: Owners) -> None:
    """Fail if reader rows named two owners of a queue under the same epoch."""
    assert [key for key, owners in owners_by_epoch.items() if len(owners) > 1] == []
