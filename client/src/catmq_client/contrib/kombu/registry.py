"""Exchanges, durable queues and bindings, shared by all processes of a vhost; see Registry."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from catmq_client.errors import CatmqError

log = logging.getLogger("catmq.kombu")

# How old the table may be when a message is routed, s.
BELIEVED_S = 1.0
Entry = dict[str, str]


class Binding(NamedTuple):
    """A binding of a queue to an exchange."""

    exchange: str
    key: str
    queue: str


def is_match(kind: str, pattern: str, key: str) -> bool:
    """Return True if an exchange of a type sends a message of a routing key to a binding.

    >>> (is_match("topic", "task.#", "task.sent"),
    ...  is_match("direct", "a", "b"), ...  is_match("fanout", "", "b")) (True, False, True)
    """
    if kind == "fanout":
        return True
    if kind == "topic":
        return _matches_words(pattern, key)
    return pattern == key


def _matches_words(pattern: str, key: str) -> bool:
    """Return True if a routing key matches a topic pattern: `*` is a word, `#` any number
    of characters.

    As kombu's regular expression, which takes hours for some patterns; and they come from
    others.
    """
    ends = {0}  # positions in the key up to which the words so far may reach
    for number, word in enumerate(pattern.split(".")):
        if number:
            ends = {end + 1 for end in ends if key.startswith(".", end)}
        if not ends:
            return False
        if word == "#":
            ends = {*range(min(ends), len(key) + 1)}
        elif word == "*":
            ends = {stop for end in ends for stop in _ends_in_word(key, end)}
        else:
            ends = {end + len(word) for end in ends if key.startswith(word, end)}
    return len(key) in ends


def _ends_in_word(key: str, start: int) -> range:
    """Return the positions after `start` up to the end of the word there."""
    dot = key.find(".", start)
    return range(start + 1, (len(key) if dot < 0 else dot) + 1)


@dataclass(slots=True)
class Table:
    """The table that the entries of the log add up to. `logged`: exchanges whose messages
    are logged, too.
    """

    exchanges: dict[str, str] = field(default_factory=dict)
    queues: set[str] = field(default_factory=set)
    bindings: dict[Binding, None] = field(default_factory=dict)
    logged: set[str] = field(default_factory=set)

    def apply(self, entry: Entry) -> None:
        """Take over an entry; one of a later release that is unknown here changes nothing."""
        change = _CHANGES.get(entry.get("op", ""))
        if change is not None:
            change(self, entry)

    def bind(self, entry: Entry) -> None:
        self.bindings[_binding(entry)] = None

    def unbind(self, entry: Entry) -> None:
        self.bindings.pop(_binding(entry), None)

    def delete_queue(self, entry: Entry) -> None:
        self.queues.discard(entry["queue"])
        self._keep(lambda one: one.queue != entry["queue"])

    def delete_exchange(self, entry: Entry) -> None:
        self.exchanges.pop(entry["exchange"], None)
        self.logged.discard(entry["exchange"])
        self._keep(lambda one: one.exchange != entry["exchange"])

    def _keep(self, wanted: Callable[[Binding], bool]) -> None:
        self.bindings = {one: None for one in self.bindings if wanted(one)}

    def targets(self, exchange: str, key: str) -> list[str]:
        """Return the durable queues that get a message."""
        if not exchange:
            return [key] if key in self.queues else []
        kind = self.exchanges.get(exchange, "direct")
        mine = (
            one
            for one in self.bindings
            if one.exchange == exchange and is_match(kind, one.key, key)
        )
        return [*dict.fromkeys(one.queue for one in mine)]


def _binding(entry: Entry) -> Binding:
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
    """The table of a vhost: a log of one queue, which each process reads whole once, and
    then its tail.

    It is read before a look-up when it is older than BELIEVED_S, or does not have what is
    looked for. Only what is new is appended. Two processes that append the same do no harm.
    """

    def __init__(
        self,
        read: Callable[[int], tuple[list[bytes], int]],
        append: Callable[[bytes], object],
    ) -> None:
        """`read(offset)`: what is stored from there on, and where to go on. `append(entry)`
        stores one.
        """
        self._read, self._append = read, append
        self._table = Table()
        self._offset = 0
        self._read_at = float("-inf")
        self._lock = threading.RLock()

    def table(self, *, max_age_s: float = BELIEVED_S) -> Table:
        """Return the table, not older than that, or the last one while brokers are away."""
        with self._lock:
            if time.monotonic() - self._read_at > max_age_s:
                self._refresh()
            return self._table

    def ensure(self, *entries: Entry, is_new: Callable[[Table, Entry], bool]) -> None:
        """Append the entries that are new to the table."""
        with self._lock:
            if not self._missing(self._table, entries, is_new):
                return
            missing = self._missing(self.table(max_age_s=0.0), entries, is_new)
            for entry in missing:
                self._append(json.dumps(entry, ensure_ascii=False).encode())
            if missing:
                self._refresh()

    @staticmethod
    def _missing(
        table: Table, entries: Iterable[Entry], is_new: Callable[[Table, Entry], bool]
    ) -> list[Entry]:
        return [entry for entry in entries if is_new(table, entry)]

    def _refresh(self) -> None:
        try:
            while True:
                bodies, following = self._read(self._offset)
                for body in bodies:
                    self._take(body)
                self._offset = following
                if not bodies:
                    break
        except CatmqError as error:
            if self._read_at == float("-inf") or not error.retriable:
                raise
            log.warning("bindings are those of a moment ago: %s", error)
        self._read_at = time.monotonic()

    def _take(self, body: bytes) -> None:
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
