"""The interface to the network: `Transport` has a single method, and tests replace it.

`HttpTransport` sends HTTP requests to a list of brokers, which it completes by itself
(discovery.py). If a broker cannot be reached or is draining, nothing was done, and the next
broker is tried within the request. Any other failure is raised; its class shows whether the
request may have been carried out (errors.py). A broker that answered 503 is left, too, but
only the next request goes elsewhere. Waiting and repeating are left to the caller:
`request_until` does both for requests that are harmless when carried out twice.
"""

from __future__ import annotations

import gzip
import itertools
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple, Protocol, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3 import BaseHTTPResponse, HTTPConnectionPool, Timeout
from urllib3.exceptions import ClosedPoolError, HTTPError

from catmq_client.errors import (
    AnswerLost,
    CatmqError,
    Closed,
    ConnectFailed,
    OptionError,
    Unauthenticated,
    Unavailable,
    from_problem,
)
from catmq_client.http import wire
from catmq_client.http.backoff import Backoff
from catmq_client.http.connections import checked_verify, network_error, send_whole
from catmq_client.http.discovery import MAX_LISTED, Brokers, Discovery
from catmq_client.http.failure_log import URLS_FROM
from catmq_client.version import SDK

T = TypeVar("T")

CONNECT_TIMEOUT_S = 3.0
LIST_TIMEOUT_S = 5.0
# Smaller bodies are not compressed.
GZIP_FROM_BYTES = 1024


class Transport(Protocol):
    """Sends a request to whichever broker answers."""

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
        timeout_s: float = 10.0,
        first: str | None = None,
    ) -> dict[str, Any]:
        """Return the decoded answer, {} if it has no content.

        `path` begins with `/` (see `api_path`). Messages in `body` have `body_bytes`; those
        in the answer are read with `wire.body_of`. `first` is the URL of the broker to ask
        before the others. Raises ConnectFailed (nothing was done), AnswerLost (unknown) or
        a Refused.
        """


@lru_cache(256)
def api_path(*parts: str | int) -> str:
    """Return an escaped path: `api_path("topics", "a b")` is `/api/v1/topics/a%20b`."""
    return "/api/v1/" + "/".join(quote(str(segment), safe="") for segment in parts)


def request_until(
    transport: Transport,
    method: str,
    path: str,
    *,
    within_s: float,
    wait: Callable[[float], object] = time.sleep,
    on_failure: Callable[[CatmqError], object] = lambda error: None,
    **more: Any,
) -> dict[str, Any]:
    """Repeat a request while its error is retriable. Return its answer.

    Only for requests that are harmless when carried out twice. After `within_s` seconds the
    last error is raised. `wait` is called with the seconds to wait, `on_failure` with each
    retriable error. `more` are further arguments of Transport.request.
    """

    def should_repeat(error: CatmqError, _: int) -> bool:
        if error.retriable:
            on_failure(error)
        return error.retriable

    return repeat_call(
        partial(transport.request, method, path, **more),
        within_s=within_s,
        should_repeat=should_repeat,
        wait=wait,
    )


def repeat_call(
    call: Callable[[], T],
    *,
    within_s: float,
    should_repeat: Callable[[CatmqError, int], bool],
    wait: Callable[[float], object] = time.sleep,
) -> T:
    """Repeat a call while `should_repeat(error, tries)` is true. Return its value.

    It is repeated for `within_s` seconds at most. Then the last error is raised.
    """
    deadline = time.monotonic() + within_s
    backoff = Backoff()
    for tries in itertools.count(1):
        try:
            return call()
        except CatmqError as error:
            delay_s = backoff.next_s(error)
            if not should_repeat(error, tries) or time.monotonic() + delay_s > deadline:
                raise
            wait(delay_s)
    raise AssertionError("the last try returns or raises")


class _Request(NamedTuple):
    """A request, before a broker is chosen for it."""

    session: requests.Session
    method: str
    path: str
    headers: dict[str, Any]
    data: bytes | None
    params: Mapping[str, Any] | None
    timeout_s: float


class _ConnectionPools(HTTPAdapter):
    """The connections of a session, without the wrappers of requests.

    The request, response and cookie objects of requests cost as much as the exchange
    itself. Brokers set no cookies and send no redirects. requests still handles proxies and
    certificates.
    """

    def __init__(self, *, brokers: int, connections: int) -> None:
        """Keep connections to `brokers` brokers, with up to `connections` idle connections
        each.
        """
        super().__init__(pool_connections=brokers, pool_maxsize=connections)
        self._pools: dict[str, tuple[HTTPConnectionPool, str]] = {}

    def exchange(
        self, url: str, call: _Request, *, verify: bool | str, proxies: Mapping[str, str]
    ) -> BaseHTTPResponse:
        """Send a request to a broker. Return the complete answer.

        Raises HTTPError of urllib3, or RequestException for a wrong URL.
        """
        while True:
            pool_and_prefix = self._pools.get(url)
            if pool_and_prefix is None:
                any_request = requests.PreparedRequest()
                any_request.method, any_request.url = "GET", f"{url}/"
                new_pool = self.get_connection_with_tls_context(
                    any_request, verify, proxies=dict(proxies)
                )
                assert isinstance(new_pool, HTTPConnectionPool)  # noqa: S101 - there is no other kind for HTTP
                send_whole(new_pool)
                self.cert_verify(new_pool, url, verify, None)  # type: ignore[no-untyped-call]
                # The prefix of request targets is the path of the broker's URL, or all of
                # the URL if a proxy gets the request.
                prefix = self.request_url(any_request, dict(proxies)).removesuffix("/")
                pool_and_prefix = self._pools[url] = new_pool, prefix
            pool, prefix = pool_and_prefix
            target = prefix + (
                f"{call.path}?{urlencode(call.params)}" if call.params else call.path
            )
            # Brokers send no redirects, and HttpTransport decides about repeats.
            try:
                return pool.urlopen(
                    call.method,
                    target,
                    body=call.data,
                    headers=call.headers,
                    timeout=Timeout(
                        connect=min(CONNECT_TIMEOUT_S, call.timeout_s), read=call.timeout_s
                    ),
                    retries=False,
                    redirect=False,
                    assert_same_host=False,
                )
            # The pool was closed in favour of another broker's, or by close(). Nothing was
            # sent, so the request is repeated with a new pool.
            except ClosedPoolError:
                self._pools.pop(url, None)


class HttpTransport:
    """Sends requests to the first of several brokers that answers.

    Connections are kept open. Safe to share between threads, and after a fork: each process
    opens its own connections.
    """

    def __init__(
        self,
        urls: str | Sequence[str] | None = None,
        *,
        api_key: str | None = None,
        verify: bool | str = True,
        proxies: Mapping[str, str] | None = None,
        compression: Literal["gzip"] | None = None,
        max_connections: int = 64,
        codec: wire.Codec | None = None,
        discover: bool = True,
    ) -> None:
        """Create the transport without opening connections.

        `urls` is CATMQ_URL by default, separated by commas, and `api_key` is CATMQ_API_KEY.
        verify: False, or the path of a file of CA certificates (default: CATMQ_CA_FILE,
        else the CAs of the package certifi). proxies: {"https": url}. HTTP_PROXY,
        HTTPS_PROXY, .netrc and REQUESTS_CA_BUNDLE of the environment are ignored.
        compression: "gzip" or None, for requests and answers. discover: also use brokers
        that the configured brokers name, and avoid those that were drained.
        """
        self._seeds = _checked_urls(
            urls if urls is not None else os.environ.get("CATMQ_URL", "")
        )
        if compression not in (None, "gzip"):
            raise OptionError(f"compression={compression!r}: write 'gzip' or None")
        self._gzip = compression == "gzip"
        self._codec = codec or wire.best_codec()
        # Answers are compressed only if the application wants it: on a fast network it
        # costs more than it saves.
        self._headers = {
            "Accept": f"{self._codec.accept}, application/problem+json",
            "Accept-Encoding": "gzip" if self._gzip else "identity",
            "User-Agent": SDK,
        }
        key = api_key if api_key is not None else os.environ.get("CATMQ_API_KEY")
        if key and not (key.isascii() and key.isprintable()):
            raise OptionError(
                "the API key has a line break, or another character that headers cannot have"
            )
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._verify = checked_verify(verify)
        self._proxies = dict(proxies or {})
        self._max_connections = max_connections
        # Process id and session in a single value, so that they are replaced together.
        # There is a lock for each process: a child may be forked while its parent holds the
        # lock, which is then never released in the child.
        self._process_session: tuple[int, requests.Session] | None = None
        self._locks: dict[int, threading.Lock] = {}
        # Name of the setting that has the URLs, for the log. The command line sets its own.
        self.urls_from = URLS_FROM
        self._brokers = Brokers(self._seeds)
        self._discovery = (
            Discovery(self._brokers, self._fetch_brokers) if discover else None
        )

    @property
    def urls(self) -> tuple[str, ...]:
        """The brokers that a request would try now: in service and reachable, else all."""
        return self._brokers.urls

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
        timeout_s: float = 10.0,
        first: str | None = None,
    ) -> dict[str, Any]:
        """Send a request; see Transport. An error has the tried URLs in `brokers`."""
        session = self._session_of_process()
        headers, data = self._headers, None
        if body is not None:
            data = wire.encode_request(self._codec, body)
            headers = headers | {"Content-Type": self._codec.content_type}
            if self._gzip and len(data) >= GZIP_FROM_BYTES:
                headers["Content-Encoding"] = "gzip"
                data = gzip.compress(data, 1)
            # Without a length the adapter would send the body in chunks.
            headers["Content-Length"] = str(len(data))
        call = _Request(session, method, path, headers, data, params, timeout_s)
        url, tried = first or self._brokers.current, list[str]()
        deadline = time.monotonic() + timeout_s
        while True:
            tried.append(url)
            try:
                answer = self._decode(url, self._send_once(url, call))
            except CatmqError as error:
                is_unreachable = isinstance(error, ConnectFailed)
                is_unavailable = isinstance(error, Unavailable) and error.status == 503
                # Only these errors mean that the broker has not carried out the request.
                is_undone = is_unreachable or error.code == "draining"
                if (
                    is_undone
                    or isinstance(error, AnswerLost)
                    or (is_unavailable and error.retriable)
                ):
                    # The next request, too, starts at another broker.
                    self._brokers.move_away(url, unreachable=is_unreachable)
                    if self._discovery is not None:
                        self._discovery.refresh_soon()
                # A second broker is always tried; further brokers only within the time
                # limit, because each unreachable broker may take a connect timeout.
                time_is_over = len(tried) > 1 and time.monotonic() > deadline
                next_url = self._brokers.next_broker(tried)
                if next_url is None or time_is_over or not is_undone:
                    error.brokers = tuple(tried)
                    raise
                url = next_url
            else:
                self._brokers.mark_reached(url)
                if self._discovery is not None:
                    self._discovery.refresh_if_due()
                return answer

    def close(self) -> None:
        """Close the idle connections of this process. A later request opens others."""
        pid = os.getpid()
        with self._lock_of(pid):
            session, self._process_session = self._process_session, None
        # A session of the parent process shares its sockets and is not closed here.
        if session is not None and session[0] == pid:
            session[1].close()

    def _fetch_brokers(self, url: str) -> dict[str, Any]:
        """Return the answer of `GET /api/v1/brokers`; see Discovery.

        It runs in a thread of its own, so close() may come meanwhile. Then the connection
        that this request opened is closed, too.
        """
        session = self._process_session
        if session is None or session[0] != os.getpid():
            raise Closed("the transport is closed")
        try:
            call = _Request(
                session[1],
                "GET",
                api_path("brokers"),
                self._headers,
                None,
                None,
                LIST_TIMEOUT_S,
            )
            return self._decode(url, self._send_once(url, call))
        finally:
            if self._process_session is not session:
                session[1].close()

    def _send_once(self, url: str, call: _Request) -> BaseHTTPResponse:
        """Send a request to a broker. Raises CatmqError for network errors."""
        pools = call.session.get_adapter(url)
        assert isinstance(pools, _ConnectionPools)  # noqa: S101 - _new_session mounts nothing else
        try:
            return pools.exchange(url, call, verify=self._verify, proxies=self._proxies)
        except (HTTPError, requests.exceptions.RequestException) as error:
            raise network_error(error, url) from error

    def _decode(self, url: str, response: BaseHTTPResponse) -> dict[str, Any]:
        """Return the value of an answer, or raise the error it describes."""
        if response.status >= 400:
            problem: Any = None
            # A proxy may send something else than a problem document.
            if "json" in response.headers.get("Content-Type", ""):
                with suppress(ValueError, RecursionError):
                    problem = _JSON.decode(response.data)
            error = from_problem(
                response.status, problem if isinstance(problem, dict) else {}
            )
            if isinstance(error, Unauthenticated) and "Authorization" not in self._headers:
                # The broker's remedy is a header, which programs do not set themselves.
                error.detail = (
                    "the request has no API key: set CATMQ_API_KEY, or pass api_key=…"
                )
            raise error
        if response.status >= 300:
            raise ConnectFailed(
                f"{url} is not a CatMQ broker: HTTP {response.status}", retriable=False
            )
        if not response.data:
            return {}
        is_msgpack = response.headers.get("Content-Type", "").startswith(wire.MSGPACK)
        codec = self._codec if is_msgpack else _JSON
        try:
            answer = codec.decode(response.data)
        except (ValueError, RecursionError) as error:
            raise AnswerLost(f"the response of {url} cannot be read: {error}") from error
        return answer if isinstance(answer, dict) else {"value": answer}

    def _session_of_process(self) -> requests.Session:
        """Return the session of this process, created at the first request."""
        pid = os.getpid()
        session = self._process_session
        if session is None or session[0] != pid:
            with self._lock_of(pid):
                session = self._process_session
                if session is None or session[0] != pid:
                    session = self._process_session = (pid, self._new_session())
        return session[1]

    def _lock_of(self, pid: int) -> threading.Lock:
        return self._locks.setdefault(pid, threading.Lock())

    def _new_session(self) -> requests.Session:
        session = requests.Session()
        # Proxies, .netrc and CA bundles of the environment are meant for the web. With them,
        # requests to brokers would be slower or carry another password.
        session.trust_env = False
        for scheme in ("http://", "https://"):
            session.mount(
                scheme,
                _ConnectionPools(
                    brokers=len(self._seeds) + MAX_LISTED, connections=self._max_connections
                ),
            )
        return session


_JSON = wire.JsonCodec()


def _checked_urls(urls: str | Sequence[str]) -> tuple[str, ...]:
    """Return the URLs without final slashes. Raises OptionError if a URL is wrong."""
    candidates = urls.split(",") if isinstance(urls, str) else list(urls)
    stripped = tuple(url.strip().rstrip("/") for url in candidates if url.strip())
    if not stripped:
        raise OptionError(
            "no broker URL: pass one ('http://127.0.0.1:8000') or set CATMQ_URL"
        )
    for url in stripped:
        try:
            parts = urlsplit(url)
            is_valid = (
                parts.scheme in ("http", "https") and parts.netloc and parts.port != 0
            )
        except ValueError:
            is_valid = False
        if not is_valid:
            raise OptionError(f"{url!r} is not a broker URL: write 'http://host:port'")
    return stripped
