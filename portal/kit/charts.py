"""Charts of pages. The page shows the values as a table, and portal.js draws the chart from
that table.

So a chart can be read without scripts and by screen readers.
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
# A step that began less than this ago is too short for a meaningful rate.
MIN_STEP_S = 10
# A chart that is cut to its data still has this many steps.
MIN_STEPS = 12


class EventKind(NamedTuple):
    """Tone and legend label of a kind of events."""

    tone: str
    label: Text


# By kind of mark. portal.js has a pattern of dashes for each.
EVENT_KINDS = {
    "alarm": EventKind("bad", lazy("Alarm raised")),
    "resolved": EventKind("ok", lazy("Alarm resolved")),
    "reset": EventKind("warn", lazy("Offsets reset")),
    "undo": EventKind("warn", lazy("Reset undone")),
    "rebalance": EventKind("", lazy("Rebalance")),
}


class Event(NamedTuple):
    """A vertical line in a chart: its time in ms since 1970, a kind of EVENT_KINDS, and its
    text.
    """

    at_ms: int
    kind: str
    text: str

    @property
    def tone(self) -> str:
        return EVENT_KINDS[self.kind].tone


class Row(NamedTuple):
    """A step of a chart: its start in ms and in s since 1970, its values, and the events
    within it.

    Each line has a value (text, number). The number is '' where there is none.
    """

    at_ms: int
    at: int
    values: Sequence[tuple[str, Number | str]]
    events: Sequence[Event] = ()


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart: the label of each line, and its steps."""

    title: Text
    labels: Sequence[Text]
    rows: Sequence[Row]

    @property
    def has_values(self) -> bool:
        return any(raw != "" for row in self.rows for _text, raw in row.values)

    @property
    def has_events(self) -> bool:
        return any(row.events for row in self.rows)

    @property
    def event_kinds(self) -> list[tuple[str, EventKind]]:
        """Return the kinds of events in the chart, for its legend."""
        present = {event.kind for row in self.rows for event in row.events}
        return [(name, kind) for name, kind in EVENT_KINDS.items() if name in present]


@dataclass(frozen=True, slots=True)
class Span:
    """Time span of charts. `key` is its value in the URL."""

    key: str
    label: Text
    length_s: int


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


# Spans chosen without a URL parameter: the first three if the last hour has samples, else one of
# all that still shows the latest. Of an installation that has run for days, the last hour says
# how it is now, and its lines fill the chart.
RECENT_SPANS = SPANS[:3]
AUTOMATIC_SPANS = SPANS[:6]


class Series(NamedTuple):
    """The span of a page's charts and the steps within it."""

    span: Span
    points: Sequence[Point]


def read_series(request: HttpRequest, **subject: Any) -> Series:
    """Return the steps of the span in the URL, or of the shortest automatic span that holds
    all samples of it.

    Without a span in the URL, the series begins with the data: the steps before the first
    sample are left out. `subject` selects the samples, as in `metrics_history.read_points`.
    """
    key = request.GET.get("span", "")
    requested = next((span for span in SPANS if span.key == key), None)
    if requested is not None:
        return Series(
            requested, metrics_history.read_points(for_s=requested.length_s, **subject)
        )
    # Samples older than the longest automatic span would not be shown by any of them.
    age_s = metrics_history.first_sample_age_s(
        within_s=RECENT_SPANS[-1].length_s, **subject
    ) or metrics_history.first_sample_age_s(
        within_s=AUTOMATIC_SPANS[-1].length_s, **subject
    )
    span = next(
        (span for span in AUTOMATIC_SPANS if age_s <= span.length_s), AUTOMATIC_SPANS[-1]
    )
    points = metrics_history.read_points(for_s=span.length_s, **subject)
    first = next((n for n, point in enumerate(points) if point.is_known), 0)
    # A chart of a few seconds would be a single point.
    return Series(span, points[max(0, min(first, len(points) - MIN_STEPS)) :])


def span_links(selected: Span) -> list[Link]:
    """Return a link for each span. The selected span is marked."""
    return [
        Link(span.label, f"?span={span.key}", "on" if span is selected else "")
        for span in SPANS
    ]


def rate_chart(points: Sequence[Point], marks: Sequence[Mark] = ()) -> Chart:
    """Return the chart of messages per second: sent, handled by groups, and pulled by
    groups.

    Repeated pulls count each time.
    """
    lines: list[Callable[[Point], Number]] = [
        lambda point: _per_second(point, point.sent),
        lambda point: _per_second(point, point.handled),
        lambda point: _per_second(point, point.pulled),
    ]
    labels = [_("sent"), _("handled"), _("pulled")]
    return _build_chart(
        _("Messages per second"),
        labels,
        # A last step that has only begun would end the line with a random rate.
        points if points[-1].seconds >= MIN_STEP_S else points[:-1],
        marks,
        lines=lines,
        format_value=format_rate,
    )


def _per_second(point: Point, messages: int | None) -> Number:
    return None if messages is None or not point.is_known else messages / point.seconds


def lag_chart(points: Sequence[Point], marks: Sequence[Mark] = ()) -> Chart:
    """Return the chart of unread messages, which a job counts every minute."""
    return _build_chart(
        _("Unread messages"),
        [_("lag")],
        points,
        marks,
        lines=[lambda point: point.lag],
        format_value=format_count,
    )


def trend(points: Sequence[Point], value: Callable[[Point], Number]) -> list[float]:
    """Return the values of a line for the small chart of a tile. Steps without a value have
    the value of the step before.

    The last step is left out if it is not over yet: its count would be too low.
    """
    step_s = max((point.seconds for point in points), default=0)
    values: list[float] = []
    for point in points:
        number = value(point) if point.is_known and point.seconds == step_s else None
        if number is not None:
            values.append(number)
        elif values:
            values.append(values[-1])
    return values


def size_chart(sizes: Sequence[Size]) -> Chart:
    steps = [
        Row(size.at_ms, size.at_ms // 1000, ((format_size(size.bytes), size.bytes),))
        for size in sizes
    ]
    return Chart(_("Size, bytes"), [_("Size")], steps)


def _build_chart(
    title: str,
    labels: Sequence[str],
    points: Sequence[Point],
    marks: Sequence[Mark],
    *,
    lines: Sequence[Callable[[Point], Number]],
    format_value: Callable[[Number], str],
) -> Chart:
    def value_cell(value: Number) -> tuple[str, Number | str]:
        return (DASH, "") if value is None else (format_value(value), round(value, 4))

    # An event belongs to the step in which it happened, so that the table can show it.
    events = _events_by_step(points, marks)
    steps = [
        Row(
            point.at_ms,
            point.at_ms // 1000,
            tuple(value_cell(line(point)) for line in lines),
            events[index],
        )
        for index, point in enumerate(points)
    ]
    return Chart(title, labels, steps)


def _events_by_step(points: Sequence[Point], marks: Sequence[Mark]) -> list[list[Event]]:
    """Return the events of each step. Events before the first step are left out."""
    step_starts = [point.at_ms for point in points]
    events: list[list[Event]] = [[] for _point in points]
    for mark in marks:
        step = bisect_right(step_starts, mark.at_ms) - 1
        if step >= 0:
            events[step].append(Event(mark.at_ms, mark.kind, _describe_mark(mark)))
    return events


def _describe_mark(mark: Mark) -> str:
    if mark.kind == "rebalance":
        return _("Rebalance: %s") % cells.describe_rebalance_cause(mark.detail)
    if mark.kind in ("alarm", "resolved"):
        label = f"{cells.alarm_kind(mark.detail)}{f', {mark.name}' if mark.name else ''}"
        return (_("Alarm: %s") if mark.kind == "alarm" else _("Resolved: %s")) % label
    values = {"who": mark.detail, "what": mark.name or _("several topics")}
    text = (
        _("Reset by %(who)s: %(what)s")
        if mark.kind == "reset"
        else _("Reset undone by %(who)s: %(what)s")
    )
    return text % values
