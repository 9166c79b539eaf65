"""Medians, spreads and Markdown tables of measures. Pure functions: nothing is run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from benchmarks.figures import Latencies, Spread

PROCESSES = (1, 4)
SIDES = ("client", "server", "database")


@dataclass(frozen=True)
class Line:
    """A column of the tables. `batch` is the size of a send or of a receive."""

    name: str
    role: str  # of a client process; see worker.py
    batch: int = 1
    commits: str = "each"
    is_named: bool = False  # messages name key and queue
    only_catmq: bool = False
    # The line of an earlier revision that this is compared with; "": its line of this name.
    earlier_name: str = ""
    processes: tuple[int, ...] = PROCESSES

    @property
    def is_timed(self) -> bool:
        return self.role == "end_to_end"


LINES = (
    Line("publish 1", "publish", 1),
    Line("publish 100", "publish", 100),
    Line("publish 100, named queues", "publish", 100, is_named=True, only_catmq=True),
    Line("consume 100 + commit", "consume", 100),
    Line(
        "consume 100, committed by pulls",
        "consume",
        100,
        commits="pulls",
        only_catmq=True,
        # A program that committed each batch did so with a request of its own.
        earlier_name="consume 100 + commit",
    ),
    Line("consume, defaults", "consume", 500, commits="defaults"),
    Line("end to end, ms", "end_to_end", processes=(1,)),
)
# Several processes only where they share a topic: starting them takes most of a short run.
QUICK_LINES = tuple(
    line
    if line.role == "consume" and line.commits == "each"
    else replace(line, processes=(1,))
    for line in LINES
)
RATE_LINES = tuple(line for line in LINES if not line.is_timed)


@dataclass(frozen=True)
class Measure:
    """A measure of a system. CPU seconds are by side, latencies in seconds."""

    messages: int
    rate: float
    cpu_s: Mapping[str, float]
    latencies_s: Sequence[float] = ()

    def cpu_us(self, side: str) -> float:
        """Return the CPU time of a side in microseconds a message."""
        return 1e6 * self.cpu_s[side] / max(self.messages, 1)

    def total_cpu_us(self) -> float:
        """Return the CPU time of all sides in microseconds a message."""
        return sum(map(self.cpu_us, self.cpu_s))


@dataclass
class Results:
    """Measures of each round, by name of system, name of line, and number of processes.

    A round whose client failed has None, so that the rounds of two systems stay in step.
    """

    titles: Mapping[str, str] = field(default_factory=dict)  # of systems, by name
    measures: dict[tuple[str, str, int], list[Measure | None]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, system: str, line: Line, processes: int, measure: Measure | None) -> None:
        self.measures.setdefault((system, line.name, processes), []).append(measure)

    def successful(self, system: str, line: Line, processes: int) -> list[Measure]:
        """Return the measures that did not fail."""
        rounds = self.measures.get((system, line.name, processes), [])
        return [measure for measure in rounds if measure is not None]

    def pairs(
        self, system: str, earlier: str, line: Line, processes: int
    ) -> list[tuple[Measure, Measure]]:
        """Return the measures of a system and of its earlier revision, in the rounds in
        which neither failed.
        """
        rounds = zip(
            self.measures.get((system, line.name, processes), []),
            self.measures.get((earlier, line.earlier_name or line.name, processes), []),
            # A run that was stopped has a round more of some lines.
            strict=False,
        )
        return [(new, old) for new, old in rounds if new is not None and old is not None]

    def plain(self) -> list[dict[str, Any]]:
        """Return all measures as JSON takes them."""
        return [
            {
                "system": system,
                "line": line,
                "processes": processes,
                "rounds": [asdict(measure) if measure else None for measure in rounds],
            }
            for (system, line, processes), rounds in self.measures.items()
        ]


def with_spread(values: Sequence[float]) -> str:
    """Return the median, and the largest deviation from it in percent.

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


def ratio_of(
    pairs: Sequence[tuple[Measure, Measure]], figure: Callable[[Measure], float]
) -> str:
    """Return the median of a figure's ratio in each pair, with the least and the most.

    >>> rounds = [(Measure(1, new, {}), Measure(1, 100.0, {})) for new in (150, 110, 120)]
    >>> ratio_of(rounds, lambda m: m.rate), ratio_of([], lambda m: m.rate)
    ('1.20 (1.10 - 1.50)', '-')
    """
    # A denominator of 0: no tick of the clock fell into a short measure.
    quotients = [figure(new) / figure(old) for new, old in pairs if figure(old)]
    if not quotients:
        return "-"
    spread = Spread.of(quotients)
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
                has_rounds = (system, line.name, 1) in results.measures
                measures = results.successful(system, line, 1)
                row.append(latency_text(measures) if has_rounds else "-")
            else:
                rates = [
                    with_spread(
                        [m.rate for m in results.successful(system, line, processes)]
                    )
                    for processes in PROCESSES
                    if (system, line.name, processes) in results.measures
                ]
                row.append(" / ".join(rates) or "-")
        rows.append(row)
    heads = [f"{line.name}, p50 / p99" if line.is_timed else line.name for line in LINES]
    return markdown(["", *heads], rows)


def cpu_table(results: Results, processes: int) -> str:
    """Return the CPU time of each side, in microseconds a message."""
    rows = []
    for system, title in results.titles.items():
        cells = (
            cpu_text(results.successful(system, line, processes))
            if (system, line.name, processes) in results.measures
            else "-"
            for line in RATE_LINES
        )
        rows.append([title, *cells])
    return markdown(["", *(line.name for line in RATE_LINES)], rows)


def before_table(results: Results, pairs: Sequence[tuple[str, str]]) -> str:
    """Return ratios of systems to their earlier revision, of the rates, the CPU time of all
    sides, and that of the server alone. `pairs` has names of systems.
    """
    rows = []
    for system, earlier in pairs:
        for processes in PROCESSES:
            rate, total, server = [], [], []
            for line in RATE_LINES:
                measures = results.pairs(system, earlier, line, processes)
                rate.append(ratio_of(measures, lambda m: m.rate))
                total.append(ratio_of(measures, Measure.total_cpu_us))
                server.append(ratio_of(measures, lambda m: m.cpu_us("server")))
            title = f"{results.titles[system]}, {processes} process" + (
                "es" if processes > 1 else ""
            )
            rows += [
                [f"{title}: rate", *rate],
                [f"{title}: CPU of all sides", *total],
                [f"{title}: CPU of the broker", *server],
            ]
    return markdown(["", *(line.name for line in RATE_LINES)], rows)


def report_text(
    results: Results,
    *,
    versions: Mapping[str, str],
    skipped: Mapping[str, str],
    facts: Mapping[str, Any],
    pairs: Sequence[tuple[str, str]],
) -> str:
    """Return all tables in Markdown.

    `versions` is by title, `skipped` has reasons by name. `facts` are those of machine(),
    the plan, and the load after the run. `pairs` is described at before_table().
    """
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    plan = facts["plan"]
    rounds = f"{plan['rounds']} round" + ("s" if plan["rounds"] > 1 else "")
    parts = [
        f"Measured on {when}: {rounds} of {plan['seconds']:g} s, {facts['cores']} cores, "
        f"load average {facts['load']:g} before and {facts['load after']:g} after. "
        + "; ".join(f"{title}: {version}" for title, version in versions.items())
        + ".",
        "Messages a second with 1 / 4 client processes, median of the rounds and the "
        "largest deviation from it; end-to-end times are p50 / p99 in ms:",
        rates_table(results),
    ]
    for processes in PROCESSES:
        clients = f"{processes} client process" + ("es" if processes > 1 else "")
        parts += [
            f"CPU with {clients}, microseconds a message, client + server + database:",
            cpu_table(results, processes),
        ]
    if pairs:
        parts += [
            "Ratios to the earlier revision in the same round, median (least - most). "
            + " ".join(
                f"*{line.name}* is compared with *{line.earlier_name}* of the earlier "
                "revision."
                for line in LINES
                if line.earlier_name
            ),
            before_table(results, pairs),
        ]
    if skipped:
        reasons = "\n".join(f"* {name}: {reason}" for name, reason in skipped.items())
        parts.append(f"Skipped:\n\n{reasons}")
    return "\n\n".join(parts)
