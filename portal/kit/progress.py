"""State and trend of a consumer group in words, each with the tone (colour) of its badge.

The page of a group shows state and trend apart: "behind", and below it "falls behind by
20/s". Its states are in STATE_LABELS. Lists have room for a single phrase, which is the trend
if there is one, else the state; these are in TREND_LABELS. The keys of both tables are states
of metadata.rules.groups.lag_trend.TrendState, which explains them.
"""

from __future__ import annotations

from collections.abc import Iterable

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from metadata.monitoring.lag_trends import GroupProgress
from metadata.rules.groups.lag_trend import LagTrend, TrendState
from portal.kit.tables import Cell, Text, badge, per_second
from portal.templatetags.formats import MINUTE, SECOND, format_duration, format_rate

BEHIND: tuple[Text, str] = (gettext_lazy("behind"), "warn")
# Label and tone of a state that is shown without its trend. States that are not listed are
# shown as "behind".
STATE_LABELS: dict[TrendState, tuple[Text, str]] = {
    TrendState.UNKNOWN: (gettext_lazy("not known"), ""),
    TrendState.PAUSED: (gettext_lazy("paused"), "warn"),
    TrendState.NO_MEMBERS: (gettext_lazy("no members"), "warn"),
    TrendState.NOTHING_SENT: (gettext_lazy("idle"), ""),
    TrendState.KEEPS_UP: (gettext_lazy("reading"), "ok"),
    TrendState.STALLED: (BEHIND[0], "bad"),
}
# Label and tone of a state in a single phrase with its trend. The phrases of "falls_behind"
# and "catches_up" have figures: see describe_progress().
TREND_LABELS: dict[TrendState, tuple[Text, str]] = {
    **STATE_LABELS,
    TrendState.TOO_LITTLE_DATA: BEHIND,
    TrendState.STALLED: (gettext_lazy("handles nothing"), "bad"),
    TrendState.STEADY: (gettext_lazy("behind, steady"), "warn"),
}
# States that are shown without a trend, because they say everything.
STATES_WITHOUT_TREND = STATE_LABELS.keys() - {TrendState.STALLED}


def describe_progress(trend: LagTrend) -> tuple[Text, str]:
    """Return the state and trend of a group in a single phrase, and its tone."""
    if trend.state == TrendState.FALLS_BEHIND:
        return _("falls behind by %s/s") % format_rate(trend.per_s), "warn"
    if trend.state == TrendState.CATCHES_UP:
        # The time is an estimate, so it is rounded to full minutes or seconds.
        estimate_ms = 1000 * (trend.in_s or 0)
        unit = MINUTE if estimate_ms >= MINUTE else SECOND
        rounded_ms = unit * max(1, round(estimate_ms / unit))
        return _("catches up in %s") % format_duration(rounded_ms), "ok"
    return TREND_LABELS[trend.state]


def tone_without_members(lag: int | None) -> str:
    """Return the tone of a group or subscription without members: a warning if it has
    unread messages.
    """
    return STATE_LABELS[TrendState.NO_MEMBERS][1] if lag else ""


def group_state(progress: GroupProgress | None) -> tuple[Text, str, Text]:
    """Return the state of a group, its tone, and the trend in words ('' if the state needs
    no trend).
    """
    if progress is None:
        return *STATE_LABELS[TrendState.UNKNOWN], ""
    label, tone = STATE_LABELS.get(progress.trend.state, BEHIND)
    if progress.trend.state == TrendState.NO_MEMBERS:
        tone = tone_without_members(progress.lag)
    # The state beside them says "behind" already, so these trends leave that out.
    labels = {
        TrendState.TOO_LITTLE_DATA: _("too little data"),
        TrendState.STEADY: _("steady"),
    }
    return (
        label,
        tone,
        ""
        if progress.trend.state in STATES_WITHOUT_TREND
        else labels.get(progress.trend.state, describe_progress(progress.trend)[0]),
    )


def describe_slowest(groups: Iterable[tuple[str, GroupProgress | None]]) -> Text:
    """Return in words the first group that falls further back, else the group that takes
    longest to catch up.

    Return '' if no group does either.
    """
    trends = [(name, progress.trend) for name, progress in groups if progress]
    falling_behind = [
        (name, trend) for name, trend in trends if trend.state == TrendState.FALLS_BEHIND
    ]
    if falling_behind:
        name, trend = falling_behind[0]
        return _("%(group)s falls behind by %(rate)s/s") % {
            "group": name,
            "rate": format_rate(trend.per_s),
        }
    catching_up = [trend for _name, trend in trends if trend.state == TrendState.CATCHES_UP]
    return (
        describe_progress(max(catching_up, key=lambda trend: trend.in_s or 0))[0]
        if catching_up
        else ""
    )


def progress_cell(progress: GroupProgress | None) -> Cell:
    if progress is None:
        return badge(*TREND_LABELS[TrendState.UNKNOWN])
    label, tone = describe_progress(progress.trend)
    return badge(
        label,
        tone_without_members(progress.lag)
        if progress.trend.state == TrendState.NO_MEMBERS
        else tone,
    )


def handled_rate(progress: GroupProgress | None) -> Cell:
    """Return a cell with the messages that a group has recently handled per second."""
    return per_second(progress.pace.handled if progress else None)
