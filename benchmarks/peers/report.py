"""Medians, spreads and Markdown tables of what was measured. Pure: no benchmark is run."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.figures import Latencies, Spread, ratios

PROCESSES = (1, 4)
SIDES = ("client", "server", "database")


@dataclass(frozen=True)
class Line:
    """A column of the table. `batch` is the size of a send or of a receive."""

    name: str
    role: str  # of a client process; see worker.py
    batch: int = 1
    commits: str = "each"
    only_catmq: bool = False

    @property
    def is_timed(self) -> bool:
        return self.role == "end_to_end"

    @property
    def processes(self) -> tuple[int, ...]:
        return (1,) if self.is_timed else PROCESSES


LINES = (
    Line("publish 1", "publish", 1),
    Line("publish 100", "publish", 100),
    Line("publish 100, named queues", "publish", 100, only_catmq=True),
    Line("consume 100 + commit", "consume", 100),
    Line(
        "consume 100, committed by pulls",
        "consume",
        100,
        commits="pulls",
        only_catmq=True,
    ),
    Line("consume, defaults", "consume", 500, commits="defaults"),
    Line("end to end, ms", "end_to_end"),
)
RATE_LINES = tuple(line for line in LINES if not line.is_timed)


@dataclass(frozen=True)
class Measure:
    """One measure of one system. CPU seconds are by side, latencies in seconds."""

    messages: int
    rate: float
    cpu_s: Mapping[str, float]
    latencies_s: Sequence[float] = ()

    def cpu_us(self, side: str) -> float:
        """Return the CPU time of a side in microseconds a message."""
        return 1e6 * self.cpu_s[side] / max(self.messages, 1)


@dataclass
class Results:
    """Measures by system, line and number of processes: one of each round.

    A round whose client failed has None, so that the rounds of two systems stay in step.
    """

    titles: Mapping[str, str]  # of systems, by name
    measures: dict[tuple[str, str, int], list[Measure | None]]

    def add(self, system: str, line: Line, processes: int, measure: Measure | None) -> None:
        self.measures.setdefault((system, line.name, processes), []).append(measure)

    def of(self, system: str, line: Line, processes: int) -> list[Measure]:
        """Return the measures that did not fail."""
        rounds = self.measures.get((system, line.name, processes), [])
        return [measure for measure in rounds if measure is not None]

    def pairs(
        self, system: str, other: str, line: Line, processes: int
    ) -> list[tuple[Measure, Measure]]:
        """Return the measures of two systems in the rounds in which neither failed."""
        rounds = zip(
            self.measures.get((system, line.name, processes), []),
            self.measures.get((other, line.name, processes), []),
            strict=True,
        )
        return [(one, two) for one, two in rounds if one is not None and two is not None]


def with_spread(values: Sequence[float]) -> str:
    """Return the median and the farthest value from it, in percent of it.

    >>> with_spread([90.0, 100.0, 130.0]), with_spread([1234.5]), with_spread([])
    ('100 ± 30 %', '1,234', 'failed')
    """
    if not values:
        return "failed"
    spread = Spread.of(values)
    farthest = max(spread.median - spread.least, spread.most - spread.median)
    text = f"{spread.median:,.0f}"
    if len(values) == 1 or not spread.median:
        return text
    return f"{text} ± {100 * farthest / spread.median:.0f} %"


def ratio_text(values: Sequence[float], others: Sequence[float]) -> str:
    """Return the median of each round's ratio, with the least and the most.

    >>> ratio_text([150.0, 110.0, 120.0], [100.0, 100.0, 100.0]), ratio_text([], [])
    ('1.20 (1.10 - 1.50)', 'failed')
    """
    if not values:
        return "failed"
    spread = Spread.of(ratios(values, others))
    return f"{spread.median:.2f} ({spread.least:.2f} - {spread.most:.2f})"


def latency_text(measures: Sequence[Measure]) -> str:
    """Return the medians of each round's p50 and p99 in ms.

    >>> latency_text([Measure(3, 100.0, {}, [0.001, 0.002, 0.009])])
    '2.0 / 9.0'
    """
    if not measures:
        return "failed"
    rounds = [Latencies.of(measure.latencies_s) for measure in measures]
    p50 = statistics.median(latencies.p50 for latencies in rounds)
    p99 = statistics.median(latencies.p99 for latencies in rounds)
    return f"{p50:.1f} / {p99:.1f}"


def cpu_text(measures: Sequence[Measure]) -> str:
    """Return the median CPU time of each side that the system has.

    >>> cpu_text([Measure(1000, 1.0, {"client": 0.002, "server": 0.0105})])
    '2.0 + 10.5'
    """
    if not measures:
        return "failed"
    medians = [
        statistics.median(measure.cpu_us(side) for measure in measures)
        for side in SIDES
        if side in measures[0].cpu_s
    ]
    return " + ".join(f"{median:,.1f}" for median in medians)


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table.

    >>> print(markdown(["", "a"], [["x", "1"]]))
    | | a |
    |---|---|
    | x | 1 |
    """
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(line.replace("|  |", "| |") for line in lines)


def rates_table(results: Results) -> str:
    """Return messages a second with 1 / 4 client processes, and end-to-end times."""
    rows = []
    for system, title in results.titles.items():
        row = [title]
        for line in LINES:
            if line.is_timed:
                row.append(latency_text(results.of(system, line, 1)))
            elif (system, line.name, 1) not in results.measures:
                row.append("-")
            else:
                rates = (
                    with_spread([one.rate for one in results.of(system, line, processes)])
                    for processes in PROCESSES
                )
                row.append(" / ".join(rates))
        rows.append(row)
    heads = [f"{line.name}, p50 / p99" if line.is_timed else line.name for line in LINES]
    return markdown(["", *heads], rows)


def cpu_table(results: Results, processes: int) -> str:
    """Return the CPU time of each side, in microseconds a message."""
    rows = []
    for system, title in results.titles.items():
        cells = (
            cpu_text(results.of(system, line, processes))
            if (system, line.name, processes) in results.measures
            else "-"
            for line in RATE_LINES
        )
        rows.append([title, *cells])
    return markdown(["", *(line.name for line in RATE_LINES)], rows)


def before_table(results: Results, pairs: Sequence[tuple[str, str]]) -> str:
    """Return ratios of systems to their earlier revision: of rates, then of the CPU time
    of all sides and of the server alone. `pairs` has names of systems.
    """
    rows = []
    for system, before in pairs:
        for processes in PROCESSES:
            rate, total, server = [], [], []
            for line in RATE_LINES:
                both = results.pairs(system, before, line, processes)
                rate.append(ratio_text(*_columns(both, lambda one: one.rate)))
                total.append(
                    ratio_text(
                        *_columns(both, lambda one: sum(one.cpu_s.values()) / one.messages)
                    )
                )
                server.append(ratio_text(*_columns(both, lambda one: one.cpu_us("server"))))
            title = f"{results.titles[system]}, {processes} process" + (
                "es" if processes > 1 else ""
            )
            rows += [
                [f"{title}: rate", *rate],
                [f"{title}: CPU of all sides", *total],
                [f"{title}: CPU of the broker", *server],
            ]
    return markdown(["", *(line.name for line in RATE_LINES)], rows)


def _columns(pairs: Sequence[tuple[Measure, Measure]], figure: Any) -> tuple[Any, Any]:
    """Return a figure of the first and of the second measures of pairs."""
    return [figure(one) for one, _ in pairs], [figure(two) for _, two in pairs]
