"""Choice of a message's queue, made once from the topic's layout before the first try.

A topic has 1,024 slots. The slot of a key is crc32(UTF-8 key) mod 1,024, and the layout
names the queue of each slot, so a key stays in its queue while queues are added and
removed. Read-only or unreachable queues never change the layout: a keyed message waits for
its queue (`keyed: strict`) or goes to another queue (`available`).
"""

from __future__ import annotations

import logging
import random
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

from catmq_client.errors import AnswerLost, CatmqError, Forbidden, OptionError
from catmq_client.http.transport import Transport, api_path, request_until

log: logging.Logger = logging.getLogger("catmq.producer")

SLOTS = 1024
# After a refusal, messages that may go to another queue avoid the refusing queue for this
# time, in s.
AVOID_S = 5.0
# A layout is fetched at most once in this time, however many sends were refused.
REFRESH_EVERY_S = 0.5
# Stands for the queue of messages that only prefer the queue they name; see Routes.group().
_PREFERENCE = "preference"


class Kind(IntEnum):
    """How firmly a message belongs to its queue."""

    FREE = 0  # may go to another queue after a definite refusal
    KEYED = 1  # waits for the queue of its key's slot
    NAMED = 2  # waits for the queue its sender named, or fails when that is closed


class Route(NamedTuple):
    """The queue of a message (None: the broker chooses) and its kind."""

    queue: int | None
    kind: Kind


@dataclass(frozen=True, slots=True)
class Layout:
    """A topic as its producers see it.

    `nodes` has the node of each queue id, `writable` the ids of open queues.
    """

    topic: str
    version: int = 0
    slots: tuple[int, ...] = ()
    nodes: dict[int, str] = field(default_factory=dict)
    writable: tuple[int, ...] = ()
    strict: bool = True
    resend_unknown: bool = False


def slot_of(key: str) -> int:
    """Return the slot of a key.

    >>> slot_of("42")
    136
    """
    return zlib.crc32(key.encode()) % SLOTS


class Routes:
    """Chooses queues for the messages of a topic.

    Not locked: callers hold the lock of the accumulator. Messages without a key share a
    sticky queue until its batch is full or sent, so that batches become large.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout: Layout = layout
        self.loaded_at: float = time.monotonic()
        self._avoided: dict[int, float] = {}
        self._turn = random.randrange(SLOTS)
        self._sticky: int | None = None
        # slot → its former queue, while earlier messages of the slot still wait there. Later
        # messages of its keys join them, or they would overtake.
        self.held_slots: dict[int, int] = {}

    def replace(self, layout: Layout) -> None:
        """Use a newer layout."""
        self.layout = layout
        self.loaded_at = time.monotonic()
        if self._sticky not in layout.writable:
            self._sticky = None

    def choose(self, *, key: str | None, queue: int | None, strict_queue: bool) -> Route:
        """Return the route of a message with this key, or that names its queue.

        Raises OptionError if `strict_queue` and the topic has no such queue.
        """
        layout = self.layout
        # The key may send but not read the topic (see Layouts._load): the broker chooses
        # the queue.
        if not layout.slots:
            return Route(
                queue, Kind.NAMED if strict_queue and queue is not None else Kind.FREE
            )
        if queue is not None and strict_queue:
            if queue not in layout.nodes:
                queue_ids = ", ".join(map(str, sorted(layout.nodes)))
                raise OptionError(
                    f"queue {queue} is not one of {layout.topic}'s queues: {queue_ids}"
                )
            return Route(queue, Kind.NAMED)
        if queue is not None:
            return Route(
                queue if self.is_usable(queue) else self._sticky_queue(), Kind.FREE
            )
        if key is None:
            return Route(self._sticky_queue(), Kind.FREE)
        slot = zlib.crc32(key.encode()) % SLOTS
        home = layout.slots[slot]
        if layout.strict:
            return Route(
                self.held_slots.get(slot, home) if self.held_slots else home, Kind.KEYED
            )
        return Route(
            home if self.is_usable(home) else self._pick_usable(slot, {home}), Kind.FREE
        )

    def group(
        self,
        messages: Sequence[dict[str, Any]],
        indexes: Sequence[int],
        errors: dict[int, CatmqError],
    ) -> dict[Route, Sequence[int]]:
        """Return the indexes of the messages by their route, each in rising order.

        A message that has no route has its error in `errors`, at its index. All messages that
        may go to any queue get the sticky queue, whether or not they fit its batch.
        """
        # None: the message names no queue. _PREFERENCE: it may leave the queue that it names.
        # (`queue_strict` is a field of a message only if it is False.)
        queues = {
            _PREFERENCE if "queue_strict" in message else message.get("queue")
            for message in [messages[index] for index in indexes]
        }
        if len(queues) == 1 and _PREFERENCE not in queues:
            (queue,) = queues
            if queue in self.layout.nodes or (
                queue is None and not any("key" in messages[index] for index in indexes)
            ):
                return {self.choose(key=None, queue=queue, strict_queue=True): indexes}
        groups: dict[Route, list[int]] = {}
        # The queue of a key's slot is looked up here: that takes a quarter of the time of
        # choose(), and a batch may have as many keys as messages.
        slots = self.layout.slots if self.layout.strict and not self.held_slots else ()
        groups_by_home: dict[int, list[int]] = {}
        # Messages with the same key, or that name the same queue, share a look-up.
        groups_by_target: dict[str | int | None, list[int]] = {}
        for index in indexes:
            message = messages[index]
            queue, key = message.get("queue"), message.get("key")
            target = key if queue is None else queue
            group = groups_by_target.get(target)
            if group is not None and "queue_strict" not in message:
                group.append(index)
                continue
            if slots and key is not None and queue is None:
                home = slots[zlib.crc32(key.encode()) % SLOTS]
                group = groups_by_home.get(home)
                if group is None:
                    group = groups_by_home[home] = groups[Route(home, Kind.KEYED)] = []
            else:
                try:
                    route = self.choose(
                        key=key, queue=queue, strict_queue=message.get("queue_strict", True)
                    )
                except CatmqError as error:
                    errors[index] = error
                    continue
                group = groups.setdefault(route, [])
            group.append(index)
            if "queue_strict" not in message:
                groups_by_target[target] = group
        return {**groups}

    def is_usable(self, queue: int | None) -> bool:
        """Return True if the queue is writable and has not refused within AVOID_S."""
        if queue is None:
            return True
        return (
            queue in self.layout.writable
            and self._avoided.get(queue, 0.0) <= time.monotonic()
        )

    def avoid(self, queue: int | None, *, whole_node: bool) -> None:
        """Keep free messages away from this queue, or its whole node, for AVOID_S."""
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

    def another_queue(self, refused: set[int | None]) -> int | None:
        """Return a usable queue other than those that refused. None if there is none."""
        self._turn += 1
        candidates = [
            q for q in self.layout.writable if q not in refused and self.is_usable(q)
        ]
        return candidates[self._turn % len(candidates)] if candidates else None

    def next_queue(self, *, after: int | None) -> None:
        """Choose another sticky queue: the batch of queue `after` is full or being sent."""
        if self._sticky == after:
            self._sticky = None

    def _sticky_queue(self) -> int | None:
        if self._sticky is None:
            self._turn += 1
            self._sticky = self._pick_usable(self._turn, set())
        return self._sticky

    def _pick_usable(self, turn: int, excluded: set[int]) -> int:
        """Return a usable queue, the same queue for the same `turn`.

        If no queue is usable, return an unusable queue.
        """
        layout = self.layout
        candidates = [q for q in layout.writable if q not in excluded and self.is_usable(q)]
        candidates = candidates or list(layout.writable) or sorted(layout.nodes)
        return candidates[turn % len(candidates)]


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
        """`on_failure` is called with each error of a first look-up that is repeated."""
        self._on_failure = on_failure
        self._transport = transport
        self._max_age_s = max_age_s
        self._timeout_s = timeout_s
        self._routes: dict[str, Routes] = {}
        self._lock = threading.Lock()

    def routes(self, topic: str, *, within_s: float) -> Routes:
        """Return the routes of a topic.

        The first call asks a broker, for at most `within_s` seconds. Raises CatmqError.
        """
        routes = self._routes.get(topic)
        if routes is not None:
            return routes
        layout = self._load(topic, within_s, on_failure=self._on_failure)
        with self._lock:
            # Threads that looked the topic up at once must share its routes.
            return self._routes.setdefault(topic, Routes(layout))

    def cached(self, topic: str) -> Routes:
        """Return the routes of a topic that was looked up before."""
        return self._routes[topic]

    def peek(self, topic: str) -> tuple[Routes | None, bool]:
        """Return the routes of a topic, None if it was not looked up yet, and whether they
        are due to be fetched again. Sends no request.
        """
        routes = self._routes.get(topic)
        is_due = routes is None or time.monotonic() - routes.loaded_at >= self._max_age_s
        return routes, is_due

    def refresh(self, topic: str, *, after_refusal: bool) -> Layout | None:
        """Fetch a layout again if it is old. Return None if it is not, or that fails.

        After a refusal it counts as old after REFRESH_EVERY_S already.
        """
        routes = self._routes[topic]
        limit_s = REFRESH_EVERY_S if after_refusal else self._max_age_s
        if time.monotonic() - routes.loaded_at < limit_s:
            return None
        with self._lock:
            if time.monotonic() - routes.loaded_at < limit_s:
                return None
            # Set before the look-up, so that only a single thread of many asks a broker.
            routes.loaded_at = time.monotonic()
        try:
            return self._load(topic, 0.0)
        except CatmqError:
            # The previous layout still names the queue of each key. The sends themselves
            # report the cause.
            return None

    def _load(self, topic: str, within_s: float, **arguments: Any) -> Layout:
        try:
            answer = request_until(
                self._transport,
                "GET",
                api_path("topics", topic),
                within_s=within_s,
                timeout_s=self._timeout_s,
                **arguments,
            )
        except Forbidden:
            # The API key may send but not read the topic. Without slots the broker chooses
            # the queue, by key or batch_id.
            return Layout(topic)
        try:
            return layout_from(answer)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            log.warning("the queues of topic %s cannot be read: %r", topic, error)
            raise AnswerLost(
                f"the response about topic {topic} cannot be read: {error!r}"
            ) from error


def layout_from(answer: dict[str, Any]) -> Layout:
    """Return the layout in an answer of GET /api/v1/topics/{topic}."""
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
