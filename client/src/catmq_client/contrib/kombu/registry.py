"""The exchanges, durable queues and bindings of a vhost, which all its processes share."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from catmq_client.errors import CatmqError

log: logging.Logger = logging.getLogger("catmq.kombu")

# Maximal age in seconds of the table by which a message is routed.
MAX_AGE_S = 1.0
# A change of the table: its operation in "op", and the operation's arguments.
Entry = dict[str, str]


class Binding(NamedTuple):
    exchange: str
    key: str
    queue: str


def is_match(kind: str, pattern: str, key: str) -> bool:
    """Return True if an exchange of the type `kind` routes a message with the routing key to
    a binding with the key `pattern`.

    >>> is_match("topic", "task.#", "task.sent"), is_match("fanout", "", "b")
    (True, True)
    >>> is_match("direct", "a", "b")
    False
    """
    if kind == "fanout":
        return True
    if kind == "topic":
        return _matches_words(pattern, key)
    return pattern == key


def _matches_words(pattern: str, key: str) -> bool:
    """Return True if a routing key matches a topic pattern: `*` is a word, `#` any number of
    characters.

    The result is that of kombu's regular expression.
    """
    # Not the regular expression itself: other processes choose the patterns, and for some of
    # them it takes hours.
    ends = {0}  # positions in the key up to which the words so far can match
    for number, word in enumerate(pattern.split(".")):
        if number:
            ends = {end + 1 for end in ends if key.startswith(".", end)}
        if not ends:
            return False
        if word == "#":
            ends = {*range(min(ends), len(key) + 1)}
        elif word == "*":
            # From each end to any position up to the next dot.
            dots = {end: key.find(".", end) for end in ends}
            ends = {
                position
                for end, dot in dots.items()
                for position in range(end + 1, (len(key) if dot < 0 else dot) + 1)
            }
        else:
            ends = {end + len(word) for end in ends if key.startswith(word, end)}
    return len(key) in ends


@dataclass(slots=True)
class Table:
    """The state after all entries of the log. The messages of `logged` exchanges are written
    to a log, too, for transient queues.
    """

    exchanges: dict[str, str] = field(default_factory=dict)
    queues: set[str] = field(default_factory=set)
    bindings: dict[Binding, None] = field(default_factory=dict)
    logged: set[str] = field(default_factory=set)

    def apply(self, entry: Entry) -> None:
        """Apply an entry. An operation of a later release is ignored."""
        change = _CHANGES.get(entry.get("op", ""))
        if change is not None:
            change(self, entry)

    def bind(self, entry: Entry) -> None:
        self.bindings[_to_binding(entry)] = None

    def unbind(self, entry: Entry) -> None:
        self.bindings.pop(_to_binding(entry), None)

    def delete_queue(self, entry: Entry) -> None:
        self.queues.discard(entry["queue"])
        self._filter_bindings(lambda binding: binding.queue != entry["queue"])

    def delete_exchange(self, entry: Entry) -> None:
        self.exchanges.pop(entry["exchange"], None)
        self.logged.discard(entry["exchange"])
        self._filter_bindings(lambda binding: binding.exchange != entry["exchange"])

    def _filter_bindings(self, is_kept: Callable[[Binding], bool]) -> None:
        self.bindings = {binding: None for binding in self.bindings if is_kept(binding)}

    def targets(self, exchange: str, key: str) -> list[str]:
        """Return the durable queues to which an exchange routes a message."""
        # The default exchange routes to the queue with the name of the key.
        if not exchange:
            return [key] if key in self.queues else []
        kind = self.exchanges.get(exchange, "direct")
        # Each queue once, however many of its bindings match.
        return [
            *dict.fromkeys(
                binding.queue
                for binding in self.bindings
                if binding.exchange == exchange and is_match(kind, binding.key, key)
            )
        ]


def _to_binding(entry: Entry) -> Binding:
    return Binding(entry["exchange"], entry["key"], entry["queue"])


_CHANGES: dict[str, Callable[[Table, Entry], object]] = {
    "exchange": lambda table, entry: table.exchanges.update(
        {entry["exchange"]: entry["type"]}
    ),
    "queue": lambda table, entry: table.queues.add(entry["queue"]),
    "bind": Table.bind,
    "unbind": Table.unbind,
    "delete_queue": Table.delete_queue,
    "delete_exchange": Table.delete_exchange,
    "log": lambda table, entry: table.logged.add(entry["exchange"]),
}


class Registry:
    """The table of a vhost. It is stored as a log, a topic with a single queue.

    Each process reads the whole log once, and then its new entries: before a look-up in a
    table that is older than MAX_AGE_S, and if the table lacks the object. Only changes are
    appended. It does no harm if two processes append the same entry.
    """

    def __init__(
        self,
        read: Callable[[int], tuple[list[bytes], int]],
        append: Callable[[bytes], object],
    ) -> None:
        """`read(offset)` returns stored entries from the offset on, and the offset that follows
        them. `append(entry)` stores an entry.
        """
        self._read, self._append = read, append
        self._table = Table()
        self._offset = 0
        self._read_at = float("-inf")
        self._lock = threading.RLock()

    def table(self, *, max_age_s: float = MAX_AGE_S) -> Table:
        """Return the table, at most `max_age_s` old. While brokers are unavailable, it may be
        older.
        """
        with self._lock:
            if time.monotonic() - self._read_at > max_age_s:
                self._refresh()
            return self._table

    def record(self, *entries: Entry, is_new: Callable[[Table, Entry], bool]) -> None:
        """Append the entries that would change the table, as `is_new` decides."""
        with self._lock:
            # Usually nothing is new, and the old table is enough to know that.
            if not self._select_new(self._table, entries, is_new):
                return
            new_entries = self._select_new(self.table(max_age_s=0.0), entries, is_new)
            for entry in new_entries:
                self._append(json.dumps(entry, ensure_ascii=False).encode())
            if new_entries:
                self._refresh()

    @staticmethod
    def _select_new(
        table: Table, entries: Iterable[Entry], is_new: Callable[[Table, Entry], bool]
    ) -> list[Entry]:
        return [entry for entry in entries if is_new(table, entry)]

    def _refresh(self) -> None:
        try:
            while True:
                bodies, next_offset = self._read(self._offset)
                for body in bodies:
                    self._apply_body(body)
                self._offset = next_offset
                if not bodies:
                    break
        except CatmqError as error:
            # Without any table, or if a repetition does not help, the caller gets the error.
            if self._read_at == float("-inf") or not error.retriable:
                raise
            log.warning("bindings are those of a moment ago: %s", error)
        self._read_at = time.monotonic()

    def _apply_body(self, body: bytes) -> None:
        # Any client with the right to produce may have written the entry.
        try:
            entry: Any = json.loads(body)
            if not isinstance(entry, dict) or not all(
                isinstance(value, str) for value in entry.values()
            ):
                raise ValueError("an entry is an object of texts")
            self._table.apply(entry)
        except (ValueError, KeyError, RecursionError) as error:
            log.error(
                "an entry of the bindings cannot be read and is left out: %r: %r",
                body[:200],
                error,
            )
