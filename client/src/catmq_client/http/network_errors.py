"""Network errors on the way to a broker, told apart by whether the request may have been carried out."""

from __future__ import annotations

import ssl
from typing import Any

import requests
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    LocationValueError,
    NewConnectionError,
    ProxyError,
    SSLError,
)

from catmq_client.errors import AnswerLost, CatmqError, ConnectFailed, OptionError


def network_error(error: HTTPError | requests.exceptions.RequestException, url: str) -> CatmqError:
    """ConnectFailed when nothing can have been sent, else AnswerLost."""
    if isinstance(error, SSLError) and _is_of_handshake(error):
        return ConnectFailed(f"TLS with {url} failed: {error}", retriable=False)
    if isinstance(error, NewConnectionError | ConnectTimeoutError | ProxyError):
        return ConnectFailed(f"{url} cannot be reached: {error}")
    if isinstance(error, LocationValueError | requests.exceptions.RequestException):
        return OptionError(str(error))
    return AnswerLost(f"no answer from {url}: {error}")


# How the reasons of OpenSSL begin that can only be met while a connection is made.
_HANDSHAKE = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNSUPPORTED_PROTOCOL", "NO_", "SSLV3_ALERT_HANDSHAKE")


def _is_of_handshake(error: BaseException) -> bool:
    """Return True if TLS was refused before a request could go: wrong certificate or port, no common version.

    Damage found later, in an answer, says nothing about whether the request was carried out.
    """
    seen: Any = error
    while isinstance(seen, BaseException):
        if isinstance(seen, ssl.SSLError):
            of_certificate = isinstance(seen, ssl.SSLCertVerificationError)
            return of_certificate or str(getattr(seen, "reason", None) or "").startswith(_HANDSHAKE)
        # urllib3 wraps it: SSLError(ssl.SSLError).
        seen = getattr(seen, "reason", None) or (seen.args[0] if seen.args else None)
    return False
