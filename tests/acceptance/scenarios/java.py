"""Two Python members and two that speak as Java clients do, in one group: members and
brokers are killed.

Nothing that was acknowledged is lost, and a queue has one owner under one epoch: by its
reader row, which is looked at all the time past every broker, and by what the members
handled.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field

from catmq_client import Producer
from catmq_client.errors import CatmqError
from tests.acceptance.scenarios.stage import Stage
from tests.support.mixed_group import (
    MixedGroup,
    Owners,
    assert_one_member_of_an_epoch,
    assert_one_owner_of_an_epoch,
)
from tests.support.pair import NODES, Pair
from tests.support.waiting import until

QUEUES = 4  # on each node
KINDS = ("java", "python")
OF_A_KIND = 2
SESSION_MS = 6_000
EVERY_S = 0.03  # between two messages
LOOK_S = 0.05  # between two looks at the reader rows
CALM_S = 90.0  # until everything goes on after a fault
MORE = 60  # messages that are handled between two faults
MEMBER, TERM, KILL = "kill -9 of a member", "SIGTERM of a broker", "kill -9 of a broker"


class Sender:
    """Sends messages with bodies of their own, one after the other; `sent` holds those
    acknowledged.
    """

    def __init__(self, stage: Stage, topic: str) -> None:
        self.sent: set[str] = set()
        self._stage, self._topic = stage, topic
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sender", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Send no more."""
        self._stopped.set()
        self._thread.join(CALM_S)
        assert not self._thread.is_alive(), "a send did not end"

    def _run(self) -> None:
        number = 0
        with Producer(self._stage.urls, api_key=self._stage.server.api_key) as producer:
            while not self._stopped.wait(EVERY_S):
                number += 1
                body = f"m-{number}."
                with suppress(CatmqError):  # what is not acknowledged may be lost
                    producer.send(self._topic, body.encode(), key=body)
                    self.sent.add(body)


class ReaderRows:
    """The owners that reader rows of some queues named."""

    def __init__(self, pair: Pair, queues: list[int]) -> None:
        self.seen: Owners = {}
        self._pair, self._queues = pair, ",".join(map(str, queues))
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look, name="rows", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stopped.set()
        self._thread.join(30)

    def _look(self) -> None:
        with closing(self._pair.nodes.connect()) as connection:
            while not self._stopped.wait(LOOK_S):
                for schema in self._pair.schemas:
                    cursor = connection.cursor()
                    where = f"queue_id IN ({self._queues}) AND owner IS NOT NULL"
                    cursor.execute(
                        f"SELECT queue_id, epoch, owner FROM {schema}.reader WHERE {where}"
                    )
                    for queue, epoch, owner in cursor.fetchall():
                        if owner:
                            self.seen.setdefault((queue, epoch), set()).add(owner)


@dataclass
class Mixed:
    """One play: so many rounds, each of which kills a member of each kind and ends a
    broker.
    """

    stage: Stage
    pair: Pair
    rounds: int
    started: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))

    def run(self) -> None:
        """Plays and judges."""
        topic, group = self.stage.fresh("mixed"), self.stage.fresh("both")
        admin = self.stage.terminal.admin
        admin.create_topic(topic, queues=QUEUES, node=NODES[0])
        admin.expand_topic(topic, queues=QUEUES, node=NODES[1])
        admin.create_group(group, session_timeout_ms=SESSION_MS)
        admin.subscribe(group, topic)
        self.stage.directory.mkdir(parents=True, exist_ok=True)
        self.members = MixedGroup(
            group, topic, self.stage.directory, self.stage.server.api_key
        )
        queues = [one["queue"] for one in admin.topic(topic)["queues"]]
        rows = ReaderRows(self.pair, queues)
        self.sender = Sender(self.stage, topic)
        try:
            self.play()
        finally:
            self.sender.stop()
            self.members.close()
            rows.stop()
        self.judge(rows.seen)

    def play(self) -> None:
        """Ends everything once a round, in random order, and lets it go on in between."""
        for kind in KINDS * OF_A_KIND:
            self.start(kind)
        self.go_on()
        for _ in range(self.rounds):
            acts: list[tuple[str, Callable[[], None]]] = [
                *((MEMBER, lambda kind=kind: self.kill(kind)) for kind in KINDS),
                *((name, lambda name=name: self.restart(name)) for name in self.ends()),
            ]
            self.stage.rng.shuffle(acts)
            for name, act in acts:
                begun = time.monotonic()
                self.stage.note(name)
                act()
                self.go_on()
                self.stage.say(f"  went on after {time.monotonic() - begun:.1f} s")
        self.sender.stop()
        until(
            lambda: self.sender.sent <= self.members.bodies(), limit_s=CALM_S, every_s=0.2
        )

    def ends(self) -> tuple[str, ...]:
        """How a broker ends in a round: in one of both ways where there is one round, else
        in both.
        """
        return (TERM, KILL) if self.rounds > 1 else (self.stage.rng.choice((TERM, KILL)),)

    def start(self, kind: str) -> None:
        """Starts a member; a Java client knows one broker, and those of the group take
        turns.
        """
        self.started[kind] += 1
        number = self.started[kind]
        url = self.pair.servers[number % 2].url if kind == "java" else self.pair.urls
        self.members.start(f"{kind}-{number}", url=url)

    def kill(self, kind: str) -> None:
        """Kills a member of a kind, and starts another one when its queues have moved."""
        alive = self.members.alive()
        victim = self.stage.rng.choice([one for one in alive if one.startswith(kind)])
        self.stage.say(f"  {victim}")
        self.members.kill(victim)
        self.stage.await_owners(self.members.group, len(alive) - 1)
        self.start(kind)

    def restart(self, name: str) -> None:
        """Ends a broker; its supervisor starts the next one."""
        server = self.stage.rng.choice(self.pair.servers)
        server.restart_broker(signal.SIGTERM if name == TERM else signal.SIGKILL)

    def go_on(self) -> None:
        """Returns when all members own queues, and what was sent meanwhile is handled."""
        self.stage.await_owners(self.members.group, OF_A_KIND * len(KINDS))
        goal = len(self.sender.sent) + MORE
        until(lambda: len(self.sender.sent) >= goal, limit_s=CALM_S, every_s=0.1)
        wanted = set(self.sender.sent)
        until(lambda: wanted <= self.members.bodies(), limit_s=CALM_S, every_s=0.2)

    def judge(self, seen: Owners) -> None:
        """Raises AssertionError when something does not hold."""
        handled = self.members.all_handled()
        lost = self.sender.sent - {body for *_, body in handled}
        assert not lost, f"{len(lost)} messages are lost: {sorted(lost)[:5]}"
        assert_one_owner_of_an_epoch(seen)
        assert_one_member_of_an_epoch(handled)
        assert len(seen) > 2 * QUEUES, "the rows were not looked at while queues moved"
        assert {name.partition("-")[0] for name, *_ in handled} == set(KINDS)
        repeated = len(handled) - len({body for *_, body in handled})
        self.stage.say(
            f"OK: {len(self.sender.sent)} acknowledged messages are handled by "
            f"{len(self.members.members())} "
            f"members, {repeated} handled again; {len(seen)} epochs of {2 * QUEUES} queues "
            "had one owner each"
        )


def run(stage: Stage, pair: Pair, *, rounds: int) -> None:
    """Plays it once. Raises AssertionError when something does not hold."""
    Mixed(stage, pair, rounds).run()
