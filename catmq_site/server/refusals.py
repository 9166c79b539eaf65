"""Refusals by the worker itself, before any view is asked: the same problems as the API's."""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import Any

from gunicorn.http import errors

from metadata.errors import Code

# The first that fits counts; what is not listed here is no fault of the client.
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
CODE = {
    HTTPStatus.INTERNAL_SERVER_ERROR: Code.INTERNAL,
    HTTPStatus.REQUEST_URI_TOO_LONG: Code.TOO_LARGE,
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: Code.TOO_LARGE,
    HTTPStatus.NOT_IMPLEMENTED: Code.NOT_IMPLEMENTED,
}
SAID_EVERY_S = 10.0  # between two lines of the log about clients that were sent away
MOST_CHARS = 200  # of what is said, in the answer and in the log


def status_of(error: Exception) -> HTTPStatus:
    """Return the HTTP status for what the HTTP parser raised, 500 for everything else."""
    return next(
        (status for kind, status in STATUS if isinstance(error, kind)), HTTPStatus(500)
    )


def said(error: Exception) -> str:
    """Return an error in words that are short enough for an answer and a line of the log."""
    text = str(error)
    return text if len(text) <= MOST_CHARS else f"{text[:MOST_CHARS]} …"


def answer(error: Exception) -> bytes:
    """Return the whole HTTP answer to a request that could not be read; the connection ends
    with it.
    """
    status = status_of(error)
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        return _whole(status, "This is a fault of the broker, not of the request.")
    return _whole(status, f"{said(error)}.")


def too_late(limit_s: float) -> bytes:
    """Return the whole HTTP answer to a request that did not come to its end in time."""
    return _whole(
        HTTPStatus.REQUEST_TIMEOUT, f"The request did not arrive within {limit_s:.0f} s."
    )


def _whole(status: HTTPStatus, detail: str) -> bytes:
    from brokerapi.http.errors import (
        encode_problem,  # its imports need the settings, which gunicorn's master has not
    )

    code = CODE.get(
        status,
        Code.REQUEST_TIMEOUT if status == HTTPStatus.REQUEST_TIMEOUT else Code.MALFORMED,
    )
    retriable = status == HTTPStatus.REQUEST_TIMEOUT
    body = encode_problem(status=status, code=code, detail=detail, retriable=retriable)
    head = (
        f"HTTP/1.1 {status} {status.phrase}\r\nConnection: close\r\n"
        "Content-Type: application/problem+json\r\n"
        "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nContent-Length: "
        f"{len(body)}\r\n\r\n"
    )
    return head.encode() + body


class SentAway:
    """Counts connections that the worker ended, by cause, and logs them now and then."""

    def __init__(self, log: Any, request_s: float) -> None:
        self._log, self._request_s = log, request_s
        self._counts = {"late": 0, "crowded": 0, "unread": 0}
        self._logged_at = float("-inf")  # time.monotonic()

    def note(self, cause: str, address: str) -> None:
        """Count a connection of an address."""
        self._counts[cause] += 1
        now = time.monotonic()
        if now - self._logged_at >= SAID_EVERY_S:
            self._logged_at = now
            self._log.warning(
                "Connections ended in the last %d s or more, the last of %s: %d whose "
                "request did not arrive "
                "within %d s, %d because too many waited, %d whose client did not take its answers",
                SAID_EVERY_S, address, self._counts["late"], self._request_s,
                self._counts["crowded"],
                self._counts["unread"],
            )  # fmt: skip
            self._counts = dict.fromkeys(self._counts, 0)
