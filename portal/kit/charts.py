"""Charts: a title, labels and rows; the page shows them as a table and the browser draws them from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from metadata.monitoring import metrics_history
from metadata.monitoring.metrics_history import Point
from metadata.rules.growth import Size
from portal.kit.pages import Link
from portal.kit.tables import Text
from portal.templatetags.shapes import DASH, count, rate, size

Value = float | int | None
LEAST_S = 10  # of a step that is not over, for its rate to be shown


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart; a row is (ms since 1970, s since 1970, ((shown, raw), …)), a raw '' stands for nothing."""

    title: Text
    labels: Sequence[Text]
    rows: Sequence[tuple[int, int, Sequence[tuple[str, Value | str]]]]


@dataclass(frozen=True, slots=True)
class Span:
    """Time span of charts; `key` is what the URL says."""

    key: str
    label: Text
    for_s: int


SPANS = (
    Span("15m", lazy("15 min"), 900),
    Span("1h", lazy("1 hour"), 3600),
    Span("6h", lazy("6 hours"), 6 * 3600),
    Span("1d", lazy("1 day"), 86_400),
    Span("7d", lazy("7 days"), 7 * 86_400),
    Span("30d", lazy("30 days"), 30 * 86_400),
    Span("2y", lazy("2 years"), 730 * 86_400),
)


USUAL = SPANS[:3]  # in steps of at most a minute; longer ones only where they are asked for


def span(request: HttpRequest, **whose: Any) -> Span:
    """Return the span the URL asks for, or the least of the usual ones that holds what was counted.

    `whose` says of what, as in `metrics_history.points`.
    """
    asked = request.GET.get("span", "")
    named = next((one for one in SPANS if one.key == asked), None)
    if named is not None:
        return named
    held = (one for one in USUAL[:-1] if not metrics_history.reaches_back(for_s=one.for_s, **whose))
    return next(held, USUAL[-1])


def spans(chosen: Span) -> list[Link]:
    """Links to each; the chosen one is marked."""
    return [Link(one.label, f"?span={one.key}", "on" if one is chosen else "") for one in SPANS]


def rates(points: Sequence[Point]) -> Chart:
    """Messages per second: sent, handled by groups, and pulled by them, perhaps twice."""
    lines: list[Callable[[Point], Value]] = [
        lambda point: _rate(point, point.sent),
        lambda point: _rate(point, point.handled),
        lambda point: _rate(point, point.pulled),
    ]
    labels = [_("sent"), _("handled"), _("pulled")]
    return _chart(_("Messages per second"), labels, _told(points), lines=lines, shown=rate)


def _rate(point: Point, count: int | None) -> Value:
    return None if count is None or not point.is_known else count / point.seconds


def _told(points: Sequence[Point]) -> Sequence[Point]:
    """Without a last step that has only begun: its rate says little."""
    return points if points[-1].seconds >= LEAST_S else points[:-1]


def lags(points: Sequence[Point]) -> Chart:
    """Unread messages, as a job saw them."""
    return _chart(_("Unread messages"), [_("lag")], points, lines=[lambda point: point.lag], shown=count)


def sizes(found: Sequence[Size]) -> Chart:
    rows = [(one.at_ms, one.at_ms // 1000, ((size(one.bytes), one.bytes),)) for one in found]
    return Chart(_("Size, bytes"), [_("Size")], rows)


def _chart(
    title: str,
    labels: Sequence[str],
    points: Sequence[Point],
    *,
    lines: Sequence[Callable[[Point], Value]],
    shown: Callable[[Value], str],
) -> Chart:
    def cell(value: Value) -> tuple[str, Value | str]:
        return (DASH, "") if value is None else (shown(value), round(value, 4))

    rows = [
        (point.at_ms, point.at_ms // 1000, tuple(cell(line(point)) for line in lines)) for point in points
    ]
    return Chart(title, labels, rows)
