"""The main figures of a report as bars, drawn on the server: readable without scripts
and by screen readers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext_lazy as lazy

from portal.kit.tables import Text

# A month of days.
MAX_BARS = 31
# Width of the longest bar, in units of the SVG.
MAX_WIDTH = 100.0


@dataclass(frozen=True, slots=True)
class Drawing:
    """How a report is drawn.

    Rows with equal values in the columns `by` share a bar. `combine` makes its length from
    the values in the first of `columns` that the report has. Bars are sorted by label if
    `in_order`, else by value, largest first.
    """

    title: Text
    by: tuple[str, ...]
    columns: tuple[str, ...]
    kind: str  # number, size or lasts
    combine: Callable[[Iterable[float]], float] = sum
    in_order: bool = False


DRAWINGS: Mapping[str, Drawing] = {
    "volume": Drawing(
        lazy("Messages a day"), ("day",), ("messages",), "number", in_order=True
    ),
    "size_and_expiry": Drawing(
        lazy("Messages kept by topic"), ("topic",), ("messages",), "number"
    ),
    "topics": Drawing(lazy("Messages by topic"), ("topic",), ("messages",), "number"),
    "capacity": Drawing(lazy("Bytes a day by node"), ("node",), ("bytes_a_day",), "size"),
    "latency": Drawing(
        lazy("Longest waits by topic and group"),
        ("topic", "group"),
        ("p95_to_ms", "waited_p99_ms"),
        "lasts",
        combine=max,
    ),
    "departments": Drawing(
        lazy("Messages by department"), ("department",), ("messages",), "number"
    ),
}


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar. `width` is a share of MAX_WIDTH, as a number in SVG."""

    label: str
    width: str
    value: int


@dataclass(frozen=True, slots=True)
class Bars:
    """A bar chart. `kind` selects the format of the values."""

    title: Text
    kind: str
    bars: Sequence[Bar]


def draw_bars(name: str, rows: Iterable[Mapping[str, Any]]) -> Bars | None:
    """Return the rows of a report as bars, None if there is nothing to draw."""
    drawing = DRAWINGS.get(name)
    values = _sum_by_label(drawing, rows) if drawing else {}
    if drawing is None or not values:
        return None
    # Ties are broken by label, so that the order is stable.
    ranked = sorted(
        values.items(),
        key=lambda item: item[0] if drawing.in_order else (-item[1], item[0]),
    )
    # Of many days, the latest are shown.
    visible = ranked[-MAX_BARS:] if drawing.in_order else ranked[:MAX_BARS]
    max_value = max(value for _label, value in visible) or 1
    bars = [
        Bar(label, f"{MAX_WIDTH * value / max_value:.2f}", round(value))
        for label, value in visible
    ]
    return Bars(drawing.title, drawing.kind, bars)


def _sum_by_label(drawing: Drawing, rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the length of each bar, by label. Rows without a label or value are left
    out.
    """
    values_by_label: dict[str, list[float]] = {}
    for row in rows:
        value = next(
            (row[column] for column in drawing.columns if row.get(column) is not None), None
        )
        names = [row.get(column) for column in drawing.by]
        if isinstance(value, int | float) and all(names):
            values_by_label.setdefault(" · ".join(map(str, names)), []).append(value)
    return {label: drawing.combine(values) for label, values in values_by_label.items()}
