"""Extend a lease without a recorded heartbeat, on promises of the brokers.

A broker that cannot reach the metadata database promises to expire no member for a session
from then on. It also reports for how long it has not reached the database, so it cannot
have expired a member in that time. Together this is worth as much as a recorded heartbeat, if it
holds for all brokers. A broker that cannot be reached counts as promised: most likely it has
stopped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

# A broker expires a member this long after the end of its lease, s.
GRACE_S = 1.0


class Promises:
    """Promises since the last recorded heartbeat. Times are seconds of the lease clock.

    >>> promises = Promises()
    >>> promises.add(["a"], sent_at=10.0, heard_at=10.1, silent_s=2.0, lease_until=12.0)
    True
    >>> promises.lease_start(["a"]), promises.lease_start(["a", "b"])
    (10.0, None)

    Broker b has reached the database after the lease had ended, so the member may be
    expired:

    >>> promises.add(["b"], sent_at=20.0, heard_at=20.1, silent_s=2.0, lease_until=12.0)
    False
    >>> promises.lease_start(["a"])
    """

    def __init__(self) -> None:
        self._sent_at: dict[str, float] = {}

    def clear(self) -> None:
        """Drop all promises: a heartbeat was recorded, or this is a new membership."""
        self._sent_at.clear()

    def add(
        self,
        brokers: Iterable[str],
        *,
        sent_at: float,
        heard_at: float,
        silent_s: float,
        lease_until: float,
    ) -> bool:
        """Note the promise in an answer to a heartbeat.

        The last of `brokers` answered; the others could not be reached. Return False and
        drop all promises if the database was last reached too late: the queues may be lost
        already.
        """
        if heard_at - silent_s >= lease_until + GRACE_S:
            self.clear()
            return False
        self._sent_at.update(dict.fromkeys(brokers, sent_at))
        return True

    def lease_start(self, brokers: Collection[str]) -> float | None:
        """Return the time from which a lease may count, or None if a promise is missing."""
        if not all(url in self._sent_at for url in brokers):
            return None
        return min((self._sent_at[url] for url in brokers), default=None)

    def need_renewal(self, brokers: Iterable[str], before: float) -> bool:
        """Return True if any of these brokers has no promise that was asked for at `before` or
        later.
        """
        return any(self._sent_at.get(url, float("-inf")) < before for url in brokers)

    def next_to_ask(self, brokers: Collection[str]) -> str | None:
        """Return the broker whose promise is the oldest or missing, or None without
        brokers.
        """
        return min(
            brokers, key=lambda url: self._sent_at.get(url, float("-inf")), default=None
        )
