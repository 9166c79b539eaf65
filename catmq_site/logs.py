"""Lines of the log: one entry is one line, and nothing that it quotes can look like
another.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from typing import Any

from metadata.rules.rates import Bucket

CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
LINE_ENDS = re.compile("\r\n|[\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029]")
FORMAT = "%(asctime)s %(levelname)s %(process)d %(threadName)s %(name)s: %(message)s"
INDENT = "    "
# Loggers whose lines anybody causes by a request, also without an account.
BY_REQUESTS = (
    *("django", "axes", "brokerapi", "portal", "gunicorn", "catmq_site.server.worker"),
    "metadata.membership",  # of keys that join and leave again and again
)
# its lines have stack traces of Django's own code, which tell nothing
REFUSALS = "django.security"
MOST_AT_ONCE = 30  # lines of one cause
LINES_PER_S = 0.5  # of one cause, from then on
MOST_CHARS = 2_000  # of such a line, without its stack trace


def escaped(text: str) -> str:
    r"""Return a text without control characters: they could end the line, and begin a
    forged one.

    >>> escaped("GET /\n2026-01-01 ERROR")
    'GET /\\n2026-01-01 ERROR'
    """
    return CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


class OneLine(logging.Formatter):
    """Writes each message on one line; the lines of a stack trace are indented behind it."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return escaped(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:
        return _indented(super().formatStack(stack_info))


def _indented(text: str) -> str:
    return "\n".join(INDENT + escaped(line) for line in LINE_ENDS.split(text))


class BoundedByCause(logging.Filter):
    """Passes a limited number of lines of each cause that requests have, and counts those
    that it leaves out.

    A cause is a line of code that logs. So whoever sends wrong requests without end fills
    no disk, and the lines of other causes are still there.
    """

    def __init__(self) -> None:
        super().__init__()
        self._guard = threading.Lock()
        self._buckets: dict[tuple[str, str, int], Bucket] = {}
        self._left_out: dict[tuple[str, str, int], int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return False for a line that is one too many; shorten the others."""
        if not record.name.startswith(BY_REQUESTS):
            return True
        left_out = self._admit((record.name, record.pathname, record.lineno))
        if left_out is None:
            return False
        text = record.getMessage()
        if len(text) > MOST_CHARS:
            text = f"{text[:MOST_CHARS]} …"
        record.msg = (
            f"{text} ({left_out} more of these were not written)" if left_out else text
        )
        record.args = ()
        if record.name.startswith(REFUSALS):
            record.exc_info = record.exc_text = None
        return True

    def _admit(self, cause: tuple[str, str, int]) -> int | None:
        """Return how many lines were left out since the last one that passed; None for one
        too many.
        """
        now = time.monotonic()
        with self._guard:
            bucket = self._buckets.setdefault(cause, Bucket(level=MOST_AT_ONCE, at=now))
            bucket.level = min(MOST_AT_ONCE, bucket.level + (now - bucket.at) * LINES_PER_S)
            bucket.at = now
            if bucket.level < 1:
                self._left_out[cause] = self._left_out.get(cause, 0) + 1
                return None
            bucket.level -= 1
            return self._left_out.pop(cause, 0)
