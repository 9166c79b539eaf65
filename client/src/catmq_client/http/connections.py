"""Connections that send a request in a single piece and read its answer with little work.

http.client writes head and body separately: the broker wakes up for the head, reads it, and
waits for the rest. That costs both sides more than the content of most requests. urllib3
opens and keeps the connections, with their certificates, proxies and time limits.

Network errors are classified by whether the request may have been carried out: a
ConnectFailed was certainly not sent whole, an AnswerLost may have been.
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

# Bytes per `sendall`, whose timeout covers all bytes of the call. A batch of some megabytes
# may take longer than the time after which a silent peer counts as dead.
SLICE_BYTES = 256 << 10
_WITH_BODY = ("POST", "PUT", "PATCH")


class _WholeRequests(_Base):
    """Mixin that sends requests and reads answers in place of http.client.

    http.client still opens and closes the connection.
    """

    # Method of the request whose answer comes next: the answer to HEAD has no body.
    _method = ""
    _takes_gzip = False
    # Error that kept the request from being sent whole.
    _send_error: OSError | None = None

    def request(  # type: ignore[override]
        self,
        method: str,
        url: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        **_: Any,
    ) -> None:
        """Send a request. Its body is in memory, so it is not streamed.

        A broker may answer a request that it does not read to the end (too large). So an
        error of sending is kept for `getresponse`, which looks for an answer first. Raises
        ValueError if a header or the path has a line break, which would add headers.
        """
        lines = [f"{method} {url} HTTP/1.1", f"Host: {self._host_header(url)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        if body is None and method in _WITH_BODY:
            # Some proxies refuse a request of these methods without a length.
            lines.append("Content-Length: 0")
        head = "\r\n".join(lines)
        # http.client would check this; here a line break could add headers or a request.
        if head.count("\n") != len(lines) - 1 or head.count("\r") != len(lines) - 1:
            raise ValueError("A header, or the path, has a line break in it.")
        data = head.encode("latin-1") + b"\r\n\r\n" + (body or b"")
        self._method = method
        self._takes_gzip = "gzip" in (headers or {}).get("Accept-Encoding", "")
        if self.sock is None:
            self.connect()
        self.sock.settimeout(self.timeout)
        self._send_error = None
        try:
            for start in range(0, len(data), SLICE_BYTES):
                self.sock.sendall(data[start : start + SLICE_BYTES])
        except OSError as error:
            self._send_error = error

    def getresponse(self) -> answers.Answer:  # type: ignore[override]
        """Return the answer.

        Raises HTTPException and OSError, and NewConnectionError if the request was not sent
        whole: then no broker can have carried it out.
        """
        # A broker that does not read the request in time does not answer it either.
        if isinstance(self._send_error, TimeoutError):
            raise NewConnectionError(
                self, "the request was not taken in time"
            ) from self._send_error
        try:
            self.sock.settimeout(self.timeout)
            answer = answers.read_answer(
                self.sock,
                method=self._method,
                timeout_s=self.timeout,
                takes_gzip=self._takes_gzip,
            )
        except (HTTPException, OSError) as error:
            if self._send_error is None:
                raise
            raise NewConnectionError(
                self, f"the connection broke in the request: {self._send_error}"
            ) from error
        if not answer.stays_open:
            self.close()
        return answer

    def _host_header(self, url: str) -> str:
        """Return the Host of a request: that of its URL if a proxy gets the whole URL."""
        if not url.startswith("/"):
            return urlsplit(url).netloc.rpartition("@")[2]
        host, port = (
            (self._tunnel_host, self._tunnel_port)
            if self._tunnel_host
            else (self.host, self.port)
        )
        # An IPv6 address needs brackets.
        name = f"[{host}]" if ":" in host and not host.startswith("[") else host
        return name if port in (None, self.default_port) else f"{name}:{port}"


class _PlainConnection(_WholeRequests, HTTPConnection):
    pass


class _TlsConnection(_WholeRequests, HTTPSConnection):
    pass


def send_whole(pool: HTTPConnectionPool) -> None:
    """Make the connections that a pool will open send each request in a single piece."""
    kind: Any = (
        _TlsConnection if isinstance(pool, HTTPSConnectionPool) else _PlainConnection
    )
    pool.ConnectionCls = kind


# Reasons of OpenSSL for refusing a certificate that only strict clients give. Python is
# strict from 3.13 on.
_STRICT_REASONS = (
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
    """Return ConnectFailed if the request cannot have been carried out, else AnswerLost.

    A wrong URL is an OptionError.
    """
    if isinstance(error, SSLError) and _is_handshake_failure(error):
        remedy = (
            _STRICT_REMEDY
            if any(reason in str(error) for reason in _STRICT_REASONS)
            else ""
        )
        return ConnectFailed(f"TLS with {url} failed: {error}{remedy}", retriable=False)
    if isinstance(error, NewConnectionError | ConnectTimeoutError | ProxyError):
        return ConnectFailed(f"{url} cannot be reached: {system_message(error)}")
    if isinstance(error, LocationValueError | requests.exceptions.RequestException):
        return OptionError(str(error))
    return AnswerLost(f"no answer from {url}: {system_message(error)}")


# urllib3 puts the connection or pool before the text of an error.
_URLLIB3_PREFIX = re.compile(r"^\w+\(host=[^)]*\): ")


def system_message(error: BaseException) -> str:
    """Return the operating system's text of an error, else the error's own text.

    >>> system_message(ValueError("HTTPConnectionPool(host='db', port=80): Read timed out."))
    'Read timed out.'
    """
    text = getattr(error.__cause__, "strerror", None)
    return str(text) if text else _URLLIB3_PREFIX.sub("", str(error))


# Beginnings of OpenSSL's reasons that occur only while a connection is opened.
_HANDSHAKE_REASONS = (
    "WRONG_VERSION_NUMBER",
    "HTTP_REQUEST",
    "UNSUPPORTED_PROTOCOL",
    "NO_",
    "SSLV3_ALERT_HANDSHAKE",
)


def _is_handshake_failure(error: BaseException) -> bool:
    """Return True if TLS failed before a request could be sent.

    That is a wrong certificate or port, or no common version. Damaged data later, in an
    answer, does not show whether the request was carried out.
    """
    cause: Any = error
    while isinstance(cause, BaseException):
        if isinstance(cause, ssl.SSLError):
            of_certificate = isinstance(cause, ssl.SSLCertVerificationError)
            return of_certificate or str(getattr(cause, "reason", None) or "").startswith(
                _HANDSHAKE_REASONS
            )
        # urllib3 wraps the error of Python: SSLError(ssl.SSLError).
        cause = getattr(cause, "reason", None) or (cause.args[0] if cause.args else None)
    return False


def checked_verify(verify: bool | str, *, name: str = "verify") -> bool | str:
    """Return what certificates are verified with: `verify`, or the file of CATMQ_CA_FILE.

    Raises OptionError if the file has no CA certificates; the text calls the option `name`.
    """
    path = verify
    if verify is True and os.environ.get("CATMQ_CA_FILE"):
        name, path = "CATMQ_CA_FILE", os.environ["CATMQ_CA_FILE"]
    if isinstance(path, str):
        location = {"capath" if os.path.isdir(path) else "cafile": path}
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(**location)
        except ssl.SSLError:
            raise OptionError(f"{name}={path!r}: the file has no CA certificates") from None
        except OSError as error:
            raise OptionError(f"{name}={path!r}: {error.strerror}") from None
    return path
