"""Expiry of silent members: when a member is dead, and when no member may be declared dead.

A member whose last heartbeat was recorded at time L is expired once the database's clock
shows L + session timeout + 1 s. It stops by itself at the session timeout, so it always
stops first.

But silence proves nothing while heartbeats could not be recorded. So the process that
expires members reads the database's clock about every second, and compares it with its own
monotonic clock:

* If both advanced by the same time, the database was available, and members could send
  heartbeats.
* If they differ by more than 2 s, if the answer came from another server, or if the last
  reading is more than 5 s old, there was an outage.

After an outage, and after the start of the process, no member expires for a full session
timeout. The same holds after a promise: a broker that could not record a heartbeat ordered its
member to continue.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from msgspec import Struct

GRACE_S = 1.0  # between the time when a member stops by itself and its expiry
MAX_CLOCK_STEP_S = 2.0
MAX_BLIND_S = 5.0


class ClockReading(Struct, frozen=True):
    """A reading of the database: its server, its clock, and the version of the metadata.

    `monotonic_s` is the monotonic clock of this process at that time.
    """

    server: str
    now: datetime
    monotonic_s: float
    version: tuple[str, int] = ("", 0)


class Watch(Struct, frozen=True):
    """The last reading, and the monotonic time since which there was no outage or promise."""

    look: ClockReading
    steady_since_s: float


def observe(watch: Watch | None, reading: ClockReading) -> Watch:
    """Return the watch after another reading; None stands for no former reading."""
    if watch is not None:
        last = watch.look
        waited_s = reading.monotonic_s - last.monotonic_s
        passed_s = (reading.now - last.now).total_seconds()
        # Another server may lack the heartbeats of the last moments (failover).
        if (
            reading.server == last.server
            and waited_s <= MAX_BLIND_S
            and abs(passed_s - waited_s) <= MAX_CLOCK_STEP_S
        ):
            return Watch(reading, watch.steady_since_s)
    # The start of the process, or an outage.
    return Watch(reading, reading.monotonic_s)


def after_promise(watch: Watch, *, promised_at_s: float) -> Watch:
    """Return the watch after a promise at that time: silence before it proves nothing."""
    return Watch(watch.look, max(watch.steady_since_s, promised_at_s))


def may_expire(watch: Watch, *, session_timeout_ms: int) -> bool:
    """Return True if the database was available long enough for silence to prove a member
    dead.
    """
    return (
        watch.look.monotonic_s - watch.steady_since_s >= session_timeout_ms / 1000 + GRACE_S
    )


def is_overdue(*, last_seen: datetime, now: datetime, session_timeout_ms: int) -> bool:
    """Return True if a member last heard at `last_seen` is expired at `now`, by the
    database's clock.
    """
    return (now - last_seen).total_seconds() > session_timeout_ms / 1000 + GRACE_S


def find_expired(watch: Watch, members: Iterable[tuple[int, datetime, int]]) -> list[int]:
    """Return the ids of expired members; `members` are (id, last_seen,
    session_timeout_ms).
    """
    return [
        member
        for member, last_seen, timeout_ms in members
        if may_expire(watch, session_timeout_ms=timeout_ms)
        and is_overdue(
            last_seen=last_seen, now=watch.look.now, session_timeout_ms=timeout_ms
        )
    ]
