"""Two members are stopped by SIGSTOP for three session timeouts in the middle of their
work, then go on.

They are fenced, what they do late counts for nothing, and they come back by themselves.
"""

from __future__ import annotations

import math
import signal
import time
from dataclasses import dataclass

from tests.acceptance.scenarios.crowd import Crowd, Member
from tests.acceptance.scenarios.stage import Stage
from tests.support import judge
from tests.support.waiting import until

QUEUES = 6
EVERY_MS = 500
HANDLER_MS = 200  # of those who are frozen: most of the time they are at work
# within which queues are taken over after the session, and owned again by who is back
BACK_S = 5.0


@dataclass
class Frozen:
    """One play: one victim uses run(), the other iterates and commits by hand; a third
    member lives on.
    """

    stage: Stage
    session_ms: int
    sessions: float

    def run(self) -> None:
        """Plays and judges."""
        self.crowd = crowd = Crowd(self.stage, QUEUES, self.session_ms, name="frozen")
        running = crowd.join("--handler-ms", str(HANDLER_MS))
        each = crowd.join("--handler-ms", str(HANDLER_MS), "--each")
        survivor = crowd.join()
        self.victims = [running, each]
        crowd.await_shared([*self.victims, survivor])
        crowd.send(EVERY_MS)
        until(lambda: crowd.handled() > 4 * QUEUES, limit_s=30)
        self.freeze()
        before = crowd.owners()
        self.ids = {
            victim.name: str(victim.told("joined")[-1]["consumer"])
            for victim in self.victims
        }
        self.taken_over(survivor)
        self.wait_until(self.stopped_at + self.sessions * self.session_ms / 1000)
        self.late_commits(before)
        self.thaw()
        self.judge(before, crowd.finish(stall_s=30))

    def freeze(self) -> None:
        """Stops both, the one that iterates in the middle of a handler."""
        running, each = self.victims

        def caught() -> bool:
            if not self.at_work(each):
                return False
            each.freeze()
            if self.at_work(each):
                return True
            each.signal(signal.SIGCONT)
            return False

        until(caught, limit_s=30)
        self.stopped_at = running.freeze()
        self.crowd.deaths.update({victim.name: self.stopped_at for victim in self.victims})
        self.stage.say(f"two of three are frozen, session timeout {self.session_ms} ms")

    def at_work(self, member: Member) -> bool:
        """Whether a handler of the member has begun and not returned."""
        return len(member.told("begin")) > len(member.told("end"))

    def taken_over(self, survivor: Member) -> None:
        """The one that lives has all queues in time."""
        at = self.crowd.await_shared([survivor])
        took_s, limit_s = at - self.stopped_at, self.session_ms / 1000 + BACK_S
        assert took_s <= limit_s, (
            f"taken over after {took_s:.2f} s, the limit is {limit_s} s"
        )
        self.stage.say(f"taken over after {took_s:.2f} s")

    def late_commits(self, before: dict[int, str]) -> None:
        """A commit in the name of one that is frozen is refused, whoever sends it."""
        epochs = {
            (line["queue"], victim.name): line["epoch"]
            for victim in self.victims
            for line in victim.told("gained")
        }
        for (queue, name), epoch in epochs.items():
            if before[int(str(queue))] != name:
                continue
            body = {"offsets": [{"queue": queue, "epoch": epoch, "offset": 1}]}
            path = f"/api/v1/consumers/{self.ids[name]}/commit"
            status, answer = self.stage.server.call("POST", path, body)
            assert (status, answer["results"][0]["state"]) == (200, "fenced"), (
                status,
                answer,
            )

    def thaw(self) -> None:
        """They go on, and own queues again after a while."""
        self.thawed_at = time.monotonic()
        for victim in self.victims:
            victim.signal(signal.SIGCONT)
        for victim in self.victims:
            until(lambda one=victim: one.told("gained", self.thawed_at), limit_s=30)
        took_s = self.crowd.await_shared(list(self.crowd.members.values())) - self.thawed_at
        self.stage.say(f"both are back {took_s:.2f} s after they went on")
        assert took_s <= BACK_S, f"the limit is {BACK_S} s"

    def judge(self, before: dict[int, str], told: judge.Story) -> None:
        """What the journals show."""
        judge.no_errors(told)
        judge.one_owner(told)
        handled = judge.all_handled(told)
        repeated = judge.repeats(told)
        names = [victim.name for victim in self.victims]
        late = [
            one
            for one in told.handlings
            if one.begun < self.stopped_at and (one.ended or 0) > self.thawed_at
        ]
        assert self.victims[1].name in {one.member for one in late}, (
            "nothing was in flight: this shows nothing"
        )
        again = {
            one.place
            for one in told.handlings
            if one.begun > self.stopped_at and one.member not in names
        }
        assert {one.place for one in late} <= again, "what was in flight was not repeated"
        started = [
            one
            for one in told.handlings
            if one.member in names and one.begun > self.thawed_at
        ]
        old = {
            (one.queue, one.epoch) for one in told.handlings if one.begun < self.stopped_at
        }
        assert not [one for one in started if (one.queue, one.epoch) in old], (
            "one started after its lease"
        )
        refused = [
            line for line in self.victims[1].told("commit", self.thawed_at) if line["error"]
        ]
        assert refused, "the late commit was not refused"
        for name in names:
            assert len(told.joins[name]) == 2, f"{name} joined as {told.joins[name]}"
        self.stage.say(
            f"OK: {handled} messages handled, {repeated.count} repeated, {len(late)} ended "
            "late; refused: "
            f"{refused[0]['error']}"
        )

    def wait_until(self, at: float) -> None:
        """Returns at that time."""
        until(lambda: time.monotonic() >= at, limit_s=math.inf)


def run(stage: Stage, *, session_ms: int = 2_000, sessions: float = 3.2) -> None:
    """Plays it once. Raises AssertionError when something does not hold."""
    Frozen(stage, session_ms, sessions).run()
