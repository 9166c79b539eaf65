"""A broker of two, django-q's cluster, or both are killed in the middle of a rebalance:
queues move in time.

Members join, leave and die, and a command subscribes the group to one more topic.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from tests.acceptance.scenarios.crowd import Crowd, Member
from tests.acceptance.scenarios.stage import Stage
from tests.support import judge
from tests.support.pair import Pair
from tests.support.server import Server
from tests.support.waiting import until

QUEUES, MORE = 6, 4  # of the topic, and of each that is subscribed to later
EVERY_MS = 100
CALM_S = 2.0
MEMBERS = 3
BROKER, JOBS, BOTH = "a broker", "django-q", "a broker and django-q"
VICTIMS = (BROKER, JOBS, BOTH)
JOIN, LEAVE, EXPIRE, SUBSCRIBE = "join", "leave", "expire", "subscribe"
CAUSES = (JOIN, LEAVE, EXPIRE, SUBSCRIBE)
PATIENCE_S = 3.0  # how long a rebalance waits for whom it was given to
SWEEP_S = 1.2  # between two looks of the brokers for those that nobody made
REACH_S = 1.0  # to tell the members, and for them to hand over and acquire
SOON_S = 0.8  # the kill comes so soon after the first cause began


@dataclass
class Brokers:
    """One play; `took` is by (victim, cause) in seconds."""

    stage: Stage
    pair: Pair
    session_ms: int
    took: dict[tuple[str, str], float] = field(default_factory=dict)

    def run(self, victims: Sequence[str]) -> None:
        """Plays and judges."""
        self.crowd = crowd = Crowd(self.stage, QUEUES, self.session_ms, name="brokers")
        crowd.send(EVERY_MS)
        self.calm()
        for victim in victims:
            self.stage.say(f"kill -9 of {victim}")
            self.here += [crowd.join() for _ in range(MEMBERS - len(self.here))]
            crowd.await_shared(self.here)
            self.play(victim, self.order(victim))
        self.judge(crowd.finish(stall_s=30))

    def calm(self) -> None:
        """How long a hand-over may take on this machine, from what sends take."""
        self.here = [self.crowd.join() for _ in range(MEMBERS)]
        self.crowd.await_shared(self.here)
        until(lambda: self.crowd.handled() > 2 * QUEUES, limit_s=30)
        begun = time.monotonic()
        until(lambda: time.monotonic() >= begun + CALM_S, limit_s=60)
        self.reach_s = judge.hand_over_limit(
            self.crowd.story(), begun, time.monotonic(), least_s=REACH_S
        )

    def order(self, victim: str) -> list[str]:
        """All causes; the first is the one that the kill is to hit, for django-q the one
        that is its work.
        """
        causes = list(CAUSES)
        self.stage.rng.shuffle(causes)
        return (
            causes
            if victim == BROKER
            else sorted(causes, key=lambda cause: cause != SUBSCRIBE)
        )

    def play(self, victim: str, causes: Sequence[str]) -> None:
        """Kills the victim while the first cause happens; it is dead for all the others."""
        admin = self.stage.terminal.admin
        self.new_topic = self.stage.fresh("more")
        self.new_ids = [
            queue["queue"]
            for queue in admin.create_topic(self.new_topic, queues=MORE)["queues"]
        ]
        broker = self.stage.rng.choice(self.pair.servers)
        with self.victims(victim, broker) as kill:
            killing = threading.Timer(self.stage.rng.uniform(0, SOON_S), kill)
            killing.start()
            for cause in causes:
                begun, owners = self.cause(cause)
                killing.join()
                took_s = max(0.0, self.crowd.await_shared(owners) - begun)
                self.here = owners
                self.took[victim, cause] = took_s
                self.stage.say(
                    f"  {cause} took {took_s:.2f} s, the limit is {self.limit_s(cause):.1f} s"
                )

    @contextmanager
    def victims(self, victim: str, broker: Server) -> Iterator[Callable[[], None]]:
        """What kills the victim, which is started again after the block; django-q dies on
        both servers.
        """
        servers = [broker] if victim == BROKER else list(self.pair.servers)

        def kill() -> None:
            if victim != JOBS:
                broker.kill_broker()
            for server in servers if victim != BROKER else ():
                server.kill_job_runners()

        with ExitStack() as stack:
            for server in servers:
                stack.enter_context(server.untended())
            yield kill

    def cause(self, cause: str) -> tuple[float, list[Member]]:
        """Does it; when it was, and who shall own the queues afterwards."""
        if cause == JOIN:
            member = self.crowd.join()
            up = until(lambda: member.told("up"), limit_s=60)
            return float(str(up[0]["at"])), [*self.here, member]
        if cause == SUBSCRIBE:
            return self.subscribe(), self.here
        member = self.stage.rng.choice(self.here)
        owners = [one for one in self.here if one is not member]
        if cause == EXPIRE:
            return self.crowd.kill(member), owners
        self.crowd.leave(member)
        return time.monotonic(), owners

    def subscribe(self) -> float:
        """Lets the group read the new topic, by command, which the kill may hit, too; when
        it was done.
        """

        def subscribed() -> bool:
            command = self.stage.terminal.catmq(
                "subscribe", self.crowd.group, self.new_topic
            )
            return (
                command.popen.wait(timeout=60) == 0 or "already" in command.err.read_text()
            )

        until(subscribed, limit_s=60)
        self.crowd.ids += self.new_ids
        return time.monotonic()

    def limit_s(self, cause: str) -> float:
        """Within which the queues must have moved."""
        dead_s = self.session_ms / 1000 if cause == EXPIRE else 0.0
        return dead_s + PATIENCE_S + SWEEP_S + self.reach_s

    def judge(self, told: judge.Story) -> None:
        """What the journals show, and the times."""
        judge.no_errors(told)
        judge.one_owner(told)
        handled = judge.all_handled(told)
        repeated = judge.repeats(told)
        late = {
            key: took_s
            for key, took_s in self.took.items()
            if took_s > self.limit_s(key[1])
        }
        assert not late, f"rebalances that took too long: {late}"
        worst = {
            cause: max(took for key, took in self.took.items() if key[1] == cause)
            for cause in CAUSES
        }
        shown = ", ".join(f"{cause} {took_s:.2f} s" for cause, took_s in worst.items())
        self.stage.say(
            f"OK: {handled} messages handled, {repeated.count} repeated; slowest: {shown}"
        )


def run(
    stage: Stage, pair: Pair, *, victims: Sequence[str] = VICTIMS, session_ms: int = 2_000
) -> None:
    """Plays it once. Raises AssertionError when something does not hold."""
    Brokers(stage, pair, session_ms).run(victims)
