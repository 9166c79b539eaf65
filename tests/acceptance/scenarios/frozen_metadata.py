"""The metadata's database is frozen while members with short sessions work, and while a
queue is handed over.

Members that neither come nor go hardly notice. A hand-over that had begun ends, or its
queue stays with its owner, within a session, whichever step it was at.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.acceptance.scenarios.crowd import Crowd
from tests.acceptance.scenarios.stage import Stage
from tests.support import judge
from tests.support.pair import Pair
from tests.support.waiting import until

EVERY_MS = 100
STEADY_S = 2.0  # the longest that a queue of a steady member stands still
LONE_QUEUES, SHARED_QUEUES = 2, 4

# Steps of a hand-over, each as a condition on the group's rows in metadata.
ORDERED = "target_id <> owner_id"  # its owner is to give a queue up
RELEASED = "owner_id = {newcomer}"  # its owner has, and the next one may not know
STEPS = (ORDERED, RELEASED)


@dataclass
class FrozenMetadata:
    """One play: a lone member and a group that shares its queues with a newcomer, frozen at
    one step.
    """

    stage: Stage
    pair: Pair
    session_ms: int
    away_s: float
    step: str

    def run(self) -> None:
        """Plays and judges."""
        name = f"frozen{self.session_ms}"
        self.lone = Crowd(self.stage, LONE_QUEUES, self.session_ms, name=f"{name}-lone")
        self.shared = Crowd(
            self.stage, SHARED_QUEUES, self.session_ms, name=f"{name}-shared"
        )
        self.steady = self.lone.join()
        self.first = self.shared.join()
        self.lone.await_shared([self.steady])
        self.shared.await_shared([self.first])
        for crowd in (self.lone, self.shared):
            crowd.send(EVERY_MS)
            until(lambda one=crowd: one.handled() > 4 * one.queues, limit_s=30)
        away, back = self.freeze()
        self.judge(away, back)

    def freeze(self) -> tuple[float, float]:
        """From when to when the database was frozen."""
        newcomer = self.shared.join()
        self.await_step()
        with self.pair.metadata_frozen():
            away = time.monotonic()
            self.stage.say(
                f"session {self.session_ms} ms: frozen for {self.away_s:.0f} s at: "
                f"{self.step.split()[0]}"
            )
            until(lambda: time.monotonic() >= away + self.away_s, limit_s=self.away_s + 60)
            back = time.monotonic()
        took_s = self.shared.await_shared([self.first, newcomer]) - back
        self.stage.say(
            f"shared evenly {max(0.0, took_s):.2f} s after the database was back"
        )
        return away, back

    def await_step(self) -> None:
        """Returns as soon as the rows of the group say that the hand-over is at the step."""
        with self.looking() as look:
            group = look(
                "SELECT id FROM metadata_consumergroup WHERE name = %s", self.shared.group
            )
            members = (
                "SELECT id FROM metadata_consumergroupconsumer WHERE group_id = %s "
                "ORDER BY id DESC"
            )
            rows = f"SELECT 1 FROM metadata_queueoffset WHERE group_id = %s AND {self.step}"

            def reached() -> bool:
                newcomer = look(members, group)
                return bool(look(rows.format(newcomer=newcomer), group))

            until(reached, limit_s=60, every_s=0.001)

    @contextmanager
    def looking(self) -> Iterator[Any]:
        """A function that gives the first value of a query on metadata."""
        connection = self.pair.metadata.connect(
            db=self.pair.metadata.url.rpartition("/")[2]
        )
        try:

            def look(statement: str, *arguments: object) -> Any:
                cursor = connection.cursor()
                cursor.execute(statement, arguments or None)
                row = cursor.fetchone()
                return row and row[0]

            yield look
        finally:
            connection.close()

    def judge(self, away: float, back: float) -> None:
        """Return what the journals show."""
        session_s = self.session_ms / 1000
        told = {crowd.name: crowd.finish(stall_s=30) for crowd in (self.lone, self.shared)}
        limits = {self.lone.name: STEADY_S, self.shared.name: session_s}
        wrong = []
        for name, story in told.items():
            judge.no_errors(story)
            judge.one_owner(story)
            judge.all_handled(story)
            longest = judge.longest_waits(story, away, back)
            said = ", ".join(
                f"queue {queue}: {seconds:.2f} s" for queue, seconds in longest.items()
            )
            self.stage.say(f"{name}: nothing was handled for at most {said}")
            wrong += [f"{name}: {said}"] if max(longest.values()) > limits[name] else []
        judge.kept_ids(told[self.lone.name], [self.steady.name])
        assert not wrong, f"queues stood still for longer than {limits}: {wrong}"


def run(stage: Stage, pair: Pair, *, session_ms: int, away_s: float) -> None:
    """Plays it once for each step of a hand-over. Raises AssertionError when something does
    not hold.
    """
    for step in STEPS:
        FrozenMetadata(stage, pair, session_ms, away_s, step).run()
