"""Requests that clients repeat byte for byte while nothing changes, such as polls for news.

A view may attach a condition to an answer (`Repeat`): while the answer is still valid, the
same request from the same client address gets it again. The worker's loop then does the rest
without a thread: it counts the request, holds its connection for the wait that the view
chose, and sends the remembered answer. When there may be news, or in any doubt, the request
goes to a thread and is answered in full. See docs/decisions/0030-repeated-requests.md.
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

# Waits end together at multiples of this: a turn of the loop costs as much as a few answers.
TICK_S = 0.1
MAX_REMEMBERED = 10_000  # requests per worker; the least recently used one is dropped
MAX_REQUEST_BYTES = 4096  # a longer request is not remembered


class Client(Hashable, Protocol):
    """A connection. `peer` is the address of its other end."""

    peer: str


C = TypeVar("C", bound=Client)
T = TypeVar("T")


class ConnectionWorker(Protocol[C]):
    """The worker that owns the connections."""

    def hold_client(self, client: C) -> None:
        """Hold a client's connection; only its hang-up is noticed meanwhile."""

    def send_remembered_answer(
        self, client: C, before_date: bytes, after_date: bytes
    ) -> None:
        """Send an answer with a new date between its two parts, whether the client was held
        or not.
        """

    def answer_in_full(self, client: C) -> None:
        """Pass the request of a held client to a thread."""

    def defer_news_check(self, held: HeldRequest[C]) -> None:
        """Let the loop call `check_news(held)`. May be called from any thread."""


class RememberedAnswer(NamedTuple):
    """The answer to a request, split at the value of its Date header."""

    repeat: Repeat
    before_date: bytes
    after_date: bytes


class HeldRequest(Generic[C]):
    """A repeated request that waits for news or for the end of its wait.

    It is also the Flag that `Repeat.watch` raises when there may be news: like a
    threading.Event, it has `set` and `is_set`.
    """

    __slots__ = ("_is_set", "_on_news", "answer", "client", "stop_watching")

    def __init__(
        self,
        client: C,
        answer: RememberedAnswer,
        on_news: Callable[[HeldRequest[C]], object],
    ) -> None:
        self.client, self.answer, self._on_news = client, answer, on_news
        self._is_set = False
        self.stop_watching = answer.repeat.watch(self)

    def set(self) -> None:
        """Raise the flag. The first call after `has_news` has the loop check for news."""
        if not self._is_set:
            self._is_set = True
            self._on_news(self)

    def is_set(self) -> bool:
        return self._is_set

    def has_news(self) -> bool:
        """Return True if the request must be answered in full, because there is news."""
        # Cleared before the check, so that news during the check raise the flag again.
        self._is_set = False
        return not self.answer.repeat.is_still_valid()


class RepeatedRequests(Generic[C]):
    """The repeated requests of a worker.

    Threads may call `remember` and `remembers`; all other methods belong to the loop.
    """

    def __init__(self, worker: ConnectionWorker[C]) -> None:
        self._worker = worker
        self._guard = threading.Lock()
        self._answers: OrderedDict[tuple[str, bytes], RememberedAnswer] = OrderedDict()
        self._held: dict[C, HeldRequest[C]] = {}
        # A heap of (due time by time.monotonic(), number, request). Released requests stay in
        # it until they are due.
        self._due: list[tuple[float, int, HeldRequest[C]]] = []
        # Breaks ties in the heap: held requests cannot be compared.
        self._numbers = itertools.count()

    def remember(self, client: C, request: bytes, answer: bytes, repeat: Repeat) -> None:
        """Remember the complete answer to a request as it was sent."""
        before_date, end, after_date = answer.partition(b"\r\nDate: ")
        if not end or len(request) > MAX_REQUEST_BYTES:
            return
        with self._guard:
            self._answers[client.peer, request] = RememberedAnswer(
                repeat, before_date, after_date[after_date.index(b"\r\n") :]
            )
            if len(self._answers) > MAX_REMEMBERED:
                self._answers.popitem(last=False)

    def remembers(self, client: C, request: bytes) -> bool:
        return (client.peer, request) in self._answers

    def begin_repeat(self, client: C, request: bytes) -> bool:
        """Hold or answer a request if it is a repeated one. Return False if it must be
        answered in full.
        """
        # Checked without the lock: most workers remember nothing.
        if not self._answers:
            return False
        with self._guard:
            answer = self._answers.get((client.peer, request))
            if answer is not None:
                self._answers.move_to_end((client.peer, request))
        if answer is None or not _guarded(answer.repeat.begins, otherwise=False):
            return False
        if answer.repeat.wait_s:
            return self._hold_request(client, answer)
        self._send_remembered(client, answer)
        return True

    def _hold_request(self, client: C, answer: RememberedAnswer) -> bool:
        """Hold a request until its wait is over. Return False if there is news already."""
        held = _guarded(
            lambda: HeldRequest(client, answer, self._worker.defer_news_check),
            otherwise=None,
        )
        if held is None:
            return False
        # News may have come before the watch began.
        if _guarded(held.has_news, otherwise=True):
            _guarded(held.stop_watching, otherwise=None)
            return False
        due_at = math.ceil((time.monotonic() + answer.repeat.wait_s) / TICK_S) * TICK_S
        self._held[client] = held
        heapq.heappush(self._due, (due_at, next(self._numbers), held))
        self._worker.hold_client(client)
        return True

    def check_news(self, held: HeldRequest[C]) -> None:
        """Pass a held request to a thread if its answer is no longer valid."""
        # A client may have been released and held again since the flag was set.
        if self._held.get(held.client) is held and _guarded(held.has_news, otherwise=True):
            self.release_client(held.client)
            self._worker.answer_in_full(held.client)

    def answer_due(self) -> None:
        """Answer the held requests whose wait is over."""
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            _, _, held = heapq.heappop(self._due)
            if self._held.get(held.client) is not held:
                continue
            self.release_client(held.client)
            if _guarded(held.has_news, otherwise=True):
                self._worker.answer_in_full(held.client)
            else:
                self._send_remembered(held.client, held.answer)

    def release_client(self, client: C) -> None:
        """Stop holding a client's request, if it is held."""
        held = self._held.pop(client, None)
        if held is not None:
            _guarded(held.stop_watching, otherwise=None)

    def seconds_to_next_due(self, max_s: float) -> float:
        """Return the time until the next held request is due, at most `max_s`."""
        if not self._due:
            return max_s
        return max(0.0, min(max_s, self._due[0][0] - time.monotonic()))

    def _send_remembered(self, client: C, answer: RememberedAnswer) -> None:
        _guarded(answer.repeat.answered, otherwise=None)
        self._worker.send_remembered_answer(client, answer.before_date, answer.after_date)


def _guarded(call: Callable[[], T], *, otherwise: T) -> T:
    """Call a method of a Repeat. Return its result, or `otherwise` if it raises: a bug in
    a view must not end the worker's loop.
    """
    try:
        return call()
    except Exception:
        log.exception(
            "A view cannot say what becomes of a repeated request: it is answered in full"
        )
        return otherwise
