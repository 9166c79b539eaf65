"""Databases that others disturb: sessions are killed, tables are locked and altered,
metadata freezes.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import MySQLdb

from tests.acceptance.scenarios.schedule import Strike, planned
from tests.acceptance.scenarios.stage import Stage
from tests.acceptance.scenarios.trial import (
    Act,
    Database,
    Trial,
    asking,
    prepared,
    wait_until,
)
from tests.support import commits
from tests.support.mariadb import MariaDB
from tests.support.pair import Pair
from tests.support.waiting import until

KILLS_EVERY_S = 0.15
QUERY, CONNECTION = "KILL QUERY", "KILL CONNECTION"


def run_kill_rain(
    stage: Stage, pair: Pair, *, seconds: float, every_s: float = KILLS_EVERY_S
) -> None:
    """Several times a second a session of a broker's is killed, on a node or in the
    metadata's database.
    """
    with prepared(stage, pair, "kill-rain") as trial:
        trial.begin()
        rains = [
            Rain(trial.database, trial.schemas, stage.rng),
            Rain(pair.metadata, ("catmq",), stage.rng),
        ]
        end = time.monotonic() + seconds
        stage.note(f"line 1: a session is killed every {every_s} s for {seconds:.0f} s")

        def drops() -> bool:
            stage.rng.choice(rains).drop()
            return time.monotonic() >= end

        until(drops, limit_s=seconds + 60, every_s=every_s)
        for rain in rains:
            assert rain.killed, "nobody was killed, which proves nothing"
        stage.say(
            "; ".join(f"{rain.killed} on {', '.join(rain.schemas)}" for rain in rains)
        )
        trial.finish()


@dataclass
class Rain:
    """Kills sessions that work on some schemas of a server; how many of each kind."""

    server: Database
    schemas: Sequence[str]
    rng: random.Random

    def __post_init__(self) -> None:
        self.killed: dict[str, int] = {}

    def drop(self) -> None:
        """One kill; of a busy session, if there is one."""
        listed = ", ".join(f"'{one}'" for one in self.schemas)
        rows = self.server.execute(
            f"SELECT id, command FROM {commits.PROCESSLIST} WHERE db IN ({listed})"
        )
        busy = [one for one, command in rows if command != "Sleep"]
        sessions = busy or [one for one, _ in rows]
        if not sessions:
            return
        what = self.rng.choice((QUERY, CONNECTION))
        with suppress(MySQLdb.OperationalError):  # it ended by itself
            self.server.execute(f"{what} {self.rng.choice(sessions)}")
            self.killed[what] = self.killed.get(what, 0) + 1


LOCK_MESSAGES, LOCK_HEADS, LOCK_READERS = (
    "lock messages",
    "lock heads",
    "lock readers and batches",
)
LOCK_ALL, ALTER, HOLD_ROWS, LONG_READ = (
    "lock everything",
    "alter a table",
    "hold rows",
    "read for long",
)
LOCK_METADATA, LOCK_HEARTBEATS = "lock all metadata", "lock heartbeats"
DBA = (
    *(LOCK_MESSAGES, LOCK_HEADS, LOCK_READERS, LOCK_ALL, ALTER),
    *(HOLD_ROWS, LONG_READ, LOCK_METADATA, LOCK_HEARTBEATS),
)


def run_dba(stage: Stage, pair: Pair, *, seconds: float) -> None:
    """A DBA locks tables, alters them, and leaves transactions open for seconds."""
    with prepared(stage, pair, "dba") as trial:
        trial.begin()
        strikes = planned(stage.rng, DBA, seconds=seconds, lengths_s=(0.5, 2.0, 4.0))
        trial.play(strikes, Dba(trial, pair.metadata).acts())
        trial.finish()


@dataclass
class Dba:
    """The work of a DBA with an account of their own."""

    trial: Trial
    metadata: MariaDB

    def acts(self) -> Mapping[str, Act]:
        """Return what each line of a schedule does."""
        return {
            LOCK_MESSAGES: self._act("LOCK TABLES {messages} WRITE"),
            LOCK_HEADS: self._act("LOCK TABLES queue_head WRITE"),
            LOCK_READERS: self._act("LOCK TABLES reader WRITE, sent_batch WRITE"),
            LOCK_ALL: self._act("FLUSH TABLES WITH READ LOCK"),
            ALTER: self._act("ALTER TABLE {messages} FORCE"),
            HOLD_ROWS: self._act(
                "BEGIN", "SELECT * FROM queue_head WHERE queue_id = {queue} FOR UPDATE"
            ),
            LONG_READ: self._act(
                "START TRANSACTION WITH CONSISTENT SNAPSHOT",
                "SELECT COUNT(*) FROM {messages}",
            ),
            LOCK_METADATA: self._act("FLUSH TABLES WITH READ LOCK", metadata=True),
            LOCK_HEARTBEATS: self._act(
                "LOCK TABLES metadata_heartbeat WRITE", metadata=True
            ),
        }

    def _act(self, *statements: str, metadata: bool = False) -> Act:
        @contextmanager
        def act(strike: Strike) -> Iterator[None]:
            names = self._names(strike)
            with closing(self._connect(names["schema"], metadata=metadata)) as connection:
                ask = asking(connection)
                for statement in statements:
                    ask(statement.format(**names))
                yield
                ask("UNLOCK TABLES")
                ask("ROLLBACK")

        return act

    def _names(self, strike: Strike) -> dict[str, Any]:
        schema = self.trial.schemas[strike.target]
        rows = self.trial.database.execute(
            f"SELECT queue_id FROM {schema}.queue_head ORDER BY queue_id"
        )
        queues = [one for (one,) in rows if one in self.trial.crowd.ids]
        queue = queues[strike.figure % len(queues)]
        return {"schema": schema, "queue": queue, "messages": f"message_{queue}"}

    def _connect(self, schema: str, *, metadata: bool) -> Any:
        if metadata:
            return self.metadata.connect(database="catmq")
        return self.trial.database.connect(database=schema)


def run_frozen_metadata(
    stage: Stage, pair: Pair, *, frozen_s: float, calm_s: float = 5.0, times: int = 1
) -> None:
    """The metadata's database is frozen for longer than a short session: nobody gets a
    second owner.
    """
    for session_ms in (3_000, 6_000):
        with prepared(stage, pair, "frozen-metadata", session_ms=session_ms) as trial:
            trial.begin()
            for number in range(1, times + 1):
                stage.note(
                    f"line {number}: metadata is frozen for {frozen_s} s, sessions of "
                    f"{session_ms} ms"
                )
                with pair.metadata_frozen():
                    newcomer = trial.crowd.join()
                    wait_until(time.monotonic() + frozen_s)
                wait_until(time.monotonic() + calm_s)
                until(lambda one=newcomer: one.is_up, limit_s=60)
                trial.crowd.leave(newcomer)
            trial.finish()
