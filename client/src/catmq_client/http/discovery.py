"""Discovery of brokers, and the choice of one for each request.

`Brokers` holds the URLs that the application gave (seeds, which always stay) and behind
them those that
`GET /api/v1/brokers` named. A request starts at `current` and stays there while it answers.
When it must go elsewhere, brokers in service come before those that are drained or silent,
and these before those that could not be reached a moment ago.

`Discovery` keeps the list fresh. It asks in a thread that lives for one question: in the
thread of a send the question would make that send slow, and a thread that stays would have
to be watched over forks. No lock is held and nothing is waited for, so a fork at any moment
leaves a child that goes on by itself: values are replaced whole, and a question under way
is noted by the process that asked it.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from catmq_client.errors import CatmqError, ConnectFailed
from catmq_client.http.backoff import Backoff

log = logging.getLogger("catmq.discovery")

REFRESH_S = 30.0  # how long a list is believed
GAP_S = 2.0  # between two questions, also when brokers fail one after the other
ASKED = 3  # brokers a question is put to, one after the other
MOST = 64  # brokers taken from a list
# How long a broker rests that could not be reached; short, because the others may fail
# meanwhile.
REST_MS, LONGEST_REST_MS = 1_000, 10_000

IN_SERVICE, AVOIDED, RESTING = range(3)


@dataclass(frozen=True, slots=True)
class _Rest:
    until: float  # monotonic
    backoff: Backoff


class Brokers:
    """The brokers that are known. `current`: where the next request starts."""

    def __init__(self, seeds: Sequence[str]) -> None:
        self._seeds = tuple(seeds)
        self._found: tuple[str, ...] = ()
        self._avoided: frozenset[str] = frozenset()
        self._rests: dict[str, _Rest] = {}
        # Many clients with the same list should not all go to its first broker.
        self.current = random.choice(self._seeds)

    @property
    def urls(self) -> tuple[str, ...]:
        """The brokers that a request would try now, before all others."""
        ranks = {url: self._rank(url) for url in self._known()}
        best = min(ranks.values())
        return tuple(url for url, rank in ranks.items() if rank == best)

    def following(self, tried: Sequence[str]) -> str | None:
        """The best broker for a request that these refused or that did not reach them;
        None: no more.

        One that could not be reached a moment ago is not worth the wait while any can be.
        """
        ranks = {url: self._rank(url) for url in self._behind(tried[-1])}
        limit = max(AVOIDED, min(ranks.values()))
        left = [url for url, rank in ranks.items() if url not in tried and rank <= limit]
        return min(left, key=ranks.__getitem__, default=None)

    def leave(self, url: str, *, unreachable: bool) -> None:
        """Make the next request start elsewhere, unless another thread already did that."""
        if unreachable:
            self._rest(url)
        if self.current == url:
            self.current = self.following([url]) or url

    def reached(self, url: str) -> None:
        if self._rests:
            self._rests.pop(url, None)

    def learn(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Take over the list that a broker answered."""
        seeds = {_identity(url): url for url in self._seeds}
        known = {_identity(url): url for url in self._found}
        in_service: dict[str, bool] = {}
        for url, serves in _listed(rows):
            identity = _identity(url)
            if identity not in seeds and not self._may_be_followed(url):
                continue
            known.setdefault(identity, url)
            # A broker that came back under another name is listed twice.
            in_service[identity] = in_service.get(identity, False) or serves
        found = [
            url
            for identity, url in known.items()
            if identity in in_service and identity not in seeds
        ]
        # In any order: clients that lose the same broker should not all go to the same next
        # one.
        new = [url for url in found if url not in self._found]
        random.shuffle(new)
        found = [url for url in found if url in self._found] + new
        avoided = {
            seeds.get(i) or known[i] for i, serves in in_service.items() if not serves
        }
        found.sort(key=lambda url: url in avoided)
        self._found, self._avoided = tuple(found[:MOST]), frozenset(avoided)
        self._settle()

    def _settle(self) -> None:
        """Move `current` to a broker of the best kind, if it is not at one."""
        best = self.urls
        if self.current not in best:
            self.current = random.choice(best)
        for url in self._rests.keys() - set(self._known()):
            self._rests.pop(url, None)

    def _known(self) -> tuple[str, ...]:
        return self._seeds + self._found

    def _behind(self, url: str) -> tuple[str, ...]:
        """All brokers in a circle, beginning behind one."""
        known = self._known()
        start = known.index(url) + 1 if url in known else 0
        return known[start:] + known[:start]

    def _rank(self, url: str) -> int:
        rest = self._rests.get(url)
        if rest is not None and time.monotonic() < rest.until:
            return RESTING
        return AVOIDED if url in self._avoided else IN_SERVICE

    def _rest(self, url: str) -> None:
        before = self._rests.get(url)
        now = time.monotonic()
        if before is not None and now < before.until:
            return  # many threads met the same failure
        backoff = (
            before.backoff if before else Backoff(base_ms=REST_MS, max_ms=LONGEST_REST_MS)
        )
        self._rests[url] = _Rest(now + backoff.next_s(), backoff)

    def _may_be_followed(self, url: str) -> bool:
        """Return True if requests, and the API key in them, may go to a URL that a broker
        named.

        Never from https to http. A loopback address is the machine of whoever named it, not
        ours, unless the application itself named one.
        """
        parts, seeds = urlsplit(url), [urlsplit(seed) for seed in self._seeds]
        if parts.scheme not in [seed.scheme for seed in seeds]:
            return False
        return not _is_here(parts.hostname) or any(
            _is_here(seed.hostname) for seed in seeds
        )


class Discovery:
    """Asks for the list of brokers when it is old, or when one of them failed.

    `ask(url)` is the decoded answer of `GET /api/v1/brokers` there; it raises CatmqError. A
    list that cannot be had is no error: the one before stays.
    """

    def __init__(self, brokers: Brokers, ask: Callable[[str], dict[str, Any]]) -> None:
        self._brokers = brokers
        self._ask = ask
        self._due_at = self._not_before = 0.0  # monotonic
        self._doubted = False  # a broker failed since the last question began
        self._backoff = Backoff(base_ms=int(GAP_S * 1000), max_ms=int(REFRESH_S * 1000))
        self._asking: dict[int, object] = {}  # by process

    def look(self) -> None:
        """Ask in the background if it is time; called after a request that succeeded."""
        if time.monotonic() >= self._due_at:
            self._start()

    def hurry(self) -> None:
        """Ask as soon as may be; called when a broker was left."""
        self._doubted = True
        self._due_at = min(self._due_at, self._not_before)
        self.look()

    def _start(self) -> None:
        pid, mine = os.getpid(), object()
        if self._asking.setdefault(pid, mine) is not mine:
            return
        self._doubted = False
        self._due_at = time.monotonic() + REFRESH_S
        asking = threading.Thread(
            target=self._run, args=(pid,), name="catmq-discovery", daemon=True
        )
        try:
            asking.start()
        except RuntimeError:  # no more threads, or the interpreter is ending
            self._asking.pop(pid, None)

    def _run(self, pid: int) -> None:
        try:
            rows = self._answer()
            if rows is not None:
                self._brokers.learn(rows)
                self._backoff.reset()
            self._plan(failed=rows is None)
        finally:
            self._asking.pop(pid, None)

    def _plan(self, *, failed: bool) -> None:
        """Set the time to ask next. In this order, so that a broker that fails just now is
        not overlooked.
        """
        now = time.monotonic()
        self._not_before = now + (self._backoff.next_s() if failed else GAP_S)
        self._due_at = (
            self._not_before if failed else now + REFRESH_S * random.uniform(0.8, 1.0)
        )
        if self._doubted:
            self._due_at = self._not_before

    def _answer(self) -> list[Any] | None:
        """The list, from the first of a few brokers that gives it."""
        tried: list[str] = []
        url: str | None = self._brokers.current
        while url is not None and len(tried) < ASKED:
            tried.append(url)
            try:
                rows = self._ask(url).get("brokers")
                if isinstance(rows, list):
                    return rows
            except CatmqError as error:
                log.debug("cannot get the list of brokers from %s: %s", url, error)
                if isinstance(error, ConnectFailed):
                    self._brokers.leave(url, unreachable=True)
                elif not error.retriable:
                    return None  # it has no such list, or not for us
            url = self._brokers.following(tried)
        return None


def _listed(rows: Sequence[Any]) -> Iterator[tuple[str, bool]]:
    """The URL of each row that has one, and whether the broker is in service."""
    for row in rows:
        url = row.get("url") if isinstance(row, Mapping) else None
        if not isinstance(url, str) or not _is_broker_url(url):
            continue
        away = (
            row.get("state") == "out"
            or not row.get("alive", True)
            or row.get("stopped_at_ms") is not None
        )
        yield url.rstrip("/"), not away


def _is_broker_url(url: str) -> bool:
    """Return True for `http[s]://host[:port][/path]` without name and password, query or
    fragment.
    """
    if not re.fullmatch(r"https?://[!-~]+", url) or set(url) & set("@?#\\"):
        return False
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _identity(url: str) -> str:
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"{parts.scheme}://{parts.hostname}:{port}{parts.path.rstrip('/')}"


def _is_here(host: str | None) -> bool:
    """Return True if a host is the asking machine itself: a loopback or unspecified
    address, or localhost.
    """
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
            address = ipaddress.IPv4Address(socket.inet_aton(name))  # 127.1, 0x7f000001
        except (OSError, UnicodeError):
            return False
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or address.is_unspecified
