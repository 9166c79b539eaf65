"""Refusals by the worker itself, before a view is called, as the same problem documents
that the API returns.
"""

from __future__ import annotations

import re
import time
from http import HTTPStatus
from typing import Any

from gunicorn.http import errors

from metadata.errors import Code

# The first match counts. Errors that are not listed are not the client's fault.
STATUS: tuple[tuple[type[Exception], HTTPStatus], ...] = (
    (errors.InvalidResponseHeader, HTTPStatus.INTERNAL_SERVER_ERROR),
    (errors.InvalidResponseHeaderName, HTTPStatus.INTERNAL_SERVER_ERROR),
    (errors.ConfigurationProblem, HTTPStatus.INTERNAL_SERVER_ERROR),
    (errors.LimitRequestLine, HTTPStatus.REQUEST_URI_TOO_LONG),
    (errors.LimitRequestHeaders, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE),
    (errors.UnsupportedTransferCoding, HTTPStatus.NOT_IMPLEMENTED),
    (errors.ExpectationFailed, HTTPStatus.EXPECTATION_FAILED),
    (errors.ParseException, HTTPStatus.BAD_REQUEST),
)
CODE_OF_STATUS = {
    HTTPStatus.INTERNAL_SERVER_ERROR: Code.INTERNAL,
    HTTPStatus.REQUEST_URI_TOO_LONG: Code.TOO_LARGE,
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: Code.TOO_LARGE,
    HTTPStatus.NOT_IMPLEMENTED: Code.NOT_IMPLEMENTED,
    HTTPStatus.REQUEST_TIMEOUT: Code.REQUEST_TIMEOUT,
}
LOG_EVERY_S = 10.0  # between two log lines about closed connections
MAX_CHARS = 200  # of a text in an answer or a log line
# The text of a parser's error may quote a header line without its colon, or a head without
# line ends.
CREDENTIALS = re.compile(r"((?:Authorization|Cookie)\b).*|catmq_[\w-]+", re.IGNORECASE)


def http_status(error: Exception) -> HTTPStatus:
    """Return the HTTP status of an error of the HTTP parser, 500 for any other error."""
    return next(
        (status for kind, status in STATUS if isinstance(error, kind)), HTTPStatus(500)
    )


def shorten_text(error: Exception) -> str:
    """Return the text of an error without credentials, short enough for an answer and for a
    log line.
    """
    text = CREDENTIALS.sub(lambda match: f"{match[1] or ''} …", str(error))
    return text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]} …"


def build_refusal(error: Exception) -> bytes:
    """Return the complete HTTP answer to a request that could not be read. It ends the
    connection.
    """
    # The text of an unexpected error may hold internals, so only the log gets it.
    status = http_status(error)
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        return _encode(status, "This is a fault of the broker, not of the request.")
    return _encode(status, f"{shorten_text(error)}.")


def build_timeout_answer(limit_s: float) -> bytes:
    """Return the complete HTTP answer to a request that did not arrive in time."""
    return _encode(
        HTTPStatus.REQUEST_TIMEOUT, f"The request did not arrive within {limit_s:.0f} s."
    )


def _encode(status: HTTPStatus, detail: str) -> bytes:
    # Imported late: it needs the settings, which gunicorn's master does not have.
    from brokerapi.http.errors import encode_problem

    code = CODE_OF_STATUS.get(status, Code.MALFORMED)
    retriable = status == HTTPStatus.REQUEST_TIMEOUT
    body = encode_problem(status=status, code=code, detail=detail, retriable=retriable)
    head = (
        f"HTTP/1.1 {status} {status.phrase}\r\nConnection: close\r\n"
        "Content-Type: application/problem+json\r\n"
        "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nContent-Length: "
        f"{len(body)}\r\n\r\n"
    )
    return head.encode() + body


class EvictionLog:
    """Counts connections that the worker closed, by cause, and logs the counts at
    intervals.
    """

    def __init__(self, log: Any, request_s: float) -> None:
        self._log, self._request_s = log, request_s
        self._counts = {"late": 0, "crowded": 0, "unread": 0}
        self._logged_at = float("-inf")  # time.monotonic()

    def count(self, cause: str, address: str) -> None:
        """Count a closed connection of an address, and log the counts if the last line is
        old enough.
        """
        self._counts[cause] += 1
        now = time.monotonic()
        if now - self._logged_at >= LOG_EVERY_S:
            self._logged_at = now
            self._log.warning(
                "Connections ended in the last %d s or more, the last of %s: %d whose "
                "request did not arrive within %d s, %d because too many waited, %d "
                "whose client did not take its answers",
                LOG_EVERY_S, address, self._counts["late"], self._request_s,
                self._counts["crowded"],
                self._counts["unread"],
            )  # fmt: skip
            self._counts = dict.fromkeys(self._counts, 0)
