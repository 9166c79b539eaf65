"""Log lines: an entry is a single line, and no text in it can look like another entry.

`OneLine` writes text for people, `JsonLine` an object for programs; CATMQ_LOG_FORMAT chooses.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import time
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from metadata import log_context
from metadata.config import config
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
# Fields that the line of a request has in addition, see request_log.py.
REQUEST_FIELDS = ("method", "path", "status", "duration_ms", "address", "bytes")


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


class JsonLine(logging.Formatter):
    """Formats each entry as a JSON object on a single line, stack traces included.

    An entry has `time` (UTC), `level`, `logger`, `message`, `process` and `thread`, the fields
    of log_context.FIELDS that are set, what a request's line adds (REQUEST_FIELDS), and
    `error` and `stack` for an exception. A field without a value is left out.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line. It is ASCII only, so that any locale can write it, and a reader
        finds a line end nowhere else.
        """
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(
                timespec="milliseconds"
            ),
            "level": record.levelname,
            "logger": record.name,
            "message": name_programs(record.getMessage()),
            "process": record.process,
            "thread": record.threadName,
        }
        context = log_context.current_fields()
        for name in log_context.FIELDS:
            if (value := context.get(name)) is not None:
                entry[name] = str(value)
        for name in REQUEST_FIELDS:
            if (value := getattr(record, name, None)) is not None:
                entry[name] = value
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            entry["error"] = f"{type(error).__name__}: {error}"
            entry["stack"] = self.formatException(record.exc_info)
        elif record.stack_info:
            entry["stack"] = record.stack_info
        return json.dumps(entry, default=str)


def make_formatter() -> logging.Formatter:
    """Return the formatter that CATMQ_LOG_FORMAT chooses."""
    return JsonLine() if config.log_format == "json" else OneLine(FORMAT)


def log_everything_as_json() -> None:
    """Log warnings and uncaught exceptions, which Python prints as several lines of text.

    With text logs, nothing is changed.
    """
    if config.log_format != "json":
        return
    logging.captureWarnings(True)
    log = logging.getLogger("catmq_site")

    def log_uncaught(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        # Ctrl-C is no error.
        if issubclass(kind, KeyboardInterrupt):
            sys.__excepthook__(kind, error, trace)
            return
        log.critical("The process ends", exc_info=(kind, error, trace))

    def log_in_thread(failure: threading.ExceptHookArgs) -> None:
        if failure.exc_value is not None:
            error = failure.exc_value
            name = failure.thread.name if failure.thread else "?"
            log.error("Thread %s has ended", name, exc_info=error)

    sys.excepthook = log_uncaught
    threading.excepthook = log_in_thread


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
