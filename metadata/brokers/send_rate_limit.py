"""Send rate limit, per topic and per API key: token buckets in the memory of each broker
process.

A limit holds for all brokers together, so each process may use only its share of it. A
tenth of the limit is divided evenly. The rest is divided in proportion to the demand: what
clients asked each process to send, refused sends included (rules.rates.share_of_limit).
Every two seconds a process makes a pass (share_limits()): it writes its demand to the
metadata, reads the demand of the others, and computes its shares.

For example, two processes share a limit of 100 messages per second. Process A is asked for
150 per second and B for 50. A may send 5 + 90 * 150 / 200 = 72.5 per second, and B
5 + 90 * 50 / 200 = 27.5.

The sum of the shares must not exceed the limit. So a process uses a larger share only a
pass later, when the others have read its demand, and a smaller share at once. Shares are
equal for limits under which no process has any demand, and while metadata has been
unavailable for longer than STALE_S.

A send never waits for metadata. It costs a lock, or two look-ups if nothing is limited.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic

from metadata.actors import Actor
from metadata.brokers import snapshot_acks
from metadata.cache import snapshot
from metadata.cache.snapshot_types import KeyInfo, TopicInfo
from metadata.errors import MetadataUnavailable, RateLimited
from metadata.rules.rates import Bucket, share_of_limit, wait_s

MAX_BUCKETS = 10_000
MAX_REPORTED = 500  # limits that a process reports; those with the highest demand
STALE_S = 15.0  # computed shares that are older are replaced by equal shares
EVERY_S = 2.0  # pause between two passes
# While nothing is limited, passes are skipped, except one in this time to count the processes.
UNLIMITED_S = 10.0

_Key = tuple[str, int, str]  # a limit: kind ("topic" or "key"), id of the row, unit
_Demand = dict[str, float]  # demand per second, by _Key as text


class _Buckets:
    """Buckets, shares and measured demand of this process. Changed under `lock` only."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.processes = 1  # that share the limits
        self.divided_at = float("-inf")  # monotonic() of the last pass that was not skipped
        self.demand: Counter[_Key] = Counter()  # amounts since `demand_since`
        self.demand_since = monotonic()
        # Demand of the pass before, which the other processes may have read.
        self.reported: _Demand = {}
        self._shares: dict[str, float] = {}  # by _Key as text
        self._shared_at = float("-inf")
        self._buckets: dict[_Key, Bucket] = {}

    def bucket(self, key: _Key, *, now: float) -> Bucket:
        """Return the bucket of a limit, a full one if there is none yet."""
        # Forgetting all buckets allows another burst, which does less harm than unbounded
        # memory.
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets = {}
        # The bucket starts full: wait_s() cuts the infinite level to the capacity.
        return self._buckets.setdefault(key, Bucket(float("inf"), now))

    def add_demand(self, key: _Key, amount: int) -> None:
        if len(self.demand) <= MAX_BUCKETS:
            self.demand[key] += amount

    def share(self, key: _Key, now: float) -> float:
        """Return the part of a limit that this process may use, 0 to 1."""
        even = 1 / self.processes
        return (
            self._shares.get(_text(key), even) if now - self._shared_at < STALE_S else even
        )

    def take_demand(self, now: float) -> _Demand:
        """Return the demand per second since the last call, highest first, and reset it.

        Reported demand falls by at most half per pass, so a short pause of the senders does
        not give the whole share away.
        """
        elapsed_s = max(0.1, now - self.demand_since)
        rates = {_text(key): amount / elapsed_s for key, amount in self.demand.items()}
        self.demand, self.demand_since = Counter(), now
        for key, before in self.reported.items():
            rates[key] = max(rates.get(key, 0.0), before / 2)
        highest = sorted(rates.items(), key=lambda entry: -entry[1])[:MAX_REPORTED]
        return {key: round(amount, 1) for key, amount in highest if amount >= 0.1}

    def divide(self, own: _Demand, others: Sequence[_Demand], now: float) -> None:
        """Compute this process's shares from its own demand and that of the others.

        `own` becomes the reported demand.
        """
        # Own demand counts only up to the figure of the pass before. The others compute their
        # shares from that, so with a higher figure the sum of the shares could exceed the
        # limit.
        counted = {
            key: min(amount, self.reported.get(key, 0.0)) for key, amount in own.items()
        }
        sums: Counter[str] = Counter()
        for demand in others:
            sums.update(demand)
        self.processes, self.divided_at = 1 + len(others), now
        self._shares = {
            key: share_of_limit(
                mine=counted.get(key, 0.0), others=sums[key], processes=self.processes
            )
            for key in counted.keys() | sums.keys()
            if counted.get(key) or sums[key]
        }
        self.reported, self._shared_at = own, now


def _text(key: _Key) -> str:
    return ":".join(map(str, key))


_buckets = _Buckets()


def admit(
    *, topic: TopicInfo, actor: Actor, messages: int, size: Callable[[], int]
) -> None:
    """Take messages, and their `size()` in bytes, from the limits of the topic and of the
    actor's API key.

    Raises RateLimited with the time to wait if a limit is exceeded. Nothing is taken
    from any of them then.
    """
    key = None if actor.key_id is None else snapshot.current().keys.get(actor.key_id)
    limits = [("topic", topic.id, topic.name, topic.rates)]
    if key is not None:
        limits.append(("key", key.id, key.name, key.rates))
    if all(rates.unlimited for *_, rates in limits):
        return
    with _buckets.lock:
        now, longest_wait_s, exceeded = monotonic(), 0.0, ""
        payments: list[tuple[Bucket, int]] = []
        for kind, row, name, rates in limits:
            for unit, limit in (("messages", rates.messages), ("bytes", rates.bytes)):
                if limit is None:
                    continue
                limit_key = (kind, row, unit)
                bucket = _buckets.bucket(limit_key, now=now)
                amount = messages if unit == "messages" else size()
                # Refused sends count as demand, too. Otherwise the demand of a process with a
                # small share could never exceed that share, and the share would not grow.
                _buckets.add_demand(limit_key, amount)
                rate = limit * _buckets.share(limit_key, now)
                wait = wait_s(bucket, rate=rate, amount=amount, now=now)
                payments.append((bucket, amount))
                if wait > longest_wait_s:
                    longest_wait_s = wait
                    exceeded = f"{kind} {name} takes {limit} {unit} a second"
        if longest_wait_s > 0:
            raise RateLimited(
                f"Quota exceeded on all brokers together: {exceeded}.",
                retry_after_ms=int(longest_wait_s * 1000) + 1,
            )
        # Taken only if every limit admits the messages: a refused send must not use up any
        # limit.
        for bucket, amount in payments:
            bucket.level -= amount


def share_limits(*, name: str) -> int:
    """Make a pass for this process, whose worker is called `name`: report its demand, read that
    of the others and compute the shares. Called every EVERY_S by a loop.

    Returns the number of processes that share the limits. While metadata is unavailable, the
    computed shares stay in use for STALE_S.
    """
    with _buckets.lock:
        demand = _buckets.take_demand(monotonic())
        had_reported = bool(_buckets.reported)
        is_fresh = monotonic() - _buckets.divided_at < UNLIMITED_S
    if is_fresh and not demand and not had_reported:
        metadata = snapshot.current()
        limited: tuple[TopicInfo | KeyInfo, ...] = (
            *metadata.topics.values(),
            *metadata.keys.values(),
        )
        # No statement while nothing is limited, except one to count the processes every
        # UNLIMITED_S.
        if all(row.rates.unlimited for row in limited):
            return _buckets.processes
    with suppress(MetadataUnavailable):
        if demand or had_reported:
            # Without demand "" is written once, so that the others forget the former demand.
            snapshot_acks.report_demand(
                name=name, text=json.dumps(demand) if demand else ""
            )
        reports = snapshot_acks.read_demands()
        other_demands = [_parse(text) for worker, text in reports.items() if worker != name]
        with _buckets.lock:
            _buckets.divide(demand, other_demands, monotonic())
    return _buckets.processes


def _parse(text: str) -> _Demand:
    """Return the demand that another worker reported.

    A text that cannot be parsed counts as no demand: workers of other versions may write
    another format.
    """
    try:
        demand = json.loads(text or "{}")
    except ValueError:
        return {}
    if not isinstance(demand, dict):
        return {}
    return {
        key: float(amount)
        for key, amount in demand.items()
        if isinstance(amount, int | float)
    }


def evict() -> None:
    """Forget all buckets and shares of this process."""
    global _buckets
    _buckets = _Buckets()
