"""Requests that clients repeat byte for byte while nothing changes, as those do that wait
for news.

A view may say of an answer under which conditions the same request gets it again (Repeat).
Then the worker's loop does what is left: it notes that the request came, lets its
connection wait without a thread, and sends the answer when the time is over. At news, and
in doubt, the request goes to a thread, which answers it in full. See
docs/decisions/0030-repeated-requests.md.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, NamedTuple, Protocol, TypeVar

from brokerapi.http.repeats import Repeat

log = logging.getLogger(__name__)

# waits end together at multiples of it: each turn of the loop costs as much as a few
# answers
TICK_S = 0.1
MOST_KNOWN = 10_000  # requests of a worker; the one that came longest ago goes
MOST_BYTES = 4096  # of a request that is remembered


class Client(Hashable, Protocol):
    """A connection, and the address of its other end."""

    peer: str


C = TypeVar("C", bound=Client)
T = TypeVar("T")


class Loop(Protocol[C]):
    """The worker that has the connections."""

    def hold(self, client: C) -> None:
        """Let a client wait, who may hang up."""

    def answer_again(self, client: C, status: bytes, rest: bytes) -> None:
        """Answer a request, with a date between two parts, whether its client was held or
        not.
        """

    def answer_anew(self, client: C) -> None:
        """Have the request of a client that was held answered in full."""

    def tell_news(self, held: Held[C]) -> None:
        """Have `look` called in the loop. Called by any thread."""


class Known(NamedTuple):
    """A request's answer, in front of its Date header and behind it."""

    repeat: Repeat
    status: bytes
    rest: bytes


class Held(Generic[C]):
    """A repeated request that waits; a flag that is raised at news."""

    __slots__ = ("_is_set", "_tell", "client", "known", "leave")

    def __init__(self, client: C, known: Known, tell: Callable[[Held[C]], object]) -> None:
        self.client, self.known, self._tell = client, known, tell
        self._is_set = False
        self.leave = known.repeat.watch(self)

    def set(self) -> None:
        if not self._is_set:
            self._is_set = True
            self._tell(self)

    def is_set(self) -> bool:
        return self._is_set

    def has_news(self) -> bool:
        """Return True if the request is to be answered in full. What comes later raises the
        flag again.
        """
        self._is_set = False
        return not self.known.repeat.holds()


class Repeats(Generic[C]):
    """The repeated requests of a worker.

    All but `learn` and `knows` belong to the loop.
    """

    def __init__(self, loop: Loop[C]) -> None:
        self._loop = loop
        self._guard = threading.Lock()
        self._known: OrderedDict[tuple[str, bytes], Known] = OrderedDict()
        self._held: dict[C, Held[C]] = {}
        # a heap by time.monotonic(), with those that left
        self._due: list[tuple[float, int, Held[C]]] = []
        self._numbers = itertools.count()

    def learn(self, client: C, request: bytes, answer: bytes, repeat: Repeat) -> None:
        """Remember the answer to a request, all of it, as it was sent."""
        status, end, rest = answer.partition(b"\r\nDate: ")
        if not end or len(request) > MOST_BYTES:
            return
        with self._guard:
            self._known[client.peer, request] = Known(
                repeat, status, rest[rest.index(b"\r\n") :]
            )
            if len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)

    def knows(self, client: C, request: bytes) -> bool:
        return (client.peer, request) in self._known

    def begin(self, client: C, request: bytes) -> bool:
        """Take a request, if it is a repeated one; False if it is to be answered in full."""
        known = self._find(client, request)
        if known is None or not _asked(known.repeat.begins, otherwise=False):
            return False
        if known.repeat.wait_s:
            return self._hold(client, known)
        self._answer_again(client, known)
        return True

    def look(self, held: Held[C]) -> None:
        """Give a request that may have news to a thread, if it has."""
        if self._held.get(held.client) is held and _asked(held.has_news, otherwise=True):
            self.forget(held.client)
            self._loop.answer_anew(held.client)

    def end_due(self) -> None:
        """Answer those whose time is over."""
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            _, _, held = heapq.heappop(self._due)
            if self._held.get(held.client) is held:
                self._end(held)

    def forget(self, client: C) -> None:
        """Let a client wait no longer, if it does."""
        held = self._held.pop(client, None)
        if held is not None:
            _asked(held.leave, otherwise=None)

    def within_s(self, most_s: float) -> float:
        """Return the time until the next is due, at most so long."""
        return (
            max(0.0, min(most_s, self._due[0][0] - time.monotonic()))
            if self._due
            else most_s
        )

    def _find(self, client: C, request: bytes) -> Known | None:
        if not self._known:
            return None
        with self._guard:
            known = self._known.get((client.peer, request))
            if known is not None:
                self._known.move_to_end((client.peer, request))
            return known

    def _hold(self, client: C, known: Known) -> bool:
        held = _asked(lambda: Held(client, known, self._loop.tell_news), otherwise=None)
        if held is None:
            return False
        # that came before the flag could be raised
        if _asked(held.has_news, otherwise=True):
            _asked(held.leave, otherwise=None)
            return False
        until = math.ceil((time.monotonic() + known.repeat.wait_s) / TICK_S) * TICK_S
        self._held[client] = held
        heapq.heappush(self._due, (until, next(self._numbers), held))
        self._loop.hold(client)
        return True

    def _end(self, held: Held[C]) -> None:
        self.forget(held.client)
        if _asked(held.has_news, otherwise=True):
            self._loop.answer_anew(held.client)
        else:
            self._answer_again(held.client, held.known)

    def _answer_again(self, client: C, known: Known) -> None:
        _asked(known.repeat.answered, otherwise=None)
        self._loop.answer_again(client, known.status, known.rest)


def _asked(question: Callable[[], T], *, otherwise: T) -> T:
    """Return what a view's code says; the loop must not end by a bug in it."""
    try:
        return question()
    except Exception:
        log.exception(
            "A view cannot say what becomes of a repeated request: it is answered in full"
        )
        return otherwise
