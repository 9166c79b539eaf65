"""The servers' logs of a trial: no request failed with a 500, and no traceback that the
faults do not explain."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.server import Server
from tests.support.verdicts import Found

LOGS = ("broker.log", "jobs.log")
TRACEBACK = "Traceback (most recent call last):"
WRONG = ("request failed, id", "WORKER TIMEOUT", "was sent SIGSEGV", "An answer broke off")
# How a traceback may end while databases and links fail: errors that say that something is
# away.
AWAY = (
    r"metadata\.errors\.\w*(Unavailable|Unknown|Draining|Busy)\b",
    r"messagestore\.[a-z_.]+\.(Unreachable|Ambiguous|RolledBack|Refused|SlowNode)\b",
    # connection lost, refused, killed or out of step; interrupted; lock waits; deadlocks;
    # server going down
    r"(django\.db\.utils|MySQLdb)\.\w*(OperationalError|InterfaceError): "
    r"\(?(0|1020|1040|1053|1205|1213|1317|1927|1969|2002|2003|2006|2013|2014|2055|4031)\b",
    r"(ConnectionResetError|BrokenPipeError|TimeoutError|ConnectionRefusedError)\b",
)


@dataclass
class LogMarks:
    """The ends of some servers' logs when it was made; what is older is none of its
    business.
    """

    servers: Iterable[Server]
    starts: dict[Path, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for server in self.servers:
            for name in LOGS:
                path = server.data / "log" / name
                self.starts[path] = path.stat().st_size if path.exists() else 0

    def found(self, expected: Iterable[str] = AWAY) -> list[Found]:
        """Return what is wrong in what was logged since. A log that was cut back meanwhile
        is read whole.
        """
        listed = list(expected)
        return [
            one
            for path in self.starts
            for one in examined(f"{path}", self._since(path), listed)
        ]

    def _since(self, path: Path) -> str:
        if not path.exists():
            return ""
        start = self.starts[path] if path.stat().st_size >= self.starts[path] else 0
        with path.open("rb") as file:
            file.seek(start)
            return file.read().decode(errors="replace")


def examined(name: str, text: str, expected: Iterable[str] = AWAY) -> Iterator[Found]:
    """Return what is wrong in a log."""
    lines = text.splitlines()
    explained = re.compile("|".join(f"(?:{one})" for one in expected))
    for index, line in enumerate(lines):
        place = f"{name}, {index + 1} lines on"
        if any(sign in line for sign in WRONG):
            yield Found("log", place, line.strip())
        elif line.strip() == TRACEBACK:
            end = _end(lines, index)
            if not explained.match(end):
                yield Found("log", place, f"an unexpected traceback: {end}")


def _end(lines: list[str], index: int) -> str:
    """Return the line that names a traceback's exception: the first as far to the left as
    line `index`.

    Servers indent the whole of a traceback behind its entry (catmq_site.logs).
    """
    left = _indent(lines[index])
    for line in lines[index + 1 :]:
        if line.strip() and _indent(line) <= left:
            return line.strip()
    return "it has no end"


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
