"""The wall clock of a consumer, then of a broker, jumps by an hour and back while they run.

Nobody is expired early or late, no queue moves or gets two owners, and messages go on.
"""

from __future__ import annotations

import email.utils
import http.client
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.acceptance.scenarios.crowd import Crowd
from tests.acceptance.scenarios.stage import Stage
from tests.support import judge
from tests.support.pair import Pair
from tests.support.skew import WallClock, wall_clock
from tests.support.waiting import until

QUEUES = 6
EVERY_MS = 50
HANDLER_MS = 55
HOUR_S = 3600
CALM_S = 3.0
JUMPS = (HOUR_S, -HOUR_S, 0)
STILL_S = 2.0  # nothing waits for so long
LATE_S = 5.0  # for a rebalance, beside the session timeout when somebody died


@dataclass
class Clocks:
    """One play; each jump is watched for `watch_s` seconds."""

    stage: Stage
    pair: Pair
    watch_s: float
    session_ms: int

    def run(self) -> None:
        """Plays and judges."""
        self.own_clock = wall_clock(self.stage.directory, "consumer")
        self.crowd = crowd = Crowd(self.stage, QUEUES, self.session_ms, name="clocks")
        # Slow, so that it has messages in hand whenever it is frozen.
        self.skewed = crowd.join(
            "--handler-ms", str(HANDLER_MS), environ=self.own_clock.environ
        )
        self.members = [self.skewed, crowd.join(), crowd.join()]
        crowd.await_shared(self.members)
        crowd.send(EVERY_MS)
        until(lambda: crowd.handled() > 2 * QUEUES, limit_s=30)
        self.jump("a consumer's", self.own_clock, self.consumers_clock)
        self.freeze()
        # The other broker must not be the one that expires and rebalances.
        with self.pair.first.untended():
            self.pair.first.kill_broker()
            self.settle()
            self.jump("the broker's", self.pair.clock, self.brokers_clock)
            self.come_and_go()
        told = crowd.finish(stall_s=30)
        judge.no_errors(told)
        judge.one_owner(told)
        handled = judge.all_handled(told)
        repeated = judge.repeats(told)
        judge.kept_ids(told, [name for name in crowd.members if name != self.skewed.name])
        self.stage.say(
            f"OK: {handled} messages handled, {repeated.count} repeated by the death of one"
        )

    def settle(self) -> None:
        """Returns when all messages sent so far are handled: clients have found the other
        broker.
        """
        count = len(self.crowd.senders[0].told("sent"))
        until(lambda: self.crowd.handled() >= count + 20 * QUEUES, limit_s=60)

    def jump(self, whose: str, clock: WallClock, shows: Callable[[], float]) -> None:
        """A calm, then the jumps; nothing may move, stand still or fail."""
        calm = time.monotonic()
        self.wait(CALM_S)
        begun = time.monotonic()
        for seconds in JUMPS:
            clock.set(seconds)
            until(lambda by=seconds: abs(shows() - by) < HOUR_S / 2, limit_s=30)
            self.wait(self.watch_s)
        end = time.monotonic()
        told = self.crowd.story()
        judge.nobody_moved(told, calm, end)
        stood = judge.standstills(told, begun, end)
        judge.no_standstill(judge.standstills(told, calm, begun), stood, STILL_S)
        self.stage.say(
            f"{whose} clock moved by ± 1 h: {judge.spread([one.seconds for one in stood])}"
        )

    def freeze(self) -> None:
        """A consumer that sleeps beyond its lease while its clock is put back must not take
        it for valid.
        """
        self.crowd.deaths[self.skewed.name] = self.skewed.freeze()
        self.own_clock.set(-HOUR_S)
        self.crowd.await_shared([one for one in self.members if one is not self.skewed])
        self.skewed.signal(signal.SIGCONT)
        self.crowd.await_shared(self.members)
        told = self.crowd.story()
        judge.one_owner(told)
        self.stage.say("frozen beyond its lease, with its clock put back, it was fenced")
        self.own_clock.set(0)

    def come_and_go(self) -> None:
        """With the broker's clock an hour ahead somebody dies, with it an hour behind
        somebody joins.
        """
        session_s = self.session_ms / 1000
        self.pair.clock.set(HOUR_S)
        victim = self.members.pop()
        killed = self.crowd.kill(victim)
        took_s = self.crowd.await_shared(self.members) - killed
        # Its last heartbeat was at most a heartbeat's interval before its death.
        least_s = session_s - min(3.0, session_s / 3)
        self.stage.say(
            f"an hour ahead the dead one's queues were taken over after {took_s:.2f} s"
        )
        most_s = session_s + LATE_S
        assert least_s <= took_s <= most_s, (
            f"after {took_s:.2f} s, not {least_s:.2f} to {most_s:.2f} s"
        )
        self.pair.clock.set(-HOUR_S)
        joined = self.crowd.join()
        self.members.append(joined)
        up = until(lambda: joined.told("up"), limit_s=60)[0]["at"]
        took_s = self.crowd.await_shared(self.members) - float(str(up))
        self.stage.say(f"an hour behind who joined owned queues after {took_s:.2f} s")
        assert took_s <= LATE_S, f"after {took_s:.2f} s, the limit is {LATE_S} s"
        self.pair.clock.set(0)

    def consumers_clock(self) -> float:
        """How far the wall clock of the member is from ours, by its last line."""
        lines = [line for line in self.skewed.journal.follow() if "wall" in line]
        return float(lines[-1]["wall"]) - (
            time.time() - (time.monotonic() - lines[-1]["at"])
        )

    def brokers_clock(self) -> float:
        """How far the wall clock of the second broker is from ours, by an answer's Date."""
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.pair.second.port, timeout=30
        )
        try:
            connection.request("GET", "/livez")
            date = connection.getresponse().getheader("Date") or ""
        finally:
            connection.close()
        return email.utils.parsedate_to_datetime(date).timestamp() - time.time()

    def wait(self, seconds: float) -> None:
        """Lets time pass."""
        end = time.monotonic() + seconds
        until(lambda: time.monotonic() >= end, limit_s=seconds + 60)


def run(stage: Stage, pair: Pair, *, watch_s: float, session_ms: int = 2_000) -> None:
    """Plays it once. Raises AssertionError when something does not hold."""
    clocks = Clocks(stage, pair, watch_s, session_ms)
    try:
        clocks.run()
    finally:
        pair.clock.set(0)
