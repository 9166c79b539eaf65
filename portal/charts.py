"""Charts: a title, labels and rows; the page shows them as a table and the browser draws them from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from django.utils.translation import gettext as _

from metadata.rules.growth import Size
from metadata.series import Point
from portal.tables import Text
from portal.templatetags.shapes import DASH, count, rate, size

Value = float | int | None


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart; a row is (ms since 1970, s since 1970, ((shown, raw), …)), a raw '' stands for nothing."""

    title: Text
    labels: Sequence[Text]
    rows: Sequence[tuple[int, int, Sequence[tuple[str, Value | str]]]]


def rates(points: Sequence[Point], *, pulled: bool = True) -> Chart:
    """Messages per second: sent, and pulled by groups."""
    step = step_s(points)
    lines: list[Callable[[Point], Value]] = [lambda point: point.sent / step]
    labels = [_("sent")]
    if pulled:
        lines.append(lambda point: point.pulled / step)
        labels.append(_("pulled"))
    return _chart(_("Messages per second"), labels, points[:-1], lines=lines, shown=rate)


def pulls(points: Sequence[Point]) -> Chart:
    """Messages per second that a group pulled."""
    step = step_s(points)
    return _chart(
        _("Messages per second"),
        [_("pulled")],
        points[:-1],
        lines=[lambda one: one.pulled / step],
        shown=rate,
    )


def lags(points: Sequence[Point]) -> Chart:
    """Unread messages, as a job saw them."""
    return _chart(_("Unread messages"), [_("lag")], points, lines=[lambda point: point.lag], shown=count)


def sizes(found: Sequence[Size]) -> Chart:
    """Bytes that a node held."""
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


def step_s(points: Sequence[Point]) -> int:
    """How many seconds a point stands for."""
    return (points[1].at_ms - points[0].at_ms) // 1000 if len(points) > 1 else 60


def now_rates(points: Sequence[Point]) -> tuple[float, float]:
    """(sent, pulled) per second over the last whole minute and what there is of this one."""
    last = points[-2:]
    seconds = sum(one.seconds for one in last) or 1.0
    return sum(one.sent for one in last) / seconds, sum(one.pulled for one in last) / seconds
