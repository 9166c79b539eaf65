"""Connections that send a request in one piece and read its answer with little work.

http.client writes head and body one after the other: the broker wakes up for the head,
reads it, and waits for the rest. That costs both sides more than what is in most requests.
urllib3 makes and keeps the connections, with their certificates, proxies and time limits.
Errors on the way are told apart by whether the request may have been carried out.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from http.client import HTTPException
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import requests
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    LocationValueError,
    NewConnectionError,
    ProxyError,
    SSLError,
)

from catmq_client.errors import AnswerLost, CatmqError, ConnectFailed, OptionError
from catmq_client.http import answers

if TYPE_CHECKING:
    _Base = HTTPConnection
else:
    _Base = object

# What must go out within the time limit of a connection: `sendall` counts the time of all
# it is given, and a
# batch of some megabytes may take longer than the other side takes to be known as dead.
SLICE_BYTES = 256 << 10
_WITH_BODY = ("POST", "PUT", "PATCH")


class _Whole(_Base):
    """Speaks HTTP in place of http.client, which still opens and closes the connection."""

    _asked = ""  # the method of the request whose answer is awaited
    _takes_gzip = False
    _cut: OSError | None = None  # why the request could not be sent whole

    def request(  # type: ignore[override]
        self,
        method: str,
        url: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        **_: Any,
    ) -> None:
        """Send a request; its body is at hand, so it is no larger than memory.

        One that cannot be sent whole may have an answer all the same (too large):
        `getresponse` sees to it.
        Raises ValueError for a header that would be more than one.
        """
        lines = [f"{method} {url} HTTP/1.1", f"Host: {self._host_of(url)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        if body is None and method in _WITH_BODY:
            lines.append("Content-Length: 0")  # some proxies refuse it without
        head = "\r\n".join(lines)
        if head.count("\n") != len(lines) - 1 or head.count("\r") != len(lines) - 1:
            raise ValueError("A header, or the path, has a line break in it.")
        whole = head.encode("latin-1") + b"\r\n\r\n" + (body or b"")
        self._asked = method
        self._takes_gzip = "gzip" in (headers or {}).get("Accept-Encoding", "")
        if self.sock is None:
            self.connect()
        self.sock.settimeout(self.timeout)
        self._cut = None
        try:
            for first in range(0, len(whole), SLICE_BYTES):
                self.sock.sendall(whole[first : first + SLICE_BYTES])
        except OSError as error:
            self._cut = error

    def getresponse(self) -> answers.Answer:  # type: ignore[override]
        """The answer.

        Raises HTTPException and OSError, and NewConnectionError if the request was not sent
        whole: nobody can have carried it out.
        """
        if isinstance(self._cut, TimeoutError):
            raise NewConnectionError(
                self, "the request was not taken in time"
            ) from self._cut
        try:
            answer = self._read()
        except (HTTPException, OSError) as error:
            if self._cut is None:
                raise
            raise NewConnectionError(
                self, f"the connection broke in the request: {self._cut}"
            ) from error
        if not answer.stays_open:
            self.close()
        return answer

    def _read(self) -> answers.Answer:
        self.sock.settimeout(self.timeout)
        return answers.read(
            self.sock,
            method=self._asked,
            timeout_s=self.timeout,
            takes_gzip=self._takes_gzip,
        )

    def _host_of(self, url: str) -> str:
        """The Host of a request: that of its URL if a proxy gets it whole."""
        if not url.startswith("/"):
            return urlsplit(url).netloc.rpartition("@")[2]
        host, port = (
            (self._tunnel_host, self._tunnel_port)
            if self._tunnel_host
            else (self.host, self.port)
        )
        shown = f"[{host}]" if ":" in host and not host.startswith("[") else host
        return shown if port in (None, self.default_port) else f"{shown}:{port}"


class _Plain(_Whole, HTTPConnection):
    pass


class _Tls(_Whole, HTTPSConnection):
    pass


def send_whole(pool: HTTPConnectionPool) -> None:
    """Make the connections that a pool will open send each request in one piece."""
    kind: Any = _Tls if isinstance(pool, HTTPSConnectionPool) else _Plain
    pool.ConnectionCls = kind


# Reasons of OpenSSL for certificates that only strict clients refuse, as Python is from
# 3.13 on.
_STRICT = (
    "Missing Authority Key Identifier",
    "Missing Subject Key Identifier",
    "does not include key usage",
    "not marked critical",
)
_STRICT_REMEDY = (
    ". Python 3.13 and newer require this extension: issue the certificate and that of its "
    "CA with it "
    "(openssl verify -x509_strict checks both)"
)


def network_error(
    error: HTTPError | requests.exceptions.RequestException, url: str
) -> CatmqError:
    """ConnectFailed when nothing can have been sent, else AnswerLost."""
    if isinstance(error, SSLError) and _is_of_handshake(error):
        remedy = _STRICT_REMEDY if any(reason in str(error) for reason in _STRICT) else ""
        return ConnectFailed(f"TLS with {url} failed: {error}{remedy}", retriable=False)
    if isinstance(error, NewConnectionError | ConnectTimeoutError | ProxyError):
        return ConnectFailed(f"{url} cannot be reached: {in_words(error)}")
    if isinstance(error, LocationValueError | requests.exceptions.RequestException):
        return OptionError(str(error))
    return AnswerLost(f"no answer from {url}: {in_words(error)}")


# How urllib3 names the connection or pool in front of what happened.
_OBJECT = re.compile(r"^\w+\(host=[^)]*\): ")


def in_words(error: BaseException) -> str:
    """Return what happened, as the system says it where it does.

    >>> in_words(ValueError("HTTPConnectionPool(host='db', port=80): Read timed out."))
    'Read timed out.'
    """
    said = getattr(error.__cause__, "strerror", None)
    return str(said) if said else _OBJECT.sub("", str(error))


# How the reasons of OpenSSL begin that can only be met while a connection is made.
_HANDSHAKE = (
    "WRONG_VERSION_NUMBER",
    "HTTP_REQUEST",
    "UNSUPPORTED_PROTOCOL",
    "NO_",
    "SSLV3_ALERT_HANDSHAKE",
)


def _is_of_handshake(error: BaseException) -> bool:
    """Return True if TLS was refused before a request could go: wrong certificate or port,
    no common version.

    Damage found later, in an answer, says nothing about whether the request was carried
    out.
    """
    seen: Any = error
    while isinstance(seen, BaseException):
        if isinstance(seen, ssl.SSLError):
            of_certificate = isinstance(seen, ssl.SSLCertVerificationError)
            return of_certificate or str(getattr(seen, "reason", None) or "").startswith(
                _HANDSHAKE
            )
        # urllib3 wraps it: SSLError(ssl.SSLError).
        seen = getattr(seen, "reason", None) or (seen.args[0] if seen.args else None)
    return False


def checked_verify(verify: bool | str, *, name: str = "verify") -> bool | str:
    """Return what certificates are verified with: `verify`, or the file that CATMQ_CA_FILE
    names.

    Raises OptionError, which calls the value `name`, if it has no CA certificates.
    """
    path = verify
    if verify is True and os.environ.get("CATMQ_CA_FILE"):
        name, path = "CATMQ_CA_FILE", os.environ["CATMQ_CA_FILE"]
    if isinstance(path, str):
        where = {"capath" if os.path.isdir(path) else "cafile": path}
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(**where)
        except ssl.SSLError:
            raise OptionError(f"{name}={path!r}: the file has no CA certificates") from None
        except OSError as error:
            raise OptionError(f"{name}={path!r}: {error.strerror}") from None
    return path
