"""The main figures of a report as bars: made on the server, readable without script and
without eyes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext_lazy as lazy

from portal.kit.tables import Text

MAX_BARS = 31  # a month of days
WIDTH = 100.0  # of the longest bar


@dataclass(frozen=True, slots=True)
class Drawing:
    """Drawing of a report: rows of equal `by` are one bar, whose length `joined` makes of
    their values.

    The values are of the first column of `columns` that the report has. `in_order`: of the
    labels, else of the values, the largest first.
    """

    title: Text
    by: tuple[str, ...]
    columns: tuple[str, ...]
    kind: str  # number, size or lasts
    joined: Callable[[Iterable[float]], float] = sum
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
        joined=max,
    ),
    "departments": Drawing(
        lazy("Messages by department"), ("department",), ("messages",), "number"
    ),
}


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar; `width`: of WIDTH, as a number in SVG."""

    label: str
    width: str
    value: int


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars to draw; `kind` says how values are shown."""

    title: Text
    kind: str
    bars: Sequence[Bar]


def draw_bars(name: str, rows: Iterable[Mapping[str, Any]]) -> Bars | None:
    """The rows of a report as bars; None if there is nothing to draw."""
    drawing = DRAWINGS.get(name)
    values = _values(drawing, rows) if drawing else {}
    if drawing is None or not values:
        return None
    found = sorted(
        values.items(), key=lambda row: row[0] if drawing.in_order else (-row[1], row[0])
    )
    shown = found[-MAX_BARS:] if drawing.in_order else found[:MAX_BARS]
    most = max(value for _label, value in shown) or 1
    bars = [
        Bar(label, f"{WIDTH * value / most:.2f}", round(value)) for label, value in shown
    ]
    return Bars(drawing.title, drawing.kind, bars)


def _values(drawing: Drawing, rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """{label: value}, of the rows that have both."""
    found: dict[str, list[float]] = {}
    for row in rows:
        value = next(
            (row[one] for one in drawing.columns if row.get(one) is not None), None
        )
        names = [row.get(one) for one in drawing.by]
        if isinstance(value, int | float) and all(names):
            found.setdefault(" · ".join(map(str, names)), []).append(value)
    return {label: drawing.joined(values) for label, values in found.items()}
