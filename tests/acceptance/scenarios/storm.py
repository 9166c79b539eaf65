"""Every second a member joins, leaves or is killed, while messages come in steadily.

No queue has two owners, nothing is lost, nothing is repeated but what the dead had not
committed, and nothing stands still for long.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from tests.acceptance.scenarios.crowd import Crowd, Member
from tests.acceptance.scenarios.stage import Stage
from tests.support import judge
from tests.support.waiting import until

QUEUES = 12
EVERY_MS = 100  # between two messages of a queue: a gap shows by as many that wait
FEWEST, MOST, AT_FIRST = 2, 7, 4  # members
JOIN, LEAVE, KILL = "join", "leave", "kill -9"
KILLED = 1 / 3  # share of those who go
# what was handled earlier than this before its owner's death is committed
COMMITTED_S = 3.0


@dataclass
class Storm:
    """One play: a calm, whose standstills are the measure, then the storm."""

    stage: Stage
    calm_s: float
    storm_s: float
    session_ms: int
    counts: dict[str, int] = field(default_factory=lambda: {JOIN: 0, LEAVE: 0, KILL: 0})

    def run(self) -> None:
        """Plays and judges."""
        self.crowd = Crowd(self.stage, QUEUES, self.session_ms, name="storm")
        self.here: list[Member] = [self.crowd.join() for _ in range(AT_FIRST)]
        self.crowd.await_shared(self.here)
        self.crowd.send(EVERY_MS)
        until(lambda: self.crowd.handled() > 2 * QUEUES, limit_s=30)
        calm = time.monotonic()
        self.stage.say(
            f"{AT_FIRST} members, {self.calm_s:.0f} s of calm, session timeout {self.session_ms} ms"
        )
        self.wait_until(calm + self.calm_s)
        storm = time.monotonic()
        self.blow(storm)
        end = time.monotonic()
        self.stage.say(
            f"the storm is over: {self.counts}; {len(self.here)} members are left"
        )
        told = self.crowd.finish(stall_s=self.session_ms / 1000 + 20)
        self.judge(told, calm, storm, end)

    def blow(self, begun: float) -> None:
        """One join or leave a second."""
        for second in range(int(self.storm_s)):
            self.wait_until(begun + second)
            self.act()
        self.wait_until(begun + self.storm_s)

    def act(self) -> None:
        """Somebody joins or goes."""
        rng = self.stage.rng
        if len(self.here) <= FEWEST or (len(self.here) < MOST and rng.random() < 0.5):
            self.counts[JOIN] += 1
            self.here.append(self.crowd.join())
            return
        member = rng.choice(self.here)
        self.here.remove(member)
        # One that has only just been started cannot be told yet.
        if rng.random() < KILLED or not member.is_up:
            self.counts[KILL] += 1
            self.crowd.kill(member)
        else:
            self.counts[LEAVE] += 1
            self.crowd.leave(member)

    def wait_until(self, at: float) -> None:
        """Returns at that time."""
        until(
            lambda: time.monotonic() >= at,
            limit_s=at - time.monotonic() + 60,
            every_s=0.005,
        )

    def judge(self, told: judge.Story, calm: float, storm: float, end: float) -> None:
        """Says all figures, then checks."""
        session_s, say = self.session_ms / 1000, self.stage.say
        undisturbed = judge.standstills(told, calm, storm)
        stormy = judge.standstills(told, storm, end)
        moved = judge.moves(told, patience_s=session_s + 3)
        say(f"receipts, calm  {judge.spread(judge.receipts(told, calm, storm))}")
        say(f"receipts, storm {judge.spread(judge.receipts(told, storm, end))}")
        say(f"staying, calm   {judge.spread([one.seconds for one in undisturbed])}")
        say(f"staying, storm  {judge.spread([one.seconds for one in stormy])}")
        say(
            f"handed over     {judge.spread([one.pause_s for one in moved if not one.deaths])}"
        )
        say(
            f"of one dead     {judge.spread([one.pause_s for one in moved if one.deaths == 1])}"
        )
        say(
            f"of several      {judge.spread([one.pause_s for one in moved if one.deaths > 1])}"
        )
        judge.no_errors(told)
        judge.one_owner(told)
        handled = judge.all_handled(told)
        again = judge.repeats(told)
        assert again.oldest_s <= COMMITTED_S, (
            f"repeated what was handled {again.oldest_s:.1f} s before"
        )
        hand_over_s = judge.hand_over_limit(told, calm, storm)
        judge.pauses(told, session_s=session_s, hand_over_s=hand_over_s)
        limit_s = judge.no_standstill(undisturbed, stormy)
        say(
            f"OK: {handled} messages handled, {again.count} repeated, begun at most "
            f"{again.oldest_s:.1f} s "
            f"before their owner's death; limits: hand-over {hand_over_s:.1f} s, "
            f"standstill {limit_s:.2f} s"
        )


def run(stage: Stage, *, calm_s: float, storm_s: float, session_ms: int = 15_000) -> None:
    """Plays it once. Raises AssertionError when something does not hold."""
    Storm(stage, calm_s, storm_s, session_ms).run()
