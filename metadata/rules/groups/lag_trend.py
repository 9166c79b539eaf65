"""The trend of a group: it catches up, falls behind, or a reason why that cannot be said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

TrendState = Literal[
    "unknown",
    "paused",
    "no_members",
    "nothing_sent",
    "keeps_up",
    "too_little_data",
    "stalled",
    "steady",
    "catches_up",
    "falls_behind",
]
WINDOW_S = 600  # the lag of now is compared with the one of so long ago
LEAST_S = 120  # or of less long ago, where nothing older is known, but of no less than this
FRESH_MS = 10_000  # who has nothing older to read waits for its next commit
# what is sent or handled within that is no trend: it lies between two commits
UNDER_WAY_S = 2.0


@dataclass(frozen=True, slots=True)
class LagFigures:
    """The figures known of a group in the topics where it is not paused; None: not known.

    `lag`: messages that are unread now, `oldest_ms`: age of the oldest of them;
    `lag_before`: what was unread
    `between_s` seconds ago, and since then so many messages were `sent` to its topics and
    `handled` by it.
    """

    members: int
    paused: bool = False
    lag: int | None = None
    oldest_ms: int | None = None
    lag_before: int | None = None
    between_s: float = 0.0
    sent: int = 0
    handled: int | None = None


@dataclass(frozen=True, slots=True)
class LagTrend:
    """The verdict on a group.

    unknown          its lag is not known now: a node is away, or the job that looks did not
    paused           it was paused, or each of its topics was
    no_members       nobody reads
    nothing_sent     it has read everything, and nothing came
    keeps_up         it has read everything, or what is unread is only seconds old
    too_little_data  how far it was behind is not known for long enough
    stalled          it has members and unread messages, and handled none of them
    steady           its lag neither grows nor shrinks
    catches_up       its lag shrinks by `per_s` messages a second and is gone `in_s` seconds
                     from now
    falls_behind     its lag grows by `per_s` messages a second
    """

    state: TrendState
    per_s: float | None = None
    in_s: float | None = None


def find_trend(seen: LagFigures) -> LagTrend:
    """Return what a group's lag of now and then says.

    >>> find_trend(
    ...     LagFigures(2, lag=6000, lag_before=12000, between_s=600, sent=9000, handled=15000)
    ... )
    LagTrend(state='catches_up', per_s=10.0, in_s=600.0)
    >>> find_trend(
    ...     LagFigures(2, lag=16000, lag_before=1000, between_s=600, sent=18000, handled=3000)
    ... )
    LagTrend(state='falls_behind', per_s=25.0, in_s=None)
    >>> find_trend(
    ...     LagFigures(2, lag=5000, lag_before=5010, between_s=600, sent=6000, handled=6010)
    ... ).state
    'steady'
    """
    certain = _without_trend(seen)
    if certain is not None or seen.lag is None:
        return LagTrend(certain or "unknown")
    if seen.lag_before is None or seen.between_s < LEAST_S:
        return LagTrend("too_little_data")
    if seen.handled == 0 and seen.lag_before > 0:
        return LagTrend("stalled")
    return _trend(seen, grown=seen.lag - seen.lag_before)


def _without_trend(seen: LagFigures) -> TrendState | None:
    """Return what is so however the lag moves."""
    if seen.paused:
        return "paused"
    if not seen.members:
        return "no_members"
    if seen.lag is None:
        return "unknown"
    if not seen.lag:
        return "keeps_up" if seen.sent or seen.handled else "nothing_sent"
    fresh = seen.oldest_ms is not None and seen.oldest_ms < FRESH_MS
    return "keeps_up" if fresh else None


def _trend(seen: LagFigures, *, grown: int) -> LagTrend:
    moved_per_s = (seen.sent + (seen.handled or 0)) / seen.between_s
    if abs(grown) <= max(1.0, UNDER_WAY_S * moved_per_s):
        return LagTrend("steady")
    per_s = abs(grown) / seen.between_s
    if grown > 0:
        return LagTrend("falls_behind", per_s)
    # more than it handled is what retention took, not progress
    if seen.handled is not None:
        per_s = min(per_s, seen.handled / seen.between_s)
    return LagTrend("catches_up", per_s, (seen.lag or 0) / per_s if per_s else None)
