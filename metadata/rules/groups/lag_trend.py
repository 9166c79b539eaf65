"""Trend of the lag of a group: it catches up, falls behind, or the reason why neither is
known.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class TrendState(StrEnum):
    UNKNOWN = "unknown"  # a node is unavailable, or the job did not run
    PAUSED = "paused"  # the group is paused, or all its topics are
    NO_MEMBERS = "no_members"
    NOTHING_SENT = "nothing_sent"  # the group has read everything, and no message was sent
    KEEPS_UP = "keeps_up"  # it has read everything, or unread messages are only seconds old
    TOO_LITTLE_DATA = "too_little_data"  # its former lag is not known for long enough
    STALLED = "stalled"  # it has members and unread messages, and handled none of them
    STEADY = "steady"  # its lag neither grows nor shrinks
    CATCHES_UP = "catches_up"  # its lag shrinks
    FALLS_BEHIND = "falls_behind"  # its lag grows


WINDOW_S = 600  # the current lag is compared with the lag this long ago
MIN_SPAN_S = 120  # shortest span if no older lag is known
FRESH_MS = 10_000  # younger unread messages wait only for the next commit
# A change of the lag by messages of this many seconds is no trend: it lies between two
# commits.
NOISE_S = 2.0


class LagFigures(Struct, frozen=True):
    """Figures of a group in its topics that are not paused; None: not known.

    `lag` messages are unread now, the oldest for `oldest_ms`; `lag_before` were unread
    `between_s` seconds ago. Since then, `sent` messages were sent to the topics, and
    the group handled `handled`.
    """

    members: int
    paused: bool = False
    lag: int | None = None
    oldest_ms: int | None = None
    lag_before: int | None = None
    between_s: float = 0.0
    sent: int = 0
    handled: int | None = None


class LagTrend(Struct, frozen=True):
    """Trend of a group. Its lag grows or shrinks by `per_s` messages a second. A group that
    catches up has read everything `in_s` seconds from now.
    """

    state: TrendState
    per_s: float | None = None
    in_s: float | None = None


def find_trend(figures: LagFigures) -> LagTrend:
    """Return the trend of a group from its current and former lag.

    >>> find_trend(
    ...     LagFigures(2, lag=6000, lag_before=12000, between_s=600, sent=9000, handled=15000)
    ... )
    LagTrend(state=<TrendState.CATCHES_UP: 'catches_up'>, per_s=10.0, in_s=600.0)
    >>> find_trend(
    ...     LagFigures(2, lag=16000, lag_before=1000, between_s=600, sent=18000, handled=3000)
    ... )
    LagTrend(state=<TrendState.FALLS_BEHIND: 'falls_behind'>, per_s=25.0, in_s=None)
    >>> find_trend(
    ...     LagFigures(2, lag=5000, lag_before=5010, between_s=600, sent=6000, handled=6010)
    ... ).state
    <TrendState.STEADY: 'steady'>
    """
    if figures.paused:
        return LagTrend(TrendState.PAUSED)
    if not figures.members:
        return LagTrend(TrendState.NO_MEMBERS)
    if figures.lag is None:
        return LagTrend(TrendState.UNKNOWN)
    if not figures.lag:
        return LagTrend(
            TrendState.KEEPS_UP
            if figures.sent or figures.handled
            else TrendState.NOTHING_SENT
        )
    # These wait only for the next commit.
    if figures.oldest_ms is not None and figures.oldest_ms < FRESH_MS:
        return LagTrend(TrendState.KEEPS_UP)
    if figures.lag_before is None or figures.between_s < MIN_SPAN_S:
        return LagTrend(TrendState.TOO_LITTLE_DATA)
    # Messages were waiting at the start of the window, and none was handled.
    if figures.handled == 0 and figures.lag_before > 0:
        return LagTrend(TrendState.STALLED)
    return _trend(figures, grown=figures.lag - figures.lag_before)


def _trend(figures: LagFigures, *, grown: int) -> LagTrend:
    moved_per_s = (figures.sent + (figures.handled or 0)) / figures.between_s
    if abs(grown) <= max(1.0, NOISE_S * moved_per_s):
        return LagTrend(TrendState.STEADY)
    per_s = abs(grown) / figures.between_s
    if grown > 0:
        return LagTrend(TrendState.FALLS_BEHIND, per_s)
    # The lag may shrink by more than the group handled because of retention. That is no
    # progress.
    if figures.handled is not None:
        per_s = min(per_s, figures.handled / figures.between_s)
    return LagTrend(
        TrendState.CATCHES_UP, per_s, (figures.lag or 0) / per_s if per_s else None
    )
