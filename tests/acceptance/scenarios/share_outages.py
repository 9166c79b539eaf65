"""All that can happen to a share group happens, while a member is killed each second:
nothing is lost.

Members are stopped past their lease, a broker of two is killed, then the node, and offsets
are reset under load. All the while the node's tables are read: no message is ever in two
leases. Each repeat has a reason.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from catmq_client.errors import Unavailable
from metadata.rules.groups import sharing
from tests.acceptance.scenarios.lost_nodes import node_on, own_server
from tests.acceptance.scenarios.share import LEASE_S, Crowd, judge, sending
from tests.acceptance.scenarios.stage import Stage
from tests.support.mariadb import MariaDB
from tests.support.pair import Pair
from tests.support.terminal import Process
from tests.support.waiting import until

AWAY_S = 3.0  # of a broker, and of the node
EVERY_S = 0.25  # between two looks at the tables
SLACK_S = 3.0  # until what came of an outage is over, on a busy machine
RESET_MESSAGES = 200  # that a reset lets come again, about
LEASES = """SELECT one.queue_id, one.first_offset, one.end_offset, one.done
    FROM moving.share_run AS one JOIN moving.share_position AS place
    ON place.group_id = one.group_id AND place.queue_id = one.queue_id AND place.epoch =
    one.epoch"""


@dataclass
class Outages:
    """One play on a node of its own."""

    stage: Stage
    pair: Pair
    server: MariaDB
    crowd: Crowd
    per_s: int
    sent: int = 0
    looks: int = 0
    doubled: list[str] = field(default_factory=list)
    faults: list[BaseException] = field(default_factory=list)
    down: list[tuple[float, float]] = field(default_factory=list)  # when the node was
    reset: tuple[float, float, int] | None = None  # begun, ended, to which offset

    def play(self, seconds: int) -> None:
        """Kills each second, and everything else once, one after the other."""
        events = {
            int(seconds * share): event
            for share, event in (
                (0.1, self.freeze_three),
                (0.35, self.kill_broker),
                (0.6, self.kill_node),
                (0.8, self.reset_offsets),
            )
        }
        assert len(events) == 4, f"{seconds} seconds are too few"
        stopping = threading.Event()
        with self.beside(self.send, stopping), self.beside(self.look, stopping):
            for second in range(seconds):
                due = time.monotonic() + 1.0
                if second in events:
                    events[second]()
                self.crowd.kill_one()
                time.sleep(max(0.0, due - time.monotonic()))
                if second % 30 == 29:
                    self.stage.say(
                        f"{self.sent} messages sent, {len(self.crowd.disturbed)} disturbed"
                    )
            stopping.set()

    @contextmanager
    def beside(
        self, work: Callable[[threading.Event], None], stopping: threading.Event
    ) -> Iterator[None]:
        """Something runs in a thread; what it raises is raised at the end."""

        def run() -> None:
            try:
                work(stopping)
            except BaseException as fault:  # noqa: BLE001 - raised below
                self.faults.append(fault)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            stopping.set()
            thread.join(180)
            assert not thread.is_alive(), "a sender waits still"
        if self.faults:
            raise self.faults[0]

    def send(self, stopping: threading.Event) -> None:
        """Sends so many messages each second; through an outage it waits."""
        with sending(self.stage, self.crowd.topic) as send:
            while not stopping.is_set():
                send(self.sent, self.sent + self.per_s)
                self.sent += self.per_s
                stopping.wait(1.0)

    def look(self, stopping: threading.Event) -> None:
        """Reads the leases: no offset may be in two of them."""
        while not stopping.wait(EVERY_S):
            rows: list[tuple[Any, ...]] | None = None
            with suppress(Exception):  # the node is down
                rows = self.server.execute(LEASES)
            if rows is not None:
                self.looks += 1
                self.doubled += doubled(rows)

    def freeze_three(self) -> None:
        """SIGSTOP of three members until after their lease; others take their place for the
        killer.
        """
        frozen = [
            self.crowd.freeze_one() for _ in range(min(3, len(self.crowd.members) - 1))
        ]
        for one in set(frozen):
            self.crowd.members.remove(one)
        threading.Timer(LEASE_S + 2, self.thaw, [list(set(frozen))]).start()

    def thaw(self, frozen: list[Process]) -> None:
        """SIGCONT."""
        for one in frozen:
            one.popen.send_signal(signal.SIGCONT)
        self.crowd.members += frozen

    def kill_broker(self) -> None:
        """kill -9 of one broker, which comes back after a while; the members find the other
        one.
        """

        def play() -> None:
            with self.pair.second.untended():
                self.pair.second.kill_broker()
                time.sleep(AWAY_S)

        self.stage.say("kill -9 of a broker")
        self.meanwhile(play)

    def kill_node(self) -> None:
        """kill -9 of the node's database, which comes back after a while."""

        def play() -> None:
            begun = time.monotonic()
            os.kill(self.server.pid, signal.SIGKILL)
            time.sleep(AWAY_S)
            self.server.start()
            self.down.append((begun, time.monotonic()))

        self.stage.say("kill -9 of the node")
        self.meanwhile(play)

    def reset_offsets(self) -> None:
        """Back by some messages, while all members work; the node must be back."""
        until(lambda: self.down or self.faults, limit_s=120)
        until(self.is_reset, limit_s=60, every_s=0.5)

    def is_reset(self) -> bool:
        """Resets; False if the brokers have not noticed yet that the node is back."""
        admin, begun = self.stage.terminal.admin, time.monotonic()
        try:
            (queue,) = (
                one
                for one in admin.lag(self.crowd.group)["queues"]
                if one["committed"] is not None
            )
            offset = max(0, int(queue["committed"] or 0) - RESET_MESSAGES)
            admin.reset_offsets(
                self.crowd.group, self.crowd.topic, to="offset", offset=offset
            )
        except (Unavailable, ValueError):
            return False
        self.reset = begun, time.monotonic(), offset
        self.stage.say(f"offsets reset to {offset}")
        return True

    def meanwhile(self, play: Callable[[], None]) -> None:
        """Does something that takes a while, beside the killing."""

        def run() -> None:
            try:
                play()
            except BaseException as fault:  # noqa: BLE001 - raised by `beside`
                self.faults.append(fault)

        threading.Thread(target=run).start()

    def verdict(self) -> str:
        """What came of it. Raises AssertionError."""
        assert not self.doubled, f"in two leases at once: {self.doubled[:5]}"
        assert self.down and self.reset, "not everything happened"
        told = judge(
            self.crowd,
            excuses={
                "after the reset": self.came_of_reset,
                "after the node's outage": self.came_of_outage,
            },
        )
        members = len(self.crowd.disturbed)
        return (
            f"{self.sent} messages, {members} members disturbed, leases read "
            f"{self.looks} times; {told}"
        )

    def came_of_reset(self, before: dict[str, Any], after: dict[str, Any]) -> bool:
        """Whether a message began again because of the reset."""
        assert self.reset
        begun, ended, offset = self.reset
        return (
            before["offset"] >= offset
            and before["t"] < ended + SLACK_S
            and after["t"] > begun
        )

    def came_of_outage(self, before: dict[str, Any], after: dict[str, Any]) -> bool:
        """Whether its lease could not be renewed, or its end not be told, because the node
        was down.
        """
        return any(
            begun - LEASE_S <= before["t"]
            and begun <= after["t"]
            and before["t"] <= ended + SLACK_S
            for begun, ended in self.down
        )


def doubled(rows: list[tuple[Any, ...]]) -> list[str]:
    """Offsets that are in two leases at once; each row is (queue, first, end, bits that
    have left it).

    >>> doubled([(1, 0, 4, b"\\x03"), (1, 0, 2, None), (1, 4, 8, None)])
    []
    >>> doubled([(1, 0, 4, b"\\x01"), (1, 0, 2, None)])
    ['queue 1 offset 1']
    """
    seen: set[tuple[int, int]] = set()
    found: list[str] = []
    for queue, first, end, done in rows:
        left = sharing.all_bits(end - first) & ~sharing.bits_from_bytes(done)
        places = {(queue, first + bit) for bit in range(end - first) if left >> bit & 1}
        found += [f"queue {one} offset {offset}" for one, offset in sorted(places & seen)]
        seen |= places
    return found


def run(stage: Stage, pair: Pair, *, members: int, seconds: int, per_s: int) -> str:
    """Plays it once; the verdict. Raises AssertionError when something does not hold."""
    topic, group = stage.fresh("shared"), stage.fresh("crowd")
    with own_server(stage, binlog=False) as server:
        stage.terminal.admin.create_topic(
            topic, queues=1, node=node_on(stage, pair, server)
        )
        crowd = Crowd(stage, topic, group, threads=1, work_ms=100)
        for _ in range(members):
            crowd.start()
        crowd.await_all(members, limit_s=300)
        play = Outages(stage, pair, server, crowd, per_s)
        play.play(seconds)
        crowd.await_finished(play.sent, limit_s=300)
        crowd.end()
        verified = pair.first.manage("verify", topic, "--digests").strip().splitlines()[-1]
        verdict = f"{play.verdict()}; verify: {verified}"
    stage.say(verdict)
    return verdict
