"""Discovery of brokers, and the choice of a broker for each request.

`Brokers` holds the seeds, which are the URLs that the application configured and which
always stay, and after them the URLs that `GET /api/v1/brokers` returned. A request starts
at `current` and stays there while that broker answers. Otherwise brokers in service are
preferred to drained or silent brokers, and these to brokers that could not be reached a
moment ago.

`Discovery` keeps the list up to date. It asks in a thread that ends with the answer. In the
thread of a send the question would delay that send, and a permanent thread would have to be
restarted after each fork. There are no locks and no waiting, so a child that is forked at
any moment works: values are replaced whole, and a question in progress is stored under the
id of its process.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from catmq_client.errors import CatmqError, ConnectFailed
from catmq_client.http.backoff import Backoff

log: logging.Logger = logging.getLogger("catmq.discovery")

# Age at which a list is fetched again.
REFRESH_S = 30.0
# Least time between two questions, even while several brokers fail in turn.
GAP_S = 2.0
# Brokers that are asked in turn until an answer comes.
MAX_ASKED = 3
# Brokers used of a list.
MAX_LISTED = 64
# Time for which a broker is avoided that could not be reached. It is short, because the
# others may fail meanwhile.
PAUSE_MS, MAX_PAUSE_MS = 1_000, 10_000

IN_SERVICE, AVOIDED, PAUSED = range(3)


@dataclass(frozen=True, slots=True)
class _Pause:
    """Time until which a broker that could not be reached is avoided."""

    until: float  # monotonic
    backoff: Backoff


class Brokers:
    """The seeds and the listed brokers. The next request starts at `current`."""

    def __init__(self, seeds: Sequence[str]) -> None:
        self._seeds = tuple(seeds)
        self._listed_urls: tuple[str, ...] = ()
        self._avoided: frozenset[str] = frozenset()
        self._pauses: dict[str, _Pause] = {}
        # At random: many clients with the same list must not all use its first broker.
        self.current: str = random.choice(self._seeds)

    @property
    def urls(self) -> tuple[str, ...]:
        """The brokers that a request would try before all others."""
        ranks = {url: self._rank(url) for url in self._all_urls()}
        best = min(ranks.values())
        return tuple(url for url, rank in ranks.items() if rank == best)

    def next_broker(self, tried: Sequence[str]) -> str | None:
        """Return the best broker that is not in `tried`, None if the request should fail.

        A paused broker is returned only if all brokers are paused: waiting for its timeout
        is not worth it.
        """
        # All brokers as a circle, starting after the broker that was tried last, so that
        # equal brokers take turns.
        urls = self._all_urls()
        start = urls.index(tried[-1]) + 1 if tried[-1] in urls else 0
        ranks = {url: self._rank(url) for url in urls[start:] + urls[:start]}
        worst_rank = max(AVOIDED, min(ranks.values()))
        candidates = [
            url for url, rank in ranks.items() if url not in tried and rank <= worst_rank
        ]
        return min(candidates, key=ranks.__getitem__, default=None)

    def move_away(self, url: str, *, unreachable: bool) -> None:
        """Make the next request start elsewhere, unless another thread already did that."""
        now, earlier = time.monotonic(), self._pauses.get(url)
        # During a pause another thread met the same failure, which must not count twice.
        if unreachable and (earlier is None or now >= earlier.until):
            # The pause grows with each failure.
            backoff = (
                earlier.backoff
                if earlier
                else Backoff(base_ms=PAUSE_MS, max_ms=MAX_PAUSE_MS)
            )
            self._pauses[url] = _Pause(now + backoff.next_s(), backoff)
        if self.current == url:
            self.current = self.next_broker([url]) or url

    def mark_reached(self, url: str) -> None:
        if self._pauses:
            self._pauses.pop(url, None)

    def update_list(self, rows: Sequence[Mapping[str, Any]]) -> None:
        seeds_by_identity = {_identity(url): url for url in self._seeds}
        listed_by_identity = {_identity(url): url for url in self._listed_urls}
        seeds = [urlsplit(seed) for seed in self._seeds]
        in_service: dict[str, bool] = {}
        for row in rows:
            url = row.get("url") if isinstance(row, Mapping) else None
            if not isinstance(url, str) or not _is_broker_url(url):
                continue
            url = url.rstrip("/")
            identity, parts = _identity(url), urlsplit(url)
            # The API key is sent to no other URL: https is never replaced by http, and a
            # loopback address means the machine of the broker that named it, not this
            # machine, unless a seed is a loopback address, too.
            is_acceptable = parts.scheme in [seed.scheme for seed in seeds] and (
                not _is_local(parts.hostname)
                or any(_is_local(seed.hostname) for seed in seeds)
            )
            if identity not in seeds_by_identity and not is_acceptable:
                continue
            listed_by_identity.setdefault(identity, url)
            serves = (
                row.get("state") != "out"
                and bool(row.get("alive", True))
                and row.get("stopped_at_ms") is None
            )
            # A broker that was restarted under another name is listed twice; it is in
            # service if either row lists it so.
            in_service[identity] = in_service.get(identity, False) or serves
        listed = [
            url
            for identity, url in listed_by_identity.items()
            if identity in in_service and identity not in seeds_by_identity
        ]
        # In random order: clients that lose the same broker must not all move to the same
        # broker.
        added = [url for url in listed if url not in self._listed_urls]
        random.shuffle(added)
        listed = [url for url in listed if url in self._listed_urls] + added
        avoided = {
            seeds_by_identity.get(i) or listed_by_identity[i]
            for i, serves in in_service.items()
            if not serves
        }
        listed.sort(key=lambda url: url in avoided)
        self._listed_urls, self._avoided = tuple(listed[:MAX_LISTED]), frozenset(avoided)
        best = self.urls
        if self.current not in best:
            self.current = random.choice(best)
        for url in self._pauses.keys() - set(self._all_urls()):
            self._pauses.pop(url, None)

    def _all_urls(self) -> tuple[str, ...]:
        return self._seeds + self._listed_urls

    def _rank(self, url: str) -> int:
        pause = self._pauses.get(url)
        if pause is not None and time.monotonic() < pause.until:
            return PAUSED
        return AVOIDED if url in self._avoided else IN_SERVICE


class Discovery:
    """Fetches the list of brokers when it is old, or when a broker failed.

    `ask(url)` returns the decoded answer of `GET /api/v1/brokers` there, or raises
    CatmqError. If no broker returns a list, the previous list stays.
    """

    def __init__(self, brokers: Brokers, ask: Callable[[str], dict[str, Any]]) -> None:
        self._brokers = brokers
        self._ask = ask
        # Monotonic times of the next question, and before which there is none.
        self._due_at = self._not_before = 0.0
        # True if a broker failed since the last question began.
        self._broker_failed = False
        self._backoff = Backoff(base_ms=int(GAP_S * 1000), max_ms=int(REFRESH_S * 1000))
        # The question in progress, by process id.
        self._asking: dict[int, object] = {}

    def refresh_if_due(self) -> None:
        """Fetch the list in the background if it is time, after a successful request."""
        if time.monotonic() < self._due_at:
            return
        pid, question = os.getpid(), object()
        # setdefault() is atomic: of threads that come here together a single thread starts
        # a question.
        if self._asking.setdefault(pid, question) is not question:
            return
        self._broker_failed = False
        self._due_at = time.monotonic() + REFRESH_S
        try:
            threading.Thread(
                target=self._run, args=(pid,), name="catmq-discovery", daemon=True
            ).start()
        except RuntimeError:
            # The system has no more threads, or the interpreter is ending.
            self._asking.pop(pid, None)

    def refresh_soon(self) -> None:
        """Fetch the list as soon as GAP_S allows. Called when a broker failed."""
        self._broker_failed = True
        self._due_at = min(self._due_at, self._not_before)
        self.refresh_if_due()

    def _run(self, pid: int) -> None:
        """Fetch the list once, take it over, and set the time of the next question."""
        try:
            rows = self._fetch_list()
            if rows is not None:
                self._brokers.update_list(rows)
                self._backoff.reset()
            now = time.monotonic()
            self._not_before = now + (self._backoff.next_s() if rows is None else GAP_S)
            self._due_at = now + REFRESH_S * random.uniform(0.8, 1.0)
            # Checked last, so that a broker that fails during these lines is not overlooked.
            if rows is None or self._broker_failed:
                self._due_at = self._not_before
        finally:
            self._asking.pop(pid, None)

    def _fetch_list(self) -> list[Any] | None:
        """Return the rows of the first of MAX_ASKED brokers that answers, or None."""
        tried: list[str] = []
        url: str | None = self._brokers.current
        while url is not None and len(tried) < MAX_ASKED:
            tried.append(url)
            try:
                rows = self._ask(url).get("brokers")
                if isinstance(rows, list):
                    return rows
            except CatmqError as error:
                log.debug("cannot get the list of brokers from %s: %s", url, error)
                if isinstance(error, ConnectFailed):
                    self._brokers.move_away(url, unreachable=True)
                elif not error.retriable:
                    # The broker is of a release without the list, or refuses it to this key.
                    return None
            url = self._brokers.next_broker(tried)
        return None


def _is_broker_url(url: str) -> bool:
    """Return True for `http[s]://host[:port][/path]`.

    User name, password, query and fragment are not allowed.
    """
    if not re.fullmatch(r"https?://[!-~]+", url) or set(url) & set("@?#\\"):
        return False
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _identity(url: str) -> str:
    """Return a URL in a form that is equal for equal addresses."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"{parts.scheme}://{parts.hostname}:{port}{parts.path.rstrip('/')}"


def _is_local(host: str | None) -> bool:
    """Return True for a loopback or unspecified address, or localhost."""
    name = (host or "").rstrip(".")
    if (
        name == "localhost"
        or name.endswith(".localhost")
        or name.startswith(("localhost.", "ip6-localhost"))
    ):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        try:
            # Short forms that the resolver accepts, as 127.1 or 0x7f000001.
            address = ipaddress.IPv4Address(socket.inet_aton(name))
        except (OSError, UnicodeError):
            return False
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or address.is_unspecified
