"""Going on without a recorded heartbeat: what every broker promised who could not record
one.

Such a broker expires nobody for a session from then on, and says for how long it has not
heard from the metadata database, so that it cannot have expired anybody in that time.
Together that is worth as much as a recorded heartbeat, if no other broker is left that
might take our queues: each must have promised, or could not be reached.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

# A broker expires a member so long after the member's lease has ended, s.
GRACE_S = 1.0


class Promises:
    """Since the last heartbeat that was recorded; times in seconds of the lease clock.

    >>> given = Promises()
    >>> given.add(["a"], sent_at=10.0, heard_at=10.1, silent_s=2.0, lease_until=12.0)
    True
    >>> given.since(["a"]), given.since(["a", "b"])
    (10.0, None)
    >>> given.add(["b"], sent_at=20.0, heard_at=20.1, silent_s=2.0,
    ...     lease_until=12.0)  # it may be too late
    False
    >>> given.since(["a"])
    """

    def __init__(self) -> None:
        self._sent_at: dict[str, float] = {}

    def clear(self) -> None:
        """A heartbeat was recorded, or the membership is another one."""
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
        """Note the answer to a heartbeat: a promise of the last of these brokers, and that
        the others could not be reached. False, and none counts any more, if our queues may
        have gone before it."""
        if heard_at - silent_s >= lease_until + GRACE_S:
            self.clear()
            return False
        self._sent_at.update(dict.fromkeys(brokers, sent_at))
        return True

    def since(self, brokers: Collection[str]) -> float | None:
        """From when on a lease may be counted; None while one of these brokers has promised
        nothing.
        """
        if not all(url in self._sent_at for url in brokers):
            return None
        return min((self._sent_at[url] for url in brokers), default=None)

    def are_old(self, brokers: Iterable[str], before: float) -> bool:
        """Return True if one of these brokers has promised nothing since a time."""
        return any(self._sent_at.get(url, float("-inf")) < before for url in brokers)

    def oldest(self, brokers: Collection[str]) -> str | None:
        """Return the broker that has promised nothing for the longest time; None of none."""
        return min(
            brokers, key=lambda url: self._sent_at.get(url, float("-inf")), default=None
        )
