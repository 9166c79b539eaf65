"""Limits on sending, per topic and per API key: buckets in the memory of each broker
process.

A process may let its share through: a little of the limit in any case, the rest by what it
is asked to send, compared with all processes that serve (rules.rates.share). Every few
seconds it writes down what it was asked for and reads what the others were. It takes a
larger share one pass later, when they have read of it, and a smaller one at once. While
metadata is away for longer than a moment, and where nobody is asked for anything, shares
are equal. A send never waits for that: it pays with one lock, and without limits with two
look-ups.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from time import monotonic

from metadata.actors import Actor
from metadata.brokers import snapshot_acks
from metadata.cache import snapshot
from metadata.cache.snapshot_types import KeyInfo, TopicInfo
from metadata.errors import MetadataUnavailable, RateLimited
from metadata.rules.rates import Bucket, Rates, share, wait_s

MOST_BUCKETS = 10_000
MOST_TOLD = 500  # limits that a process names to the others: those it is asked most for
STALE_S = 15.0  # shares that were computed so long ago count no more
EVERY_S = 2.0  # between two passes
# between two that ask how many processes there are, where nothing is limited
UNLIMITED_S = 10.0

_Key = tuple[str, int, str]  # what is limited, the row's id, the unit
_Demand = dict[str, float]  # the key as text → asked for in a second


class _Buckets:
    """The buckets of this process, and its shares; changed under `lock` only."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.processes = 1
        self.divided_at = float("-inf")
        self.asked: Counter[_Key] = Counter()  # since `since`
        self.since = monotonic()
        self.told: _Demand = {}  # what the others may know
        self._shares: dict[str, float] = {}
        self._shared_at = float("-inf")
        self._known: dict[_Key, Bucket] = {}

    def of(self, key: _Key, *, now: float) -> Bucket:
        if len(self._known) > MOST_BUCKETS:
            self._known = {}
        return self._known.setdefault(key, Bucket(float("inf"), now))

    def ask(self, key: _Key, amount: int) -> None:
        """Note that so much is to be sent."""
        if len(self.asked) <= MOST_BUCKETS:
            self.asked[key] += amount

    def share(self, key: _Key, now: float) -> float:
        even = 1 / self.processes
        return (
            self._shares.get(_text(key), even) if now - self._shared_at < STALE_S else even
        )

    def measured(self, now: float) -> _Demand:
        """Return what was asked for in a second since the last call; what fell stays half
        of what it was.
        """
        lasted_s = max(0.1, now - self.since)
        asked = {_text(key): amount / lasted_s for key, amount in self.asked.items()}
        self.asked, self.since = Counter(), now
        for key, before in self.told.items():
            asked[key] = max(asked.get(key, 0.0), before / 2)
        most = sorted(asked.items(), key=lambda one: -one[1])[:MOST_TOLD]
        return {key: round(amount, 1) for key, amount in most if amount >= 0.1}

    def divide(self, mine: _Demand, others: Sequence[_Demand], now: float) -> None:
        """Take this process's shares, by what the others know of it."""
        known = {key: min(amount, self.told.get(key, 0.0)) for key, amount in mine.items()}
        sums: Counter[str] = Counter()
        for one in others:
            sums.update(one)
        self.processes, self.divided_at = 1 + len(others), now
        self._shares = {
            key: share(mine=known.get(key, 0.0), others=sums[key], processes=self.processes)
            for key in known.keys() | sums.keys()
            if known.get(key) or sums[key]
        }
        self.told, self._shared_at = mine, now


def _text(key: _Key) -> str:
    return ":".join(map(str, key))


_buckets = _Buckets()


def admit(
    *, topic: TopicInfo, actor: Actor, messages: int, size: Callable[[], int]
) -> None:
    """Take messages, and their `size()` in bytes, from the limits of the topic and of the
    actor's key.

    Raises RateLimited, and takes nothing, while one of them has not enough; it says how
    long to wait.
    """
    key = None if actor.key_id is None else snapshot.current().keys.get(actor.key_id)
    limits = [("topic", topic.id, topic.name, topic.rates)]
    if key is not None:
        limits.append(("key", key.id, key.name, key.rates))
    if all(rates.unlimited for *_, rates in limits):
        return
    with _buckets.lock:
        _take(limits, messages, size)


def _take(
    limits: list[tuple[str, int, str, Rates]], messages: int, size: Callable[[], int]
) -> None:
    now, longest, slowest = monotonic(), 0.0, ""
    taken: list[tuple[Bucket, int]] = []
    for what, row, name, rates in limits:
        for unit, limit in (("messages", rates.messages), ("bytes", rates.bytes)):
            if limit is None:
                continue
            key = (what, row, unit)
            bucket = _buckets.of(key, now=now)
            amount = messages if unit == "messages" else size()
            _buckets.ask(key, amount)
            wait = wait_s(
                bucket, rate=limit * _buckets.share(key, now), amount=amount, now=now
            )
            taken.append((bucket, amount))
            if wait > longest:
                longest, slowest = wait, f"{what} {name} takes {limit} {unit} a second"
    if longest > 0:
        raise RateLimited(
            f"Quota exceeded on all brokers together: {slowest}.",
            retry_after_ms=int(longest * 1000) + 1,
        )
    for bucket, amount in taken:
        bucket.level -= amount


def share_limits(*, name: str) -> int:
    """One pass: tells the others what this worker, of that name, is asked for, and takes
    its shares; by how many processes the limits are shared. Keeps them if metadata cannot
    say, and for a while where nothing is limited."""
    with _buckets.lock:
        mine = _buckets.measured(monotonic())
        was_told = bool(_buckets.told)
        is_fresh = monotonic() - _buckets.divided_at < UNLIMITED_S
    if is_fresh and not mine and not was_told and _is_unlimited():
        return _buckets.processes
    with suppress(MetadataUnavailable):
        if mine or was_told:
            snapshot_acks.report_demand(name=name, text=json.dumps(mine) if mine else "")
        said = snapshot_acks.read_demands()
        others = [_read(text) for other, text in said.items() if other != name]
        with _buckets.lock:
            _buckets.divide(mine, others, monotonic())
    return _buckets.processes


def _is_unlimited() -> bool:
    known = snapshot.current()
    limited: Iterable[TopicInfo | KeyInfo] = (*known.topics.values(), *known.keys.values())
    return all(one.rates.unlimited for one in limited)


def _read(text: str) -> _Demand:
    """Return what another worker said, also one of another version; nothing if it cannot be
    understood.
    """
    try:
        said = json.loads(text or "{}")
    except ValueError:
        return {}
    if not isinstance(said, dict):
        return {}
    return {
        key: float(amount)
        for key, amount in said.items()
        if isinstance(amount, int | float)
    }


def evict() -> None:
    global _buckets
    _buckets = _Buckets()
