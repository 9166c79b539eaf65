"""Check the server logs of a trial: no request failed with 500, and faults explain every
traceback.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.server import Server
from tests.support.verdicts import Finding

LOGS = ("broker.log", "jobs.log")
TRACEBACK = "Traceback (most recent call last):"
ENTRY = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ")
FAILURE_SIGNS = (
    "request failed, id",
    "WORKER TIMEOUT",
    "was sent SIGSEGV",
    "An answer broke off",
)
# Last lines of tracebacks that are expected while databases and links fail.
UNAVAILABLE_ERRORS = (
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
    """The ends of server logs when it was created. Older entries are ignored."""

    servers: Iterable[Server]
    starts: dict[Path, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for server in self.servers:
            for name in LOGS:
                path = server.data / "log" / name
                self.starts[path] = path.stat().st_size if path.exists() else 0

    def found(self, expected: Iterable[str] = UNAVAILABLE_ERRORS) -> list[Finding]:
        """Return the failures logged since. A log that was truncated in between is read
        from its start.
        """
        expected_list = list(expected)
        return [
            failure
            for path in self.starts
            for failure in examined(f"{path}", self._since(path), expected_list)
        ]

    def _since(self, path: Path) -> str:
        if not path.exists():
            return ""
        start = self.starts[path] if path.stat().st_size >= self.starts[path] else 0
        with path.open("rb") as file:
            file.seek(start)
            return file.read().decode(errors="replace")


def examined(
    name: str, text: str, expected: Iterable[str] = UNAVAILABLE_ERRORS
) -> Iterator[Finding]:
    """Yield the failures in a log."""
    lines = text.splitlines()
    explained = re.compile("|".join(f"(?:{pattern})" for pattern in expected))
    for index, line in enumerate(lines):
        place = f"{name}, {index + 1} lines on"
        if any(sign in line for sign in FAILURE_SIGNS):
            yield Finding("log", place, line.strip())
        elif line.strip() == TRACEBACK:
            end = _end(lines, index)
            if not explained.match(end):
                yield Finding("log", place, f"an unexpected traceback: {end}")


def _end(lines: list[str], index: int) -> str:
    """Return the last line of a traceback, which names its exception.

    It is the first line indented as little as line `index`: servers indent a whole
    traceback below its entry (catmq_site.logs). A process that dies writes its traceback
    line by line, and entries of other processes may stand between these.
    """
    indent = _indent(lines[index])
    for line in lines[index + 1 :]:
        if line.strip() and _indent(line) <= indent and not ENTRY.match(line):
            return line.strip()
    return "it has no end"


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
