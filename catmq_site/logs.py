"""Log lines: an entry is a single line, and no text in it can look like another entry."""

from __future__ import annotations

import logging
import re
import threading
import time
from typing import Any

from metadata.installation import name_programs
from metadata.rules.rates import Bucket

CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
LINE_ENDS = re.compile("\r\n|[\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029]")
FORMAT = "%(asctime)s %(levelname)s %(process)d %(threadName)s %(name)s: %(message)s"
INDENT = "    "
# Loggers whose lines any request may cause, also without an account.
REQUEST_LOGGERS = (
    *("django", "axes", "brokerapi", "portal", "gunicorn", "catmq_site.server.worker"),
    "metadata.membership",  # a key may join and leave repeatedly
)
# Its lines have stack traces of Django's own code, which do not help.
REFUSAL_LOGGER = "django.security"
BURST_LINES = 30  # per cause
LINES_PER_S = 0.5  # per cause after a burst
MAX_CHARS = 2_000  # of such a line, without its stack trace


def escape_controls(text: str) -> str:
    """Return a text with escaped control characters, which could end the line and forge
    another entry.

    >>> escape_controls("GET /\\n2026-01-01 ERROR")
    'GET /\\\\n2026-01-01 ERROR'
    """
    return CONTROL.sub(lambda control: repr(control[0])[1:-1], text)


class OneLine(logging.Formatter):
    """Formats each message as a single line, with an indented stack trace below it."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return name_programs(escape_controls(super().formatMessage(record)))

    def formatException(self, ei: Any) -> str:
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:
        return _indented(super().formatStack(stack_info))


def _indented(text: str) -> str:
    return "\n".join(INDENT + escape_controls(line) for line in LINE_ENDS.split(text))


class BoundedByCause(logging.Filter):
    """Limits the rate of log lines that requests cause, per cause, and counts the omitted
    lines.

    A cause is a line of code that logs. A client that sends endless bad requests cannot
    fill the disk, and lines of other causes still appear.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._buckets: dict[tuple[str, str, int], Bucket] = {}
        self._omitted_counts: dict[tuple[str, str, int], int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return False for a line over the limit. Shorten the others."""
        if not record.name.startswith(REQUEST_LOGGERS):
            return True
        omitted_count = self._admit((record.name, record.pathname, record.lineno))
        if omitted_count is None:
            return False
        text = record.getMessage()
        if len(text) > MAX_CHARS:
            text = f"{text[:MAX_CHARS]} …"
        # The text is formatted: with `args`, the handler would format it again.
        record.msg = (
            f"{text} ({omitted_count} more of these were not written)"
            if omitted_count
            else text
        )
        record.args = ()
        if record.name.startswith(REFUSAL_LOGGER):
            record.exc_info = record.exc_text = None
        return True

    def _admit(self, cause: tuple[str, str, int]) -> int | None:
        """Return the number of lines omitted since the last line that passed, None if this
        line is over the limit.
        """
        now = time.monotonic()
        with self._lock:
            bucket = self._buckets.setdefault(cause, Bucket(level=BURST_LINES, at=now))
            bucket.level = min(BURST_LINES, bucket.level + (now - bucket.at) * LINES_PER_S)
            bucket.at = now
            if bucket.level < 1:
                self._omitted_counts[cause] = self._omitted_counts.get(cause, 0) + 1
                return None
            bucket.level -= 1
            return self._omitted_counts.pop(cause, 0)
