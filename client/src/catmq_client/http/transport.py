"""The only seam to the network: `Transport` has one method, and tests plug in there.

`HttpTransport` speaks HTTP to a list of brokers, which it completes by itself
(discovery.py). It tries the next one at once when a broker cannot be reached or is
draining, because then nothing was done; any other failure is raised, and its class says
whether the request may have been done (errors.py). A broker that answered "not now" is
left, too, but only the next request goes elsewhere. Waiting and repeating are the caller's
decision: `request_until` does it for calls that are harmless when done twice.
"""

from __future__ import annotations

import gzip
import itertools
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple, Protocol, TypeVar
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
    Unavailable,
    from_problem,
)
from catmq_client.http import wire
from catmq_client.http.backoff import Backoff
from catmq_client.http.connections import checked_verify, network_error, send_whole
from catmq_client.http.discovery import MOST, Brokers, Discovery
from catmq_client.http.failure_log import URLS_FROM
from catmq_client.version import SDK

T = TypeVar("T")

CONNECT_TIMEOUT_S = 3.0
LIST_TIMEOUT_S = 5.0
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
        first: str | None = None,
    ) -> dict[str, Any]:
        """The decoded answer, {} when it has no content.

        `path` begins with `/` (see `api_path`). Messages in `body` carry `body_bytes`;
        those in the answer are read with `wire.body_of`. `first`: the URL of the broker to
        ask before the others. Raises ConnectFailed (nothing was done), AnswerLost (unknown)
        or a Refused.
        """
        ...


@lru_cache(256)
def api_path(*parts: str | int) -> str:
    """`api_path("topics", "a b")` is `/api/v1/topics/a%20b`."""
    return "/api/v1/" + "/".join(quote(str(part), safe="") for part in parts)


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
    """The answer of a request, with `more` of its arguments, that is repeated while its
    error is retriable.

    Only for requests that are harmless when done twice. After `within_s` seconds the last
    error is raised. `wait` is called with the seconds to wait, `on_failure` with each error
    that may be repeated.
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
    """The value of a call that is repeated while `again(error, tries)`, for `within_s`
    seconds at most.
    """
    give_up_at = time.monotonic() + within_s
    backoff = Backoff()
    for tries in itertools.count(1):
        try:
            return call()
        except CatmqError as error:
            delay_s = backoff.next_s(error)
            if not should_repeat(error, tries) or time.monotonic() + delay_s > give_up_at:
                raise
            wait(delay_s)
    raise AssertionError("the last try returns or raises")


class _Call(NamedTuple):
    """A request, before it is known which broker it goes to."""

    session: requests.Session
    method: str
    path: str
    headers: dict[str, Any]
    data: bytes | None
    params: Mapping[str, Any] | None
    timeout_s: float


class _Lines(HTTPAdapter):
    """The connections of a session, without what requests does around each use of one.

    Its own request, response and cookies cost as much as the exchange: no broker sets
    cookies or redirects. Proxies and certificates are handled by requests.
    """

    def __init__(self, *, brokers: int, connections: int) -> None:
        """Keep connections to so many brokers, and so many idle ones to each."""
        super().__init__(pool_connections=brokers, pool_maxsize=connections)
        self._pools: dict[str, tuple[HTTPConnectionPool, str]] = {}

    def exchange(
        self, url: str, call: _Call, *, verify: bool | str, proxies: Mapping[str, str]
    ) -> BaseHTTPResponse:
        """The answer, read to its end. Raises HTTPError of urllib3, or RequestException for
        a wrong URL.
        """
        timeout = Timeout(
            connect=min(CONNECT_TIMEOUT_S, call.timeout_s), read=call.timeout_s
        )
        while True:
            pool, prefix = self._pools.get(url) or self._find(url, verify, proxies)
            target = prefix + (
                f"{call.path}?{urlencode(call.params)}" if call.params else call.path
            )
            try:
                return pool.urlopen(
                    call.method,
                    target,
                    body=call.data,
                    headers=call.headers,
                    timeout=timeout,
                    retries=False,
                    redirect=False,
                    assert_same_host=False,
                )
            # given up for that of another broker, or by close(); nothing was sent
            except ClosedPoolError:
                self._pools.pop(url, None)

    def _find(
        self, url: str, verify: bool | str, proxies: Mapping[str, str]
    ) -> tuple[HTTPConnectionPool, str]:
        """The connections to a broker, and what its paths begin with there."""
        any_request = requests.PreparedRequest()
        any_request.method, any_request.url = "GET", f"{url}/"
        pool = self.get_connection_with_tls_context(
            any_request, verify, proxies=dict(proxies)
        )
        assert isinstance(pool, HTTPConnectionPool)  # noqa: S101 - there is no other kind for HTTP
        send_whole(pool)
        self.cert_verify(pool, url, verify, None)  # type: ignore[no-untyped-call]
        found = pool, self.request_url(any_request, dict(proxies)).removesuffix("/")
        self._pools[url] = found
        return found


class HttpTransport:
    """Speaks HTTP to the first of several brokers that answers, over kept-alive
    connections.

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
        discover: bool = True,
    ) -> None:
        """Take `urls` (default: CATMQ_URL, separated by commas) and `api_key` (default:
        CATMQ_API_KEY).

        verify: False, or the path of a file of CA certificates (default: CATMQ_CA_FILE,
        else the CAs of the package certifi). proxies: {"https": url}. HTTP_PROXY,
        HTTPS_PROXY, .netrc and REQUESTS_CA_BUNDLE of the environment are not looked at.
        compression: "gzip" or None, both ways. discover: also use brokers that the given
        ones name, and avoid those that were drained.
        """
        self._seeds = _checked_urls(
            urls if urls is not None else os.environ.get("CATMQ_URL", "")
        )
        if compression not in (None, "gzip"):
            raise OptionError(f"compression={compression!r}: write 'gzip' or None")
        self._gzip = compression == "gzip"
        self._codec = codec or wire.best_codec()
        # Answers are compressed only on request: on a fast network it costs more than it
        # saves.
        self._headers = {
            "Accept": f"{self._codec.accept}, application/problem+json",
            "Accept-Encoding": "gzip" if self._gzip else "identity",
            "User-Agent": SDK,
        }
        key = api_key if api_key is not None else os.environ.get("CATMQ_API_KEY")
        if key:
            self._headers["Authorization"] = f"Bearer {_checked_key(key)}"
        self._verify = checked_verify(verify)
        self._proxies = dict(proxies or {})
        self._max_connections = max_connections
        # The connections with the process they belong to, in one value; a lock for each
        # process,
        # because that of a parent may be held for ever in its child.
        self._mine: tuple[int, requests.Session] | None = None
        self._locks: dict[int, threading.Lock] = {}
        # Where the URLs are given, for the log; the command line has another name for it.
        self.urls_from = URLS_FROM
        self._brokers = Brokers(self._seeds)
        self._discovery = (
            Discovery(self._brokers, self._ask_for_brokers) if discover else None
        )

    @property
    def urls(self) -> tuple[str, ...]:
        """The brokers that a request would try now: those in service that can be reached,
        else all.
        """
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
        """See Transport. An error names in `brokers` the URLs that were tried."""
        session = self._sessions()
        headers, data = self._encoded(body)
        call = _Call(
            session, method, path, self._headers | headers, data, params, timeout_s
        )
        url, tried = first or self._brokers.current, list[str]()
        give_up_at = time.monotonic() + timeout_s
        while True:
            tried.append(url)
            try:
                answer = self._decoded(url, self._once(url, call))
            except CatmqError as error:
                self._after_failure(url, error)
                # A second broker is always asked; of many that do not answer, no more than
                # there is time for.
                over = len(tried) > 1 and time.monotonic() > give_up_at
                following = self._brokers.following(tried)
                if following is None or over or not _nothing_done(error):
                    error.brokers = tuple(tried)
                    raise
                url = following
            else:
                self._brokers.reached(url)
                if self._discovery is not None:
                    self._discovery.look()
                return answer

    def close(self) -> None:
        """Close the idle connections of this process; a later request opens new ones."""
        pid = os.getpid()
        with self._lock_of(pid):
            mine, self._mine = self._mine, None
        if mine is not None and mine[0] == pid:
            mine[1].close()

    def _after_failure(self, url: str, error: CatmqError) -> None:
        if _is_the_brokers_fault(error):
            self._brokers.leave(url, unreachable=isinstance(error, ConnectFailed))
            if self._discovery is not None:
                self._discovery.hurry()

    def _ask_for_brokers(self, url: str) -> dict[str, Any]:
        """See Discovery. Runs beside requests and close(): it opens no connections after
        that.
        """
        mine = self._mine
        if mine is None or mine[0] != os.getpid():
            raise Closed("the transport is closed")
        try:
            call = _Call(
                mine[1],
                "GET",
                api_path("brokers"),
                self._headers,
                None,
                None,
                LIST_TIMEOUT_S,
            )
            return self._decoded(url, self._once(url, call))
        finally:
            if self._mine is not mine:
                mine[1].close()

    def _once(self, url: str, call: _Call) -> BaseHTTPResponse:
        lines = call.session.get_adapter(url)
        assert isinstance(lines, _Lines)  # noqa: S101 - _new_session mounts nothing else
        try:
            return lines.exchange(url, call, verify=self._verify, proxies=self._proxies)
        except (HTTPError, requests.exceptions.RequestException) as error:
            raise network_error(error, url) from error

    def _encoded(
        self, body: Mapping[str, Any] | None
    ) -> tuple[dict[str, Any], bytes | None]:
        if body is None:
            return {}, None
        data = wire.encoded(self._codec, body)
        headers: dict[str, Any] = {"Content-Type": self._codec.content_type}
        if self._gzip and len(data) >= GZIP_FROM_BYTES:
            headers["Content-Encoding"] = "gzip"
            data = gzip.compress(data, 1)
        # Without it the adapter would send the body in chunks.
        headers["Content-Length"] = str(len(data))
        return headers, data

    def _decoded(self, url: str, response: BaseHTTPResponse) -> dict[str, Any]:
        if response.status >= 400:
            raise from_problem(response.status, _problem(response))
        if response.status >= 300:
            raise ConnectFailed(
                f"{url} is not a CatMQ broker: HTTP {response.status}", retriable=False
            )
        if not response.data:
            return {}
        packed = response.headers.get("Content-Type", "").startswith(wire.MSGPACK)
        codec = self._codec if packed else _JSON
        try:
            answer = codec.decode(response.data)
        except (ValueError, RecursionError) as error:
            raise AnswerLost(f"the response of {url} cannot be read: {error}") from error
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
        # Proxies, .netrc and CA bundles of the environment are not followed: they are made
        # for the
        # web, and a broker behind one of them would be slower or get another password.
        session.trust_env = False
        brokers = len(self._seeds) + MOST
        for scheme in ("http://", "https://"):
            session.mount(
                scheme, _Lines(brokers=brokers, connections=self._max_connections)
            )
        return session


_JSON = wire.JsonCodec()


def _checked_urls(urls: str | Sequence[str]) -> tuple[str, ...]:
    listed = urls.split(",") if isinstance(urls, str) else list(urls)
    stripped = tuple(url.strip().rstrip("/") for url in listed if url.strip())
    if not stripped:
        raise OptionError(
            "no broker URL: pass one ('http://127.0.0.1:8000') or set CATMQ_URL"
        )
    for url in stripped:
        try:
            parts = urlsplit(url)
            sound = parts.scheme in ("http", "https") and parts.netloc and parts.port != 0
        except ValueError:
            sound = False
        if not sound:
            raise OptionError(f"{url!r} is not a broker URL: write 'http://host:port'")
    return stripped


def _checked_key(key: str) -> str:
    if not (key.isascii() and key.isprintable()):
        raise OptionError(
            "the API key has a line break, or another character that headers cannot have"
        )
    return key


def _problem(response: BaseHTTPResponse) -> dict[str, Any]:
    kind = response.headers.get("Content-Type", "")
    if "json" not in kind:
        return {}
    try:
        problem = _JSON.decode(response.data)
    except (ValueError, RecursionError):
        return {}
    return problem if isinstance(problem, dict) else {}


def _nothing_done(error: CatmqError) -> bool:
    return isinstance(error, ConnectFailed) or error.code == "draining"


def _is_the_brokers_fault(error: CatmqError) -> bool:
    """Errors after which another broker is the better choice, also for the next request."""
    if isinstance(error, ConnectFailed | AnswerLost) or error.code == "draining":
        return True
    return isinstance(error, Unavailable) and error.status == 503 and error.retriable
