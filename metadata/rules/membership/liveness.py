"""Expiry of silent members: when one is dead, and when nobody may be declared dead.

A member whose heartbeat was last recorded at L is expired once the database's clock shows L
+ session timeout + 1 s; it stopped by itself at the session timeout, so it is always first.
But silence proves nothing while heartbeats could not be recorded. So whoever expires
members looks at the database every second or so and compares what its clock did with its
own monotonic clock:

* both went on alike: the database was there and so were the members' chances;
* they differ by more than 2 s, it is another server, or nobody looked for more than 5 s: an
  outage.

After an outage (and at the start, when nothing is known) nobody expires for a full session
timeout. Nor does anybody after a promise: a broker that could not record a heartbeat told
its member to go on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

GRACE_S = 1.0  # between the moment a member stops by itself and the moment it is expired
MAX_CLOCK_STEP_S = 2.0
MAX_BLIND_S = 5.0


@dataclass(frozen=True, slots=True)
class ClockReading:
    """One look at the database: which server, its clock, the observer's monotonic clock in
    seconds, and the version of the metadata."""

    server: str
    now: datetime
    monotonic_s: float
    version: tuple[str, int] = ("", 0)


@dataclass(frozen=True, slots=True)
class Watch:
    """State of an observer: its last look, and since when (monotonic seconds) nothing went
    wrong.
    """

    look: ClockReading
    steady_since_s: float


def observe(watch: Watch | None, look: ClockReading) -> Watch:
    """The watch after one more look; `None` is an observer that just started or lost the
    database.
    """
    if watch is None or _was_away(watch.look, look):
        return Watch(look, look.monotonic_s)
    return Watch(look, watch.steady_since_s)


def after_promise(watch: Watch, *, promised_at_s: float) -> Watch:
    """The watch of who keeps a promise given at that time: silence proves nothing before
    it.
    """
    return Watch(watch.look, max(watch.steady_since_s, promised_at_s))


def _was_away(last: ClockReading, look: ClockReading) -> bool:
    waited_s = look.monotonic_s - last.monotonic_s
    passed_s = (look.now - last.now).total_seconds()
    return (
        look.server != last.server
        or waited_s > MAX_BLIND_S
        or abs(passed_s - waited_s) > MAX_CLOCK_STEP_S
    )


def may_expire(watch: Watch, *, session_timeout_ms: int) -> bool:
    """Return True if the database was there long enough for silence to prove something."""
    return (
        watch.look.monotonic_s - watch.steady_since_s >= session_timeout_ms / 1000 + GRACE_S
    )


def is_overdue(*, last_seen: datetime, now: datetime, session_timeout_ms: int) -> bool:
    """Return True if a member last recorded at `last_seen` is expired at `now`, by the
    database's clock.
    """
    return (now - last_seen).total_seconds() > session_timeout_ms / 1000 + GRACE_S


def find_expired(watch: Watch, members: Iterable[tuple[int, datetime, int]]) -> list[int]:
    """Ids of the dead among `members`, each (id, last_seen, session_timeout_ms)."""
    return [
        member
        for member, last_seen, timeout_ms in members
        if may_expire(watch, session_timeout_ms=timeout_ms)
        and is_overdue(
            last_seen=last_seen, now=watch.look.now, session_timeout_ms=timeout_ms
        )
    ]
