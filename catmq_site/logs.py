"""Lines of the log: one entry is one line, and nothing that it quotes can look like another."""

from __future__ import annotations

import logging
import re
from typing import Any

CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
LINE_ENDS = re.compile("\r\n|[\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029]")
FORMAT = "%(asctime)s %(levelname)s %(process)d %(threadName)s %(name)s: %(message)s"
INDENT = "    "


def escaped(text: str) -> str:
    r"""Return a text without control characters: they could end the line, and begin a forged one.

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
