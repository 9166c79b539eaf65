"""Unsteady tests: those that passed at the second try only, counted from run to run in unsteady.txt.

A line is `runs in a row | test | cause`. Who sees a new one writes its cause down, or mends it. A test that
passes at the first try loses its line.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

MOST_RUNS = 3  # in a row; the last of them fails
UNKNOWN = "not looked for yet"


@dataclass(frozen=True)
class Unsteady:
    """A test that needed a second try in so many runs in a row."""

    runs: int
    test: str
    cause: str = UNKNOWN

    def __str__(self) -> str:
        return f"{self.runs} | {self.test} | {self.cause}"


def read(file: Path) -> dict[str, Unsteady]:
    """Return the known ones by name. Raises ValueError on a line that is none."""
    found: dict[str, Unsteady] = {}
    for line in file.read_text().splitlines():
        if line and not line.startswith("#"):
            runs, test, cause = (part.strip() for part in line.split("|", 2))
            found[test] = Unsteady(int(runs), test, cause)
    return found


def count(unsteady: Collection[str], passed: Collection[str], file: Path) -> list[Unsteady]:
    """Write down a run's unsteady tests and return those that were so in too many runs.

    `passed` are the tests that passed at the first try; those of neither keep their line.
    """
    known = read(file)
    kept = {name: one for name, one in known.items() if name not in passed}
    for name in unsteady:
        before = known.get(name, Unsteady(0, name))
        kept[name] = replace(before, runs=before.runs + 1)
    if kept != known:
        head = [line for line in file.read_text().splitlines() if line.startswith("#")]
        file.write_text("\n".join([*head, *(str(kept[name]) for name in sorted(kept))]) + "\n")
    return [kept[name] for name in unsteady if kept[name].runs >= MOST_RUNS]
