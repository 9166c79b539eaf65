"""The metadata's database is frozen, then killed, while the nodes live.

Sends, pulls and commits go on as if nothing had happened, nobody is expired, and who joined
meanwhile is taken in when it is back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from tests.acceptance.scenarios.crowd import Crowd, Member
from tests.acceptance.scenarios.stage import Stage
from tests.support import judge
from tests.support.pair import Pair
from tests.support.probes import Probe, probing
from tests.support.waiting import until

QUEUES = 6
EVERY_MS = 50
CALM_S = 4.0
# the longest answer of /livez and /readyz, and the longest that a queue stands still
HEALTH_S = 1.0
REFUSED_S = 5.0  # the longest answer of what needs metadata: a refusal
STALE_S = 8.0  # by when /readyz says degraded
BACK_S = 10.0  # from the database's return until who joined meanwhile owns queues
BEHIND_S = 3.0  # commits go out every second
VISITORS = 8  # threads of each kind that ask for what needs metadata


@dataclass
class Away:
    """One play, with each way to lose the database."""

    stage: Stage
    pair: Pair
    away_s: float
    session_ms: int
    newcomers: list[Member] = field(default_factory=list)

    def run(self) -> None:
        """Plays and judges."""
        self.crowd = crowd = Crowd(self.stage, QUEUES, self.session_ms, name="away")
        self.members = [crowd.join() for _ in range(3)]
        crowd.await_shared(self.members)
        self.sender = crowd.send(EVERY_MS)
        until(lambda: crowd.handled() > 2 * QUEUES, limit_s=30)
        calm = time.monotonic()
        until(lambda: time.monotonic() >= calm + CALM_S, limit_s=CALM_S + 60)
        windows = [(calm, time.monotonic())]
        for way, vanish in {
            "frozen": self.pair.metadata_frozen,
            "killed": self.pair.metadata_killed,
        }.items():
            self.stage.say(f"the metadata's database is {way} for {self.away_s:.0f} s")
            windows.append(self.play(vanish))
        self.judge(crowd.finish(stall_s=30), windows)

    def play(
        self, vanish: Callable[[], AbstractContextManager[None]]
    ) -> tuple[float, float]:
        """One loss; from when to when it lasted. The newcomer leaves again."""
        health = [
            Probe(one, "GET", path)
            for one in self.pair.servers
            for path in ("/livez", "/readyz")
        ]
        away = time.monotonic()
        with probing(*health):
            with vanish():
                newcomer = self.crowd.join()
                visits = self.visits()
                with probing(*visits):
                    until(
                        lambda: time.monotonic() >= away + self.away_s,
                        limit_s=self.away_s + 60,
                    )
                self.commits_went_on()
                back = time.monotonic()
            self.newcomers.append(newcomer)
            took_s = self.crowd.await_shared([*self.members, newcomer]) - back
            until(lambda: self.says(health, "ok"), limit_s=30)
        self.judge_health(health, away, back)
        self.judge_visits(visits)
        self.stage.say(
            f"who joined meanwhile owned queues {took_s:.2f} s after the database was back"
        )
        assert took_s <= BACK_S, f"the limit is {BACK_S} s"
        self.crowd.leave(newcomer)
        self.crowd.await_shared(self.members)
        return away, back

    def visits(self) -> list[Probe]:
        """Requests that need metadata, from many clients at once."""
        group = f"/api/v1/groups/{self.crowd.group}"
        visitor = {"incarnation": "0190b6f0-0000-7000-8000-000000000001", "sdk": "test"}
        some = [*self.pair.servers] * (VISITORS // 2)
        joining = [
            Probe(
                one,
                "POST",
                f"{group}-visitors/consumers",
                {"name": f"v{n}", **visitor},
                0.3,
            )
            for n, one in enumerate(some)
        ]
        return [*joining, *(Probe(one, "GET", group, None, 0.3) for one in some)]

    def commits_went_on(self) -> None:
        """The nodes' own rows are not far behind what was sent."""
        confirmed = len(self.sender.told("sent"))
        behind = confirmed - self.pair.committed(self.crowd.ids)
        a_second = QUEUES * 1000 / EVERY_MS
        assert behind <= BEHIND_S * a_second, (
            f"{behind} of {confirmed} messages are not committed"
        )
        self.stage.say(
            f"at its end {behind} of {confirmed} messages were not yet committed"
        )

    def says(self, health: list[Probe], status: str) -> bool:
        """Whether every broker says so of itself."""
        ready = [
            probe.answers[-1]
            for probe in health
            if probe.path == "/readyz" and probe.answers
        ]
        return bool(ready) and all(
            isinstance(one.body, dict) and one.body["status"] == status for one in ready
        )

    def judge_health(self, health: list[Probe], away: float, back: float) -> None:
        """Always 200 and quick; degraded while it is away."""
        for probe in health:
            seconds = [one.seconds for one in probe.answers]
            self.stage.say(f"{probe.path} of {probe.server.url}: {judge.spread(seconds)}")
            bad = [
                one for one in probe.answers if one.status != 200 or one.seconds > HEALTH_S
            ]
            assert not bad, f"{probe.path}: {len(bad)} answers were bad or slow: {bad[:3]}"
            if probe.path == "/readyz" and back - away > STALE_S:
                late = [one for one in probe.answers if away + STALE_S <= one.at < back]
                assert all(one.body["status"] == "degraded" for one in late), late[:3]
                assert late, "nothing was asked"

    def judge_visits(self, visits: list[Probe]) -> None:
        """What needs metadata is refused in time, and so that clients know to come back."""
        answers = [one for probe in visits for one in probe.answers]
        self.stage.say(
            f"refused, of those who need metadata: {judge.spread([one.seconds for one in answers])}"
        )
        bad = [
            one
            for one in answers
            if one.seconds > REFUSED_S or one.status not in (200, 201, 503)
        ]
        assert not bad, f"{len(bad)} of {len(answers)} answers were bad or slow: {bad[:3]}"

    def judge(self, told: judge.Story, windows: list[tuple[float, float]]) -> None:
        """What the journals show."""
        calm, *aways = windows
        undisturbed = judge.standstills(told, *calm)
        figures = {"calm": windows[0], "frozen": aways[0], "killed": aways[1]}
        for what, (since, until_) in figures.items():
            self.stage.say(
                f"{what}: sends {judge.spread(judge.receipts(told, since, until_))}"
            )
            stood = [one.seconds for one in judge.standstills(told, since, until_)]
            self.stage.say(f"{what}: pulls {judge.spread(stood)}")
        judge.no_errors(told)
        judge.one_owner(told)
        handled = judge.all_handled(told)
        assert judge.repeats(told).count == 0
        judge.kept_ids(told, [member.name for member in (*self.members, *self.newcomers)])
        for since, until_ in aways:
            judge.nobody_moved(told, since, until_)
            judge.sender_was_free(told, since, until_, limit_s=HEALTH_S)
            judge.no_standstill(
                undisturbed, judge.standstills(told, since, until_), HEALTH_S
            )
        self.stage.say(f"OK: {handled} messages handled, none repeated, nobody expired")


def run(stage: Stage, pair: Pair, *, away_s: float, session_ms: int = 9_000) -> None:
    """Plays it once. Raises AssertionError when something does not hold. For short
    sessions, and hand-overs under way, there is frozen_metadata."""
    Away(stage, pair, away_s, session_ms).run()
