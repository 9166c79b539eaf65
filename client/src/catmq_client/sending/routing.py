"""Choice of a message's queue: made once, from the topic's layout, before the first try.

A topic has 1,024 slots. Slot = crc32(UTF-8 key) mod 1,024; the layout names each slot's
queue, so a key stays in its queue while queues come and go. Read-only or unreachable queues
never change the layout: a keyed message waits for its queue (`keyed: strict`) or goes
elsewhere (`available`).
"""

from __future__ import annotations

import logging
import random
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

from catmq_client.errors import AnswerLost, CatmqError, Forbidden, OptionError
from catmq_client.http.transport import Transport, api_path, request_until

log = logging.getLogger("catmq.producer")

SLOTS = 1024
# How long a queue that refused is avoided by messages that may go elsewhere.
AVOID_S = 5.0
# A layout is not fetched more often than this, however many sends were refused.
REFRESH_EVERY_S = 0.5


class Kind(IntEnum):
    """Strength of a message's tie to its queue."""

    FREE = 0  # may go to another queue after a definite refusal
    KEYED = 1  # belongs to the queue of its key's slot: waits for it
    NAMED = 2  # its sender named the queue: waits for it, or fails when it is closed


class Route(NamedTuple):
    """A message's queue (None: the broker chooses), and how firmly."""

    queue: int | None
    kind: Kind


@dataclass(frozen=True, slots=True)
class Layout:
    """A topic as its producers see it; `nodes` and `writable` are by queue id."""

    topic: str
    version: int = 0
    slots: tuple[int, ...] = ()
    nodes: dict[int, str] = field(default_factory=dict)
    writable: tuple[int, ...] = ()
    strict: bool = True
    resend_unknown: bool = False


def slot_of(key: str) -> int:
    """The slot of a key.

    >>> slot_of("42")
    136
    """
    return zlib.crc32(key.encode()) % SLOTS


class Routes:
    """Chooses queues for one topic. Not locked: its owner calls it under the lock of the
    buffer.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.loaded_at = time.monotonic()
        self._avoided: dict[int, float] = {}
        self._turn = random.randrange(SLOTS)
        self._sticky: int | None = None
        # Slots whose earlier messages still wait for their old queue: later ones wait there
        # behind them.
        self.held: dict[int, int] = {}

    def replace(self, layout: Layout) -> None:
        self.layout = layout
        self.loaded_at = time.monotonic()
        if self._sticky not in layout.writable:
            self._sticky = None

    def choose(self, *, key: str | None, queue: int | None, strict_queue: bool) -> Route:
        """The route of a message with this key, or that names its queue."""
        layout = self.layout
        if not layout.slots:
            return Route(
                queue, Kind.NAMED if strict_queue and queue is not None else Kind.FREE
            )
        if queue is not None:
            return self._named(queue, strict_queue)
        if key is None:
            return Route(self._unkeyed(), Kind.FREE)
        slot = zlib.crc32(key.encode()) % SLOTS
        home = layout.slots[slot]
        if layout.strict:
            return Route(self.held.get(slot, home) if self.held else home, Kind.KEYED)
        return Route(home if self.usable(home) else self._other(slot, {home}), Kind.FREE)

    def usable(self, queue: int | None) -> bool:
        """Return True if the queue is writable and has not just refused."""
        if queue is None:
            return True
        return (
            queue in self.layout.writable
            and self._avoided.get(queue, 0.0) <= time.monotonic()
        )

    def avoid(self, queue: int | None, *, whole_node: bool) -> None:
        """Keep free messages from this queue, or from all queues of its node, for a while."""
        until = time.monotonic() + AVOID_S
        node = self.layout.nodes.get(queue or 0)
        if queue is not None:
            self._avoided[queue] = until
        if whole_node and node is not None:
            self._avoided.update(
                {q: until for q, n in self.layout.nodes.items() if n == node}
            )
        if self._avoided.get(self._sticky or 0, 0.0) >= until:
            self._sticky = None

    def elsewhere(self, refused: set[int | None]) -> int | None:
        """Another usable queue than those that refused; None when there is none."""
        self._turn += 1
        usable = [q for q in self.layout.writable if q not in refused and self.usable(q)]
        return usable[self._turn % len(usable)] if usable else None

    def next_queue(self, *, after: int | None) -> None:
        """Send unkeyed messages to another queue than `after`: its batch is full or on its
        way.
        """
        if self._sticky == after:
            self._sticky = None

    def _unkeyed(self) -> int | None:
        if self._sticky is None:
            self._turn += 1
            self._sticky = self._other(self._turn, set())
        return self._sticky

    def _other(self, turn: int, without: set[int]) -> int:
        """A usable queue, the same one for the same `turn`; any queue when none is usable."""
        layout = self.layout
        choice = [q for q in layout.writable if q not in without and self.usable(q)]
        choice = choice or list(layout.writable) or sorted(layout.nodes)
        return choice[turn % len(choice)]

    def _named(self, queue: int, strict: bool) -> Route:
        if strict:
            if queue not in self.layout.nodes:
                known = ", ".join(map(str, sorted(self.layout.nodes)))
                raise OptionError(
                    f"queue {queue} is not one of {self.layout.topic}'s queues: {known}"
                )
            return Route(queue, Kind.NAMED)
        return Route(queue if self.usable(queue) else self._unkeyed(), Kind.FREE)


class Layouts:
    """The layouts of the topics that a producer has sent to."""

    def __init__(
        self,
        transport: Transport,
        *,
        max_age_s: float,
        timeout_s: float,
        on_failure: Callable[[CatmqError], object] = lambda error: None,
    ) -> None:
        """`on_failure` is called with each error of a first look-up, which is repeated."""
        self._on_failure = on_failure
        self._transport = transport
        self._max_age_s = max_age_s
        self._timeout_s = timeout_s
        self._routes: dict[str, Routes] = {}
        self._lock = threading.Lock()

    def routes(self, topic: str, *, within_s: float) -> Routes:
        """The topic's routes; asks a broker at the first use, for at most `within_s`
        seconds.
        """
        known = self._routes.get(topic)
        if known is not None:
            return known
        layout = self._load(topic, within_s, on_failure=self._on_failure)
        with self._lock:
            return self._routes.setdefault(topic, Routes(layout))

    def known(self, topic: str) -> Routes:
        return self._routes[topic]

    def refresh(self, topic: str, *, after_refusal: bool) -> Layout | None:
        """A newer layout if ours is old, or `suspicious` and not brand new; None when there
        is no need.
        """
        routes = self._routes[topic]
        limit_s = REFRESH_EVERY_S if after_refusal else self._max_age_s
        if time.monotonic() - routes.loaded_at < limit_s:
            return None
        with self._lock:
            if time.monotonic() - routes.loaded_at < limit_s:
                return None
            routes.loaded_at = time.monotonic()
        try:
            return self._load(topic, 0.0)
        except CatmqError:
            # The layout we have still says where keys live; the sends themselves report
            # what is wrong.
            return None

    def _load(self, topic: str, within_s: float, **more: Any) -> Layout:
        path, more = api_path("topics", topic), {**more, "timeout_s": self._timeout_s}
        try:
            answer = request_until(self._transport, "GET", path, within_s=within_s, **more)
        except Forbidden:
            # A key that may send but not look: the broker then chooses, by key or batch_id.
            return Layout(topic)
        try:
            return layout_from(answer)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            log.warning("the queues of topic %s cannot be read: %r", topic, error)
            raise AnswerLost(
                f"the response about topic {topic} cannot be read: {error!r}"
            ) from error


def layout_from(answer: dict[str, Any]) -> Layout:
    """The layout in an answer of GET /api/v1/topics/{topic}."""
    queues = answer["queues"]
    return Layout(
        topic=answer["name"],
        version=answer["layout"]["version"],
        slots=tuple(answer["layout"]["slots"]),
        nodes={q["queue"]: q["node"] for q in queues},
        writable=tuple(q["queue"] for q in queues if q["state"] == "read_write"),
        strict=answer.get("keyed", "strict") == "strict",
        resend_unknown=answer.get("on_unknown") == "resend",
    )
