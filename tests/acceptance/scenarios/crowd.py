"""A group whose members come and go while a sender sends steadily; everybody keeps a
journal.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from catmq_client.errors import AnswerLost, Conflict, Unavailable
from tests.acceptance.scenarios.stage import Stage
from tests.support import judge
from tests.support.environment import ROOT
from tests.support.logs import Place, Tail, await_count
from tests.support.server import alive, stopped
from tests.support.terminal import Process
from tests.support.waiting import until

MOST_SENT = 10**9  # by one sender: the numbers of the next one begin above
PROGRAMS = ROOT / "tests" / "acceptance" / "programs"


@dataclass
class Member:
    """A process of programs/member.py."""

    name: str
    pid: int
    journal: Tail

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return alive(self.pid)

    @property
    def is_up(self) -> bool:
        """Whether it can be told to stop."""
        return bool(self.journal.follow())

    def told(self, what: str, since: float = 0.0) -> list[dict[str, object]]:
        """The lines of one kind."""
        return [
            line
            for line in self.journal.follow()
            if line["what"] == what and line["at"] >= since
        ]

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal."""
        os.kill(self.pid, number)

    def freeze(self) -> float:
        """Stops it by SIGSTOP; when that was done: on a busy machine its threads go on for
        milliseconds.
        """
        self.signal(signal.SIGSTOP)
        until(lambda: stopped(self.pid))
        return time.monotonic()

    def await_end(self, *, limit_s: float = 60.0) -> None:
        """Waits for its end, which must be a polite one."""
        until(lambda: not self.runs, limit_s=limit_s, every_s=0.05)
        said = self.journal.path.with_suffix(".err").read_text()
        assert self.told("left") and "Traceback" not in said, (
            f"{self.name} ended badly:\n{said[-2000:]}"
        )


class Sender(NamedTuple):
    """A process of programs/steady.py."""

    process: Process
    journal: Tail

    def told(self, what: str) -> list[dict[str, object]]:
        """The lines of one kind."""
        return [line for line in self.journal.follow() if line["what"] == what]


def insist(act: Callable[[], object], *, creates: bool = False) -> None:
    """Repeat what a broker refuses because a thread of it still has a connection that an
    earlier test cut. Its first statement shows that, so nothing was stored.

    `creates`: a creation is also repeated if a busy machine has answered too late.
    """
    answers_lost = 0

    def is_done() -> bool:
        nonlocal answers_lost
        try:
            act()
        except Unavailable as refusal:
            assert refusal.code == "metadata_unavailable", refusal
            return False
        except AnswerLost:
            if not creates:
                raise
            answers_lost += 1
            return False
        except Conflict:  # it exists, by the request whose answer was lost
            assert answers_lost
        return True

    until(is_done, limit_s=60)


@dataclass
class Crowd:
    """One topic, on one node if that is named, and one group. `ids` are the queues that
    somebody must own.

    `more_nodes`: it has as many queues on each of these, too.
    """

    stage: Stage
    queues: int
    session_ms: int
    name: str = "crowd"
    node: str | None = None
    more_nodes: tuple[str, ...] = ()
    members: dict[str, Member] = field(default_factory=dict)  # all that ever were
    deaths: dict[str, float] = field(default_factory=dict)
    senders: list[Sender] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.topic, self.group = (
            self.stage.fresh(self.name),
            self.stage.fresh(f"{self.name}-group"),
        )
        admin = self.stage.terminal.admin
        chosen = {"node": self.node} if self.node else {}
        insist(
            lambda: admin.create_topic(self.topic, queues=self.queues, **chosen),
            creates=True,
        )
        for node in self.more_nodes:
            insist(
                lambda node=node: admin.expand_topic(
                    self.topic, queues=self.queues, node=node
                )
            )  # type: ignore[misc]
        insist(
            lambda: admin.create_group(self.group, session_timeout_ms=self.session_ms),
            creates=True,
        )
        self.ids = self.queues_now()
        self._numbers = itertools.count(1)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._nursery = self.stage.terminal.start(str(PROGRAMS / "nursery.py"), **pipes)
        self._handled: set[Place] = set()
        self._read: dict[str, int] = {}

    def join(self, *words: str, environ: Mapping[str, str] | None = None) -> Member:
        """Starts a member; with `environ` by a new Python, not by fork."""
        name = f"m{next(self._numbers)}"
        journal = self.stage.directory / f"{self.group}-{name}.jsonl"
        argv = [self.group, self.topic, str(journal), *words]
        if environ is None:
            pid = self._forked(argv, journal.with_suffix(".err"))
        else:
            program = str(PROGRAMS / "member.py")
            started = self.stage.terminal.start(
                program, *argv, name=journal.stem, environ=environ
            )
            pid = started.popen.pid
        self.members[name] = Member(name, pid, Tail(journal))
        return self.members[name]

    def _forked(self, argv: list[str], err: Path) -> int:
        pipes = self._nursery.popen
        assert pipes.stdin is not None and pipes.stdout is not None
        pipes.stdin.write(json.dumps({"argv": argv, "err": str(err)}).encode() + b"\n")
        pipes.stdin.flush()
        return int(pipes.stdout.readline())

    def leave(self, member: Member) -> None:
        """Tells a member to stop; `end` waits for it."""
        member.signal(signal.SIGTERM)

    def kill(self, member: Member) -> float:
        """kill -9; when it was."""
        self.deaths[member.name] = time.monotonic()
        member.signal(signal.SIGKILL)
        return self.deaths[member.name]

    def send(self, every_ms: int) -> Sender:
        """Starts a sender of one message to each queue every so often."""
        journal = self.stage.directory / f"{self.group}-sender{len(self.senders) + 1}.jsonl"
        first = len(self.senders) * MOST_SENT
        words = [self.topic, str(journal), str(every_ms), str(first), *map(str, self.ids)]
        process = self.stage.terminal.start(
            str(PROGRAMS / "steady.py"), *words, name=journal.stem
        )
        self.senders.append(Sender(process, Tail(journal)))
        return self.senders[-1]

    def send_keyed(self, per_s: int, *, keys: int = 50) -> Sender:
        """Start a sender of `per_s` messages a second, whose queues the client chooses by key."""
        journal = self.stage.directory / f"{self.group}-keyed{len(self.senders) + 1}.jsonl"
        first = len(self.senders) * MOST_SENT
        words = [str(word) for word in (self.topic, journal, per_s, first, keys)]
        process = self.stage.terminal.start(
            str(PROGRAMS / "keyed.py"), *words, name=journal.stem
        )
        self.senders.append(Sender(process, Tail(journal)))
        return self.senders[-1]

    def send_raw(self, every_ms: int, *, urls: str = "", pad: int = 0) -> Sender:
        """Starts a sender without our client, which repeats what it does not know through
        the next broker.

        `pad`: bytes in a header of each message.
        """
        journal = self.stage.directory / f"{self.group}-raw{len(self.senders) + 1}.jsonl"
        first = len(self.senders) * MOST_SENT
        seed = self.stage.rng.randrange(10**6)
        words = [str(one) for one in (self.topic, journal, every_ms, first, seed, pad)]
        environ = {"CATMQ_URL": urls} if urls else {}
        program = str(PROGRAMS / "raw.py")
        process = self.stage.terminal.start(
            program, *words, name=journal.stem, environ=environ
        )
        self.senders.append(Sender(process, Tail(journal)))
        return self.senders[-1]

    def queues_now(self) -> list[int]:
        """The topic's queues; not those of an expansion that was refused halfway and taken
        back.
        """
        listed = self.stage.terminal.admin.topic(self.topic)["queues"]
        return [queue["queue"] for queue in listed if queue["state"] != "retired"]

    @property
    def running(self) -> list[Member]:
        """The members whose process runs."""
        return [one for one in self.members.values() if one.runs]

    def owners(self) -> dict[int, str]:
        """Queue → the member that acquired it last, by epoch."""
        gains = [
            (line["epoch"], line["queue"], member.name)
            for member in self.members.values()
            for line in member.told("gained")
        ]
        return {queue: name for _, queue, name in sorted(gains)}  # type: ignore[misc]

    def shared_by(self, members: Iterable[Member]) -> bool:
        """Whether these members, and nobody else, own the queues, each its fair share."""
        names = [member.name for member in members]
        owners = list(self.owners().values())
        shares = [owners.count(name) for name in names]
        complete = self.owners().keys() >= set(self.ids) and sum(shares) == len(owners)
        return complete and max(shares) - min(shares) <= 1

    def await_shared(self, members: Iterable[Member], *, limit_s: float = 60.0) -> float:
        """Waits until they share the queues; when the last of them was acquired."""
        listed = list(members)
        try:
            until(lambda: self.shared_by(listed), limit_s=limit_s, every_s=0.02)
        except AssertionError as error:
            told = {
                one.name: one.journal.path.with_suffix(".err").read_text()[-2000:]
                for one in listed
            }
            what = f"{error}: owners of {self.ids} are {self.owners()}; members said {told}"
            raise AssertionError(what) from error
        owners = self.owners()
        latest = {
            (line["queue"], member.name): line["at"]
            for member in listed
            for line in member.told("gained")
        }
        return max(float(str(latest[queue, name])) for queue, name in owners.items())

    def handled(self) -> int:
        """How many different messages a handler has come back from."""
        for member in self.members.values():
            lines, seen = member.journal.follow(), self._read.get(member.name, 0)
            self._handled |= {
                Place(line["queue"], line["offset"])
                for line in lines[seen:]
                if line["what"] == "end"
            }
            self._read[member.name] = len(lines)
        return len(self._handled)

    def places(self) -> set[Place]:
        """The messages that a handler has come back from."""
        self.handled()
        return self._handled

    def finish(self, *, stall_s: float) -> judge.Story:
        """Stops sending, waits until all is handled, ends everybody politely; the story."""
        for sender in self.senders:
            if sender.process.runs:
                sender.process.end()
        count = sum(len(sender.told("sent")) for sender in self.senders)
        await_count(self.handled, count, stall_s=stall_s)
        return self.disband()

    def disband(self) -> judge.Story:
        """Ends everybody politely; the story."""
        staying = self.running
        for member in staying:
            until(lambda one=member: one.is_up, limit_s=60)
            self.leave(member)
        for member in self.members.values():
            if member.name not in self.deaths or member in staying:
                member.await_end()
        return self.story()

    def story(self) -> judge.Story:
        """What the journals tell so far."""
        members = {name: one.journal.follow() for name, one in self.members.items()}
        lines = [line for sender in self.senders for line in sender.journal.follow()]
        return judge.story(members, lines, self.deaths)
