"""Charts: a title, labels and rows; the page shows them as a table and the browser draws
them from it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from metadata.listing.chart_marks import Mark
from metadata.monitoring import metrics_history
from metadata.monitoring.metrics_history import Point
from metadata.rules.growth import Size
from portal.kit import cells
from portal.kit.pages import Link
from portal.kit.tables import Text
from portal.templatetags.formats import DASH, format_count, format_rate, format_size

Number = float | int | None
MIN_STEP_S = 10  # of a step that is not over, for its rate to be shown


class EventKind(NamedTuple):
    """The look of events of one kind in a chart, and their name in its legend."""

    tone: str
    label: Text


EVENT_KINDS = {  # the kinds of marks; portal.js has a pattern of dashes for each
    "alarm": EventKind("bad", lazy("Alarm raised")),
    "resolved": EventKind("ok", lazy("Alarm resolved")),
    "reset": EventKind("warn", lazy("Offsets reset")),
    "undo": EventKind("warn", lazy("Reset undone")),
    "rebalance": EventKind("", lazy("Rebalance")),
}


class Event(NamedTuple):
    """A vertical line in a chart: when, ms since 1970; one of EVENT_KINDS; what is said of
    it.
    """

    at_ms: int
    kind: str
    text: str

    @property
    def tone(self) -> str:
        return EVENT_KINDS[self.kind].tone


class Row(NamedTuple):
    """A step of a chart: ms and s since 1970, (shown, raw) of each line, and what happened
    in it.

    A raw '' stands for nothing.
    """

    at_ms: int
    at: int
    values: Sequence[tuple[str, Number | str]]
    events: Sequence[Event] = ()


@dataclass(frozen=True, slots=True)
class Chart:
    title: Text
    labels: Sequence[Text]
    rows: Sequence[Row]

    @property
    def has_events(self) -> bool:
        return any(one.events for one in self.rows)

    @property
    def event_kinds(self) -> list[tuple[str, EventKind]]:
        """Return the kinds of events that the chart has, with their names in the legend."""
        present = {event.kind for row in self.rows for event in row.events}
        return [(name, kind) for name, kind in EVENT_KINDS.items() if name in present]


@dataclass(frozen=True, slots=True)
class Span:
    """Time span of charts; `key` is what the URL says."""

    key: str
    label: Text
    for_s: int


SPANS = (
    Span("15m", lazy("15 min"), 900),
    Span("30m", lazy("30 min"), 1800),
    Span("1h", lazy("1 hour"), 3600),
    Span("2h", lazy("2 hours"), 2 * 3600),
    Span("3h", lazy("3 hours"), 3 * 3600),
    Span("6h", lazy("6 hours"), 6 * 3600),
    Span("1d", lazy("1 day"), 86_400),
    Span("7d", lazy("7 days"), 7 * 86_400),
    Span("30d", lazy("30 days"), 30 * 86_400),
    Span("2y", lazy("2 years"), 730 * 86_400),
)


AUTOMATIC_SPANS = SPANS[
    :6
]  # in steps of at most a minute; longer ones only where they are asked for


def chosen_span(request: HttpRequest, **whose: Any) -> Span:
    """Return the span of the URL, or the shortest usual one that holds what was counted
    lately.

    `whose` says of what, as in `metrics_history.points`.
    """
    asked = request.GET.get("span", "")
    named = next((one for one in SPANS if one.key == asked), None)
    if named is not None:
        return named
    # No usual span shows what is older than the longest one, so it does not make the chart
    # longer.
    age_s = metrics_history.first_sample_age_s(within_s=AUTOMATIC_SPANS[-1].for_s, **whose)
    return next((one for one in AUTOMATIC_SPANS if age_s <= one.for_s), AUTOMATIC_SPANS[-1])


def span_links(chosen: Span) -> list[Link]:
    """Links to each; the chosen one is marked."""
    return [
        Link(one.label, f"?span={one.key}", "on" if one is chosen else "") for one in SPANS
    ]


def rate_chart(points: Sequence[Point], marks: Sequence[Mark] = ()) -> Chart:
    """Messages per second: sent, handled by groups, and pulled by them, perhaps twice."""
    lines: list[Callable[[Point], Number]] = [
        lambda point: _rate(point, point.sent),
        lambda point: _rate(point, point.handled),
        lambda point: _rate(point, point.pulled),
    ]
    labels = [_("sent"), _("handled"), _("pulled")]
    return _chart(
        _("Messages per second"),
        labels,
        _told(points),
        marks,
        lines=lines,
        shown=format_rate,
    )


def _rate(point: Point, format_count: int | None) -> Number:
    return (
        None if format_count is None or not point.is_known else format_count / point.seconds
    )


def _told(points: Sequence[Point]) -> Sequence[Point]:
    """Without a last step that has only begun: its rate says little."""
    return points if points[-1].seconds >= MIN_STEP_S else points[:-1]


def lag_chart(points: Sequence[Point], marks: Sequence[Mark] = ()) -> Chart:
    """Unread messages, as a job saw them."""
    return _chart(
        _("Unread messages"),
        [_("lag")],
        points,
        marks,
        lines=[lambda point: point.lag],
        shown=format_count,
    )


def size_chart(found: Sequence[Size]) -> Chart:
    steps = [
        Row(one.at_ms, one.at_ms // 1000, ((format_size(one.bytes), one.bytes),))
        for one in found
    ]
    return Chart(_("Size, bytes"), [_("Size")], steps)


def _chart(
    title: str,
    labels: Sequence[str],
    points: Sequence[Point],
    marks: Sequence[Mark],
    *,
    lines: Sequence[Callable[[Point], Number]],
    shown: Callable[[Number], str],
) -> Chart:
    def cell(value: Number) -> tuple[str, Number | str]:
        return (DASH, "") if value is None else (shown(value), round(value, 4))

    events = _events(points, marks)
    steps = [
        Row(
            point.at_ms,
            point.at_ms // 1000,
            tuple(cell(line(point)) for line in lines),
            events[n],
        )
        for n, point in enumerate(points)
    ]
    return Chart(title, labels, steps)


def _events(points: Sequence[Point], marks: Sequence[Mark]) -> list[list[Event]]:
    """Return the events of each step; without those before the first."""
    begins = [point.at_ms for point in points]
    found: list[list[Event]] = [[] for _point in points]
    for mark in marks:
        step = bisect_right(begins, mark.at_ms) - 1
        if step >= 0:
            found[step].append(Event(mark.at_ms, mark.kind, _said(mark)))
    return found


def _said(mark: Mark) -> str:
    if mark.kind == "rebalance":
        return _("Rebalance: %s") % cells.describe_rebalance_cause(mark.what)
    if mark.kind in ("alarm", "resolved"):
        what = f"{cells.alarm_kind(mark.what)}{f', {mark.name}' if mark.name else ''}"
        return (_("Alarm: %s") if mark.kind == "alarm" else _("Resolved: %s")) % what
    words = {"who": mark.what, "what": mark.name or _("several topics")}
    text = (
        _("Reset by %(who)s: %(what)s")
        if mark.kind == "reset"
        else _("Reset undone by %(who)s: %(what)s")
    )
    return text % words
