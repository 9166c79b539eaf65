"""What measured times and rates are boiled down to, and how they are shown. Pure, but for
`machine`.
"""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


def percentile(rising: Sequence[float], percent: float) -> float:
    """The value below which so many percent lie.

    >>> percentile(range(1, 101), 50), percentile(range(1, 101), 99), percentile([7.0], 99.9)
    (51, 100, 7.0)
    """
    return rising[min(len(rising) - 1, int(len(rising) * percent / 100))]


@dataclass(frozen=True, slots=True)
class Latencies:
    """How long things took, ms; `count` is how many there were."""

    count: int
    p50: float
    p95: float
    p99: float
    p999: float
    max: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Latencies:
        """Of times in seconds, in any order. Raises ValueError if there are none."""
        if not seconds:
            raise ValueError("nothing was timed")
        rising = sorted(1000 * one for one in seconds)
        p50, p95, p99, p999 = (
            percentile(rising, percent) for percent in (50, 95, 99, 99.9)
        )
        return cls(len(rising), p50, p95, p99, p999, rising[-1])

    def __str__(self) -> str:
        return "".join(
            f"{one:10,.1f}" for one in (self.p50, self.p95, self.p99, self.p999, self.max)
        )


LATENCY_HEADS = "".join(
    f"{head:>10}" for head in ("p50 ms", "p95 ms", "p99 ms", "p99.9 ms", "max ms")
)


def ratios(mine: Sequence[float], limits: Sequence[float]) -> list[float]:
    """One of each round's pair.

    >>> ratios([50.0, 80.0], [100.0, 100.0])
    [0.5, 0.8]
    """
    return [one / limit for one, limit in zip(mine, limits, strict=True)]


@dataclass(frozen=True, slots=True)
class Spread:
    """The middle of what rounds gave, and how far they lie apart."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        return cls(statistics.median(values), min(values), max(values))

    def reaches(self, target: float) -> bool:
        """Whether the target is met; one that lies within the spread counts as met."""
        return self.most >= target


def plain(figure: Any) -> Any:
    """A figure as JSON takes it: dataclasses become objects, all else stays."""
    if isinstance(figure, Mapping):
        return {str(name): plain(one) for name, one in figure.items()}
    if isinstance(figure, list | tuple):
        return [plain(one) for one in figure]
    return asdict(figure) if hasattr(figure, "__dataclass_fields__") else figure


def machine() -> dict[str, Any]:
    """Facts about where a benchmark runs; `load` is the load average of a minute when it is
    asked.
    """
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    memory = Path("/proc/meminfo").read_text().split()[1]
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gb": round(int(memory) / (1 << 20), 1),
        "load": round(os.getloadavg()[0], 2),
    }
