"""Members of a share group are killed and frozen: nothing is lost, and little is handled
twice.

Each lease is one member's: no message begins twice under the same delivery. One that kills
its worker is a dead letter in the end, and its neighbours are delivered again a few times
at most.
"""

from __future__ import annotations

import http.client
import json
import random
import signal
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

from catmq_client import NewMessage, Producer
from tests.acceptance.scenarios.stage import Stage
from tests.support.terminal import Process
from tests.support.waiting import until

PROGRAM = "tests/acceptance/programs/sharer.py"
LEASE_S = 5.0
# its leases end with it; on a busy machine a heartbeat may come late
SESSION_ENDED = "the session of"
ROW_BYTES = 110  # of a message in an answer, about
MOST_REPEATED = 5  # neighbours of a message that kills its worker
Excuse = Callable[[dict[str, Any], dict[str, Any]], bool]


@dataclass
class Crowd:
    """Processes of one share group, all of which write into one log."""

    stage: Stage
    topic: str
    group: str
    threads: int
    work_ms: int
    lethal: str = ""
    members: list[Process] = field(default_factory=list)
    disturbed: set[int] = field(default_factory=set)  # process ids

    @property
    def log(self) -> Path:
        return self.stage.directory / f"{self.group}.jsonl"

    def start(self) -> Process:
        """Starts one member."""
        words = [
            self.group,
            self.topic,
            str(self.log),
            str(self.threads),
            str(self.work_ms),
        ]
        words += [self.lethal] if self.lethal else []
        self.members.append(self.stage.terminal.start(PROGRAM, *words))
        return self.members[-1]

    def kill_one(self) -> None:
        """kill -9 of a member, and another one in its place."""
        victim = self.members.pop(self.stage.rng.randrange(len(self.members)))
        self.disturbed.add(victim.popen.pid)
        victim.kill()
        self.start()

    def freeze_one(self) -> Process:
        """SIGSTOP of a member."""
        frozen = self.stage.rng.choice(self.members)
        self.disturbed.add(frozen.popen.pid)
        frozen.popen.send_signal(signal.SIGSTOP)
        return frozen

    def lines(self) -> list[dict[str, Any]]:
        """What the members wrote; a line that was being written is left out."""
        text = self.log.read_text() if self.log.exists() else ""
        return [
            json.loads(line)
            for line in text.splitlines(keepends=True)
            if line.endswith("\n")
        ]

    def bodies(self, at: str) -> Counter[str]:
        """How often each message was begun, or ended."""
        return Counter(line["body"] for line in self.lines() if line["at"] == at)

    def await_all(self, count: int, *, limit_s: float = 60) -> None:
        """Returns when the group has so many members."""
        admin = self.stage.terminal.admin
        until(
            lambda: (
                admin.groups(search=self.group)
                and len(_members(self.stage, self.group)) == count
            ),
            limit_s=limit_s,
        )

    def await_finished(self, count: int, *, limit_s: float = 120) -> None:
        """Returns when the messages with the numbers below `count` were handled and
        committed.
        """
        wanted = {str(n) for n in range(count)}
        until(lambda: self.bodies("end").keys() == wanted, limit_s=limit_s, every_s=0.25)
        until(
            lambda: self.stage.terminal.admin.lag(self.group)["lag"] == 0,
            limit_s=60,
            every_s=0.25,
        )

    def end(self) -> None:
        """SIGTERM of all; returns when they ended in order, and nothing is leased."""
        for one in self.members:
            one.popen.send_signal(signal.SIGTERM)
        for one in self.members:
            one.wait()
        assert self.stage.terminal.admin.share_runs(self.group)["runs"] == [], (
            "nothing is leased at the end"
        )


@contextmanager
def sending(stage: Stage, topic: str) -> Iterator[Callable[[int, int], object]]:
    """A function that sends messages whose bodies are the numbers from one to another."""
    with Producer(stage.urls or stage.server.url, api_key=stage.server.api_key) as producer:
        yield lambda first, end: producer.send_batch(
            topic, [NewMessage(b"%d" % n, key=str(n)) for n in range(first, end)]
        )


def run(stage: Stage, *, members: int, seconds: int) -> str:
    """Kills one of the members each second, and freezes one past its lease; the verdict."""
    per_s = members * 25  # of 40 that they could handle
    topic, group = stage.fresh("shared"), stage.fresh("crowd")
    stage.terminal.run("topic", "create", topic, "--queues", "2")
    crowd = Crowd(stage, topic, group, threads=4, work_ms=100)
    for _ in range(members):
        crowd.start()
    crowd.await_all(members)
    count = _disturb(stage, crowd, seconds=seconds, per_s=per_s)
    crowd.await_finished(count)
    crowd.end()
    verdict = f"{count} messages, {len(crowd.disturbed)} members disturbed; {judge(crowd)}"
    stage.say(verdict)
    return verdict


def _members(stage: Stage, group: str) -> list[Any]:
    found = [
        one for one in stage.terminal.admin.groups(search=group) if one["name"] == group
    ]
    return [*stage.terminal.admin.group(group)["members"]] if found else []


def _disturb(stage: Stage, crowd: Crowd, *, seconds: int, per_s: int) -> int:
    """Sends and kills each second; how many were sent. A frozen member thaws after its
    lease.
    """
    frozen: Process | None = None
    thaws_at, sent = 0.0, 0
    with sending(stage, crowd.topic) as send:
        while sent < seconds * per_s or frozen is not None:
            send(sent, sent + per_s)
            sent += per_s
            time.sleep(1.0)
            if frozen is None and sent < seconds * per_s:
                frozen, thaws_at = crowd.freeze_one(), time.monotonic() + LEASE_S + 2
                crowd.members.remove(frozen)  # it is not killed meanwhile
            elif frozen is not None and time.monotonic() > thaws_at:
                frozen.popen.send_signal(signal.SIGCONT)
                crowd.members.append(frozen)
                frozen = None
            crowd.kill_one()
    stage.say(f"{sent} messages sent, {len(crowd.disturbed)} members killed or frozen")
    return sent


def judge(crowd: Crowd, *, excuses: Mapping[str, Excuse] = MappingProxyType({})) -> str:
    """Raises AssertionError unless each repeat has a reason; how many there were of each.

    It is a reason that the member that had the message was disturbed, or lost its session;
    `excuses` are
    more, each a function of the two lines at which the message began.
    """
    begins: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for line in crowd.lines():
        if line["at"] == "begin":
            begins[line["queue"], line["offset"]].append(line)
    twice = [
        place
        for place, lines in begins.items()
        if len({line["grant"] for line in lines}) < len(lines)
    ]
    assert not twice, f"begun twice under one lease: {twice[:5]}"
    silent = {
        one.popen.pid for one in crowd.members if SESSION_ENDED in one.err.read_text()
    }
    known: dict[str, Excuse] = {
        "of disturbed members": lambda before, after: before["pid"] in crowd.disturbed,
        "of members whose session ended": lambda before, after: before["pid"] in silent,
        **excuses,
    }
    found: Counter[str] = Counter()
    for lines in begins.values():
        for before, after in pairwise(lines):
            why = next((name for name, fits in known.items() if fits(before, after)), "")
            assert why, (
                f"repeated although nobody who had it was disturbed: {before} and {after}"
            )
            found[why] += 1
    told = ", ".join(f"{count} {why}" for why, count in found.items())
    return f"{found.total()} repeated" + (f": {told}" if told else "")


def run_poison(stage: Stage, *, count: int, lethal: int) -> str:
    """One of many messages kills each worker that handles it; the verdict."""
    topic, group = stage.fresh("poisoned"), stage.fresh("victims")
    stage.terminal.run("topic", "create", topic, "--queues", "1")
    with sending(stage, topic) as send:
        for first in range(0, count, 500):
            send(first, min(count, first + 500))
    crowd = Crowd(stage, topic, group, threads=1, work_ms=5, lethal=str(lethal))
    deaths = 0
    worker = crowd.start()
    admin = stage.terminal.admin
    while not (
        _members(stage, group) and [*admin.dead_letters.messages(group, topic=topic)]
    ):
        if not worker.runs:
            deaths += 1
            assert deaths <= 6, "it goes on killing workers"
            worker = crowd.start()
        time.sleep(0.1)
    until(lambda: len(crowd.bodies("end")) == count - 1, limit_s=60, every_s=0.25)
    until(lambda: admin.lag(group)["lag"] == 0, limit_s=60, every_s=0.25)
    worker.end()
    dead = [*admin.dead_letters.messages(group, topic=topic)]
    assert [one["error"].partition(":")[0] for one in dead] == ["LeaseLost"], dead
    begun = crowd.bodies("begin")
    assert begun.pop(str(lethal)) == 5, "it was leased as often as the group lets it be"
    repeated = sum(begun.values()) - (count - 1)
    assert repeated <= MOST_REPEATED, f"{repeated} neighbours were handled again"
    verdict = (
        f"1 of {count} is dead after {deaths} workers, {repeated} others were handled again"
    )
    stage.say(verdict)
    return verdict


def run_held(stage: Stage, *, held_s: float, per_s: int) -> str:
    """A handler holds one message for long, renewing its lease: nobody waits for it, and it
    comes once.

    The committed offset stays behind it, so neither retention nor a restart can lose it.
    """
    topic, group = stage.fresh("slow"), stage.fresh("patient")
    stage.terminal.admin.create_topic(topic, queues=1)
    with Producer(stage.server.url, api_key=stage.server.api_key) as producer:
        producer.send(topic, f"hold {held_s}".encode())
    crowd = Crowd(stage, topic, group, threads=2, work_ms=1)
    for _ in range(2):
        crowd.start()
    until(lambda: crowd.bodies("begin"), limit_s=60)
    begun, sent, most_runs = time.monotonic(), 0, 0
    with sending(stage, topic) as send:
        while time.monotonic() < begun + held_s - 1:
            send(sent, sent + per_s)
            sent += per_s
            wanted = {str(n) for n in range(sent)}
            until(
                lambda wanted=wanted: crowd.bodies("end").keys() == wanted,
                limit_s=30,
                every_s=0.25,
            )  # type: ignore[misc]
            lag = stage.terminal.admin.lag(group)["queues"][0]
            assert lag["committed"] == 0, f"the held message is not finished: {lag}"
            most_runs = max(most_runs, len(stage.terminal.admin.share_runs(group)["runs"]))
            time.sleep(max(0.0, begun + sent / per_s - time.monotonic()))
    until(lambda: len(crowd.bodies("end")) == sent + 1, limit_s=30, every_s=0.25)
    until(lambda: stage.terminal.admin.lag(group)["lag"] == 0, limit_s=60, every_s=0.25)
    crowd.end()
    assert set(crowd.bodies("begin").values()) == {1}, "nothing was delivered twice"
    verdict = (
        f"held for {held_s:.0f} s: {sent} others were handled meanwhile; at most "
        f"{most_runs} runs"
    )
    stage.say(verdict)
    return verdict


def run_hung_up(stage: Stage) -> None:
    """A member waits for messages and closes its connection: the next message is another
    member's at once.
    """
    topic, group = stage.fresh("lonely"), stage.fresh("leavers")
    stage.terminal.admin.create_topic(topic, queues=1)
    place = stage.server.url.removeprefix("http://")
    headers = {
        "Authorization": f"Bearer {stage.server.api_key}",
        "Content-Type": "application/json",
    }
    paths = []
    for name in ("gone", "there"):
        me = {
            "name": name,
            "incarnation": str(uuid.uuid4()),
            "sdk": "t",
            "mode": "share",
            "topics": [topic],
        }
        status, told = stage.server.call("POST", f"/api/v1/groups/{group}/consumers", me)
        assert status in (200, 201), told
        paths.append(f"/api/v1/consumers/{told['consumer_id']}/share")
    with closing(http.client.HTTPConnection(place, timeout=60)) as waiting:
        waiting.request("POST", paths[0], json.dumps({"wait_ms": 30_000}), headers)
        with suppress(TimeoutError):
            waiting.sock.settimeout(1.5)  # its thread waits by now
            waiting.getresponse()
    with sending(stage, topic) as send:
        send(0, 1)
    status, told = stage.server.call("POST", paths[1], {"wait_ms": 10_000})
    assert status == 200, told
    assert [run["deliveries"] for run in told["runs"]] == [1], (
        "it was leased to the one that is gone"
    )


@dataclass
class RawMember:
    """A member of a share group by raw HTTP, which loses answers and asks again at once
    with `recover`.
    """

    urls: list[str]
    api_key: str
    path: str
    rng: random.Random
    # (queue, offset) of every message that an answer brought.
    seen: set[tuple[int, int]] = field(default_factory=set)
    holding: list[dict[str, Any]] = field(default_factory=list)
    lost: int = 0

    def work(self, is_over: Callable[[], bool]) -> None:
        """Lease and finish messages until it is over; every other answer is lost."""
        recovers = False
        while not is_over():
            rows = self.rng.choice((2, 5, 10))
            body: dict[str, Any] = {
                "max_messages": 10,
                "max_bytes": rows * ROW_BYTES,
                "wait_ms": 200,
            }
            if recovers:
                body |= {"recover": True, "holding": self.holding}
            loses = self.rng.random() < 0.5
            answer = self._post(
                "share", body, waits_s=self.rng.uniform(0.0, 0.02) if loses else 30.0
            )
            if answer is None:
                self.lost += 1
                recovers = True
                continue
            recovers = False
            self._finish(answer["runs"])

    def _finish(self, runs: list[dict[str, Any]]) -> None:
        """Finish whole runs, as the answer says; a report whose answer does not come is
        repeated.
        """
        for run in runs:
            self.seen |= {(run["queue"], message["offset"]) for message in run["messages"]}
            self.holding.append({name: run[name] for name in ("queue", "first", "grant")})
        done = {"done": [{**held, "all": True} for held in self.holding]}
        if self.holding and self._post("share/done", done, waits_s=30.0) is not None:
            self.holding.clear()

    def _post(
        self, what: str, body: dict[str, Any], *, waits_s: float
    ) -> dict[str, Any] | None:
        """Ask one of the brokers; None if no answer came in time, or none of success."""
        url = self.rng.choice(self.urls).removeprefix("http://")
        headers = {
            "Authorization": f"Bearer {self.api_key}",
            "Content-Type": "application/json",
        }
        with closing(http.client.HTTPConnection(url, timeout=30)) as way, suppress(OSError):
            way.request("POST", f"{self.path}/{what}", json.dumps(body), headers)
            way.sock.settimeout(max(0.001, waits_s))
            answer = way.getresponse()
            return json.loads(answer.read()) if answer.status == 200 else None
        return None


def run_lost_answers(stage: Stage, *, members: int, count: int) -> str:
    """Members lose answers to share calls while brokers work on them: an answer brings
    every message.

    A message that is finished, and was in no answer that arrived, is lost.
    """
    topic, group = stage.fresh("doubtful"), stage.fresh("askers")
    admin = stage.terminal.admin
    admin.create_topic(topic, queues=2)
    raw = []
    for number in range(members):
        me = {
            "name": f"m{number}",
            "incarnation": str(uuid.uuid4()),
            "sdk": "t",
            "mode": "share",
        }
        status, told = stage.server.call(
            "POST",
            f"/api/v1/groups/{group}/consumers",
            {**me, "topics": [topic], "session_timeout_ms": 60_000},
        )
        assert status in (200, 201), told
        path = f"/api/v1/consumers/{told['consumer_id']}"
        urls = (stage.urls or stage.server.url).split(",")
        raw.append(
            RawMember(urls, stage.server.api_key, path, random.Random(stage.rng.random()))
        )
    with sending(stage, topic) as send:
        for first in range(0, count, 500):
            send(first, min(count, first + 500))
    over = threading.Event()
    with ThreadPoolExecutor(members) as threads:
        ends = [threads.submit(member.work, over.is_set) for member in raw]
        try:
            until(lambda: admin.lag(group)["lag"] == 0, limit_s=120, every_s=0.25)
        finally:
            over.set()
    for end in ends:
        end.result()
    seen = set().union(*(member.seen for member in raw))
    assert len(seen) == count, (
        f"{count - len(seen)} messages were finished and brought to nobody"
    )
    verdict = (
        f"{count} messages, {sum(member.lost for member in raw)} answers lost, every "
        "message was delivered"
    )
    stage.say(verdict)
    return verdict
