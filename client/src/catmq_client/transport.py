"""The only seam to the network: `Transport` has one method, and tests plug in there.

`HttpTransport` speaks HTTP to a list of brokers. It tries the next one at once when a broker cannot
be reached or is draining, because then nothing was done; any other failure is raised, and its class
says whether the request may have been done (errors.py). A broker that answered "not now" is left, too,
but only the next request goes elsewhere. Waiting and repeating are the caller's decision:
`request_until` does it for calls that are harmless when done twice.
"""

from __future__ import annotations

import gzip
import os
import random
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import quote, urlencode, urlsplit

import requests
from requests.adapters import HTTPAdapter
from requests.structures import CaseInsensitiveDict
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

from catmq_client import wire
from catmq_client.backoff import Backoff
from catmq_client.errors import (
    AnswerLost,
    CatmqError,
    ConnectFailed,
    OptionError,
    Unavailable,
    from_problem,
)

CONNECT_TIMEOUT_S = 3.0
GZIP_FROM_BYTES = 1024


class Transport(Protocol):
    """One request to the brokers, whichever answers."""

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
        timeout_s: float = 10.0,
    ) -> dict[str, Any]:
        """The decoded answer, {} when it has no content.

        `path` begins with `/` (see `api_path`). Messages in `body` carry `body_bytes`; those in the
        answer are read with `wire.body_of`. Raises ConnectFailed (nothing was done), AnswerLost
        (unknown) or a Refused.
        """
        ...


def api_path(*parts: str | int) -> str:
    """`api_path("topics", "a b")` is `/api/v1/topics/a%20b`."""
    return "/api/v1/" + "/".join(quote(str(part), safe="") for part in parts)


def request_until(
    transport: Transport,
    method: str,
    path: str,
    *,
    within_s: float,
    body: Mapping[str, Any] | None = None,
    params: Mapping[str, Any] | None = None,
    timeout_s: float = 10.0,
    wait: Callable[[float], object] = time.sleep,
) -> dict[str, Any]:
    """The answer of a request that is repeated, with back-off, while its error is retriable.

    Only for requests that are harmless when done twice. After `within_s` seconds the last error is
    raised. `wait` is called with the seconds to wait.
    """
    give_up_at = time.monotonic() + within_s
    backoff = Backoff()
    while True:
        try:
            return transport.request(method, path, body=body, params=params, timeout_s=timeout_s)
        except CatmqError as error:
            delay_s = backoff.next_s(error)
            if not error.retriable or time.monotonic() + delay_s > give_up_at:
                raise
            wait(delay_s)


class HttpTransport:
    """Speaks HTTP to the first of several brokers that answers, over kept-alive connections.

    Safe to share between threads, and after a fork: sockets are made lazily per process.
    """

    def __init__(
        self,
        urls: str | Sequence[str] | None = None,
        *,
        api_key: str | None = None,
        verify: bool | str = True,
        proxies: Mapping[str, str] | None = None,
        compression: str | None = None,
        max_connections: int = 64,
        codec: wire.Codec | None = None,
    ) -> None:
        """Takes `urls` (default: CATMQ_URL, separated by commas) and `api_key` (default: CATMQ_API_KEY).

        verify: False or the path of a CA bundle, as in requests. proxies: {"https": url}; the
        environment's proxies are not looked at. compression: "gzip" or None, both ways.
        """
        self.urls = _checked_urls(urls if urls is not None else os.environ.get("CATMQ_URL", ""))
        if compression not in (None, "gzip"):
            raise OptionError(f"compression={compression!r}: write 'gzip' or None")
        self._gzip = compression == "gzip"
        self._codec = codec or wire.best_codec()
        self._api_key = api_key if api_key is not None else os.environ.get("CATMQ_API_KEY")
        self._verify = verify
        self._proxies = dict(proxies or {})
        self._max_connections = max_connections
        # The connections with the process they belong to, in one value; a lock for each process,
        # because that of a parent may be held for ever in its child.
        self._mine: tuple[int, requests.Session] | None = None
        self._locks: dict[int, threading.Lock] = {}
        # Many clients with the same list should not all go to its first broker.
        self._current = random.randrange(len(self.urls))

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
        timeout_s: float = 10.0,
    ) -> dict[str, Any]:
        """See Transport. An error names in `brokers` the URLs that were tried."""
        headers, data = self._encoded(body)
        tried: list[str] = []
        while True:
            broker = self._current
            tried.append(self.urls[broker])
            try:
                answer = self._once(broker, method, path, (headers, data, params, timeout_s))
                return self._decoded(answer)
            except CatmqError as error:
                if _is_the_brokers_fault(error):
                    self._leave(broker)
                if len(tried) >= len(self.urls) or not _nothing_done(error):
                    error.brokers = tuple(tried)
                    raise

    def close(self) -> None:
        """Closes the idle connections of this process; a later request opens new ones."""
        pid = os.getpid()
        with self._lock_of(pid):
            mine, self._mine = self._mine, None
        if mine is not None and mine[0] == pid:
            mine[1].close()

    def _once(self, broker: int, method: str, path: str, parts: tuple[Any, ...]) -> requests.Response:
        """One try at one broker, straight through the session's adapter.

        Session.request would merge settings that never change here: a quarter of a request's time.
        """
        headers, data, params, timeout_s = parts
        session, url = self._sessions(), self.urls[broker]
        prepared = requests.PreparedRequest()
        prepared.method = method
        prepared.url = f"{url}{path}?{urlencode(params)}" if params else url + path
        prepared.headers = CaseInsensitiveDict({**session.headers, **headers})
        prepared.body = data
        try:
            response = session.get_adapter(url).send(
                prepared,
                timeout=(min(CONNECT_TIMEOUT_S, timeout_s), timeout_s),
                verify=self._verify,
                proxies=self._proxies,
            )
            # Read here, where a connection that breaks in the middle of the answer is told apart.
            _ = response.content
        except requests.exceptions.RequestException as error:
            raise _network_error(error, url) from error
        return response

    def _encoded(self, body: Mapping[str, Any] | None) -> tuple[dict[str, str], bytes | None]:
        if body is None:
            return {}, None
        data = wire.encoded(self._codec, body)
        headers = {"Content-Type": self._codec.content_type}
        if self._gzip and len(data) >= GZIP_FROM_BYTES:
            headers["Content-Encoding"] = "gzip"
            data = gzip.compress(data, 1)
        # Without it the adapter would send the body in chunks.
        headers["Content-Length"] = str(len(data))
        return headers, data

    def _decoded(self, response: requests.Response) -> dict[str, Any]:
        if response.status_code >= 400:
            raise from_problem(response.status_code, _problem(response))
        if response.status_code >= 300:
            raise ConnectFailed(
                f"{response.url} is no CatMQ broker: HTTP {response.status_code}", retriable=False
            )
        if not response.content:
            return {}
        packed = response.headers.get("Content-Type", "").startswith(wire.MSGPACK)
        codec = self._codec if packed else _JSON
        try:
            answer = codec.decode(response.content)
        except ValueError as error:
            raise AnswerLost(f"{response.url} answered what cannot be read: {error}") from error
        return answer if isinstance(answer, dict) else {"value": answer}

    def _sessions(self) -> requests.Session:
        pid = os.getpid()
        mine = self._mine
        if mine is None or mine[0] != pid:
            with self._lock_of(pid):
                mine = self._mine
                if mine is None or mine[0] != pid:
                    mine = self._mine = (pid, self._new_session())
        return mine[1]

    def _lock_of(self, pid: int) -> threading.Lock:
        return self._locks.setdefault(pid, threading.Lock())

    def _new_session(self) -> requests.Session:
        session = requests.Session()
        # Answers are compressed only on request: on a fast network it costs more than it saves.
        session.headers.update(
            {
                "Accept": f"{self._codec.content_type}, application/problem+json",
                "Accept-Encoding": "gzip" if self._gzip else "identity",
                "User-Agent": "catmq-client",
            }
        )
        if self._api_key:
            session.headers["Authorization"] = f"Bearer {self._api_key}"
        for scheme in ("http://", "https://"):
            session.mount(
                scheme, HTTPAdapter(pool_connections=len(self.urls), pool_maxsize=self._max_connections)
            )
        return session

    def _leave(self, broker: int) -> None:
        """Makes the next request start at another broker, unless another thread already did that."""
        if self._current == broker:
            self._current = (broker + 1) % len(self.urls)


_JSON = wire.JsonCodec()


def _checked_urls(urls: str | Sequence[str]) -> tuple[str, ...]:
    listed = urls.split(",") if isinstance(urls, str) else list(urls)
    stripped = tuple(url.strip().rstrip("/") for url in listed if url.strip())
    if not stripped:
        raise OptionError("no broker URL: pass one ('http://127.0.0.1:8000') or set CATMQ_URL")
    for url in stripped:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise OptionError(f"{url!r} is no broker URL: write 'http://host:port'")
    return stripped


def _network_error(error: requests.exceptions.RequestException, url: str) -> CatmqError:
    """ConnectFailed when nothing can have been sent, else AnswerLost."""
    if isinstance(error, requests.exceptions.SSLError) and _is_of_handshake(error):
        return ConnectFailed(f"TLS with {url} failed: {error}", retriable=False)
    if isinstance(error, requests.exceptions.ConnectTimeout | requests.exceptions.ProxyError):
        return ConnectFailed(f"{url} cannot be reached: {error}")
    if isinstance(error, requests.exceptions.ConnectionError):
        cause = error.args[0] if error.args else None
        reason = getattr(cause, "reason", cause)
        if isinstance(reason, NewConnectionError | ConnectTimeoutError):
            return ConnectFailed(f"{url} cannot be reached: {reason}")
    if isinstance(error, requests.exceptions.InvalidURL | requests.exceptions.InvalidHeader):
        return OptionError(str(error))
    return AnswerLost(f"no answer from {url}: {error}")


# How the reasons of OpenSSL begin that can only be met while a connection is made.
_HANDSHAKE = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNSUPPORTED_PROTOCOL", "NO_", "SSLV3_ALERT_HANDSHAKE")


def _is_of_handshake(error: BaseException) -> bool:
    """Whether TLS was refused before a request could go: wrong certificate, wrong port, no common version.

    Damage found later, in an answer, says nothing about whether the request was carried out.
    """
    seen: Any = error
    while isinstance(seen, BaseException):
        if isinstance(seen, ssl.SSLError):
            of_certificate = isinstance(seen, ssl.SSLCertVerificationError)
            return of_certificate or str(getattr(seen, "reason", None) or "").startswith(_HANDSHAKE)
        # requests wraps MaxRetryError(reason=SSLError(ssl.SSLError)).
        seen = getattr(seen, "reason", None) or (seen.args[0] if seen.args else None)
    return False


def _problem(response: requests.Response) -> dict[str, Any]:
    kind = response.headers.get("Content-Type", "")
    if "json" not in kind:
        return {}
    try:
        problem = _JSON.decode(response.content)
    except ValueError:
        return {}
    return problem if isinstance(problem, dict) else {}


def _nothing_done(error: CatmqError) -> bool:
    return isinstance(error, ConnectFailed) or error.code == "draining"


def _is_the_brokers_fault(error: CatmqError) -> bool:
    """Errors after which another broker is the better choice, also for the next request."""
    if isinstance(error, ConnectFailed | AnswerLost) or error.code == "draining":
        return True
    return isinstance(error, Unavailable) and error.status == 503 and error.retriable
