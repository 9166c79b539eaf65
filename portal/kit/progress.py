"""The trend of a group, in words."""

from __future__ import annotations

from collections.abc import Iterable

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from metadata.monitoring.progress import GroupProgress
from metadata.rules.groups.progress import Progress
from portal.kit.tables import Cell, Text, badge, per_second
from portal.templatetags.formats import MINUTE, SECOND, format_duration, format_rate

BEHIND: tuple[Text, str] = (gettext_lazy("behind"), "warn")
# The state of a group, and its tone; those that are not here are behind.
STATE_LABELS: dict[str, tuple[Text, str]] = {
    "unknown": (gettext_lazy("not known"), ""),
    "paused": (gettext_lazy("paused"), "warn"),
    "no_members": (gettext_lazy("no members"), "warn"),
    "nothing_sent": (gettext_lazy("idle"), ""),
    "keeps_up": (gettext_lazy("reading"), "ok"),
    "stalled": (BEHIND[0], "bad"),
}
# The same with what is known of the trend.
TREND_LABELS: dict[str, tuple[Text, str]] = {
    **STATE_LABELS,
    "too_little_data": BEHIND,
    "stalled": (gettext_lazy("handles nothing"), "bad"),
    "steady": (gettext_lazy("behind, steady"), "warn"),
}


def describe_progress(said: Progress) -> tuple[Text, str]:
    """Return what is said of a group, and its tone."""
    if said.state == "falls_behind":
        return _("falls behind by %s/s") % format_rate(said.per_s), "warn"
    if said.state == "catches_up":
        return _("catches up in %s") % format_duration(
            _rounded(1000 * (said.in_s or 0))
        ), "ok"
    return TREND_LABELS[said.state]


def tone_without_members(lag: int | None) -> str:
    """Return the tone of a group or subscription without members: amber if something is
    unread.
    """
    return STATE_LABELS["no_members"][1] if lag else ""


def group_state(found: GroupProgress | None) -> tuple[Text, str, Text]:
    """Return the state of a group, its tone, and its trend in words, '' where the state
    says all.
    """
    if found is None:
        return *STATE_LABELS["unknown"], ""
    label, tone = STATE_LABELS.get(found.said.state, BEHIND)
    if found.said.state == "no_members":
        tone = tone_without_members(found.lag)
    return (
        label,
        tone,
        ""
        if found.said.state in STATE_LABELS and found.said.state != "stalled"
        else _trend(found.said),
    )


def _trend(said: Progress) -> Text:
    found = {"too_little_data": _("too little data"), "steady": _("steady")}
    return found.get(said.state, describe_progress(said)[0])


def describe_slowest(groups: Iterable[tuple[str, GroupProgress | None]]) -> Text:
    """Return the first of the groups that falls behind, or how long the slowest one takes
    to catch up.
    """
    said = [(name, found.said) for name, found in groups if found]
    growing = [(name, one) for name, one in said if one.state == "falls_behind"]
    if growing:
        name, one = growing[0]
        return _("%(group)s falls behind by %(rate)s/s") % {
            "group": name,
            "rate": format_rate(one.per_s),
        }
    ends = [one for _name, one in said if one.state == "catches_up"]
    return describe_progress(max(ends, key=lambda row: row.in_s or 0))[0] if ends else ""


def _rounded(ms: float) -> int:
    """Full minutes, where it is more than one: it is a guess."""
    whole = MINUTE if ms >= MINUTE else SECOND
    return whole * max(1, round(ms / whole))


def progress_cell(found: GroupProgress | None) -> Cell:
    if found is None:
        return badge(*TREND_LABELS["unknown"])
    label, tone = describe_progress(found.said)
    return badge(
        label, tone_without_members(found.lag) if found.said.state == "no_members" else tone
    )


def handled_rate(found: GroupProgress | None) -> Cell:
    """Messages that a group handled a second, lately."""
    return per_second(found.pace.handled if found else None)
