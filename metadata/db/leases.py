"""Leases: who does a sweep just now. A lease only saves double work; every leased job is
right when two run.

Time is the database's. A lease is a term: each new holder gets the next one.
"""

from __future__ import annotations

import mmap
import time
from datetime import timedelta
from typing import Any

from django.db import IntegrityError

from metadata.db.clock import UtcNow, database_now, later_sql, now_sql, to_utc
from metadata.db.rows import update
from metadata.db.transactions import reachable, transactional
from metadata.limits.lease_ends import LeaseEnds
from metadata.models import Lease

_TABLE = Lease._meta.db_table
_LOOK = "SELECT name, holder, term, expires_at"


_ends: LeaseEnds | None = None


def share(memory: mmap.mmap) -> None:
    """Share the ends of leases with the other workers of the broker; called before the
    loops start.
    """
    global _ends
    _ends = LeaseEnds(memory)


class LeaseHolder:
    """A process that asks for one lease again and again; used by one thread.

    While it has the lease for certain it asks nobody, nor while another worker of its
    broker has it.
    """

    def __init__(self, name: str, holder: str, *, ttl_s: float) -> None:
        self._name, self._holder, self._ttl_s = name, holder, ttl_s
        self._until = float("-inf")  # time.monotonic()
        self._end = 0  # that this process told the others

    def acquire(self) -> bool:
        """Take or renew the lease; return False while another holds it. Raises
        MetadataUnavailable.
        """
        now = time.monotonic()
        if now < self._until:
            return True
        if self._is_held_beside() or not self._ask():
            return False
        self._until = now + self._ttl_s / 2
        self._tell(int(1e9 * (now + self._ttl_s)))
        return True

    def release(self) -> None:
        """Give the lease up, so that another need not wait for its end. Does nothing if it
        was not taken.
        """
        if self._until == float("-inf"):
            return
        self._until = float("-inf")
        release(name=self._name, holder=self._holder)
        if not self._is_held_beside():
            self._tell(0)

    def _ask(self) -> bool:
        had_it = time.monotonic_ns() < self._end
        asked = {"name": self._name, "holder": self._holder}
        return (had_it and renew(**asked, ttl_s=self._ttl_s)) or acquire(
            **asked, ttl_s=self._ttl_s
        )

    def _is_held_beside(self) -> bool:
        """Return True if another worker of this broker has the lease."""
        end = _ends.end(self._name) if _ends is not None else 0
        return end != self._end and time.monotonic_ns() < end

    def _tell(self, end: int) -> None:
        self._end = end
        if _ends is not None:
            _ends.note(self._name, end)


def acquire(*, name: str, holder: str, ttl_s: float) -> bool:
    """Take or renew the lease; return True if `holder` has it for the next `ttl_s` / 2
    seconds at least.
    """
    return acquire_term(name=name, holder=holder, ttl_s=ttl_s) is not None


def renew(*, name: str, holder: str, ttl_s: float) -> bool:
    """Move the end of a lease, in one statement; return False if the holder has it no more."""
    with reachable():
        mine = f"name = %s AND holder = %s AND expires_at > {now_sql()}"
        renewal = f"UPDATE {_TABLE} SET expires_at = {later_sql()} WHERE {mine}"  # noqa: S608
        return update(renewal, [ttl_s, name, holder]) > 0


def acquire_term(*, name: str, holder: str, ttl_s: float) -> int | None:
    """The number of the holder's term after acquiring or renewing, None while another holds
    the lease.
    """
    with reachable():
        rows = Lease.objects.raw(
            f"{_LOOK}, {now_sql()} AS now FROM {_TABLE} WHERE name = %s", [name]
        )
        row: Any = next(iter(rows), None)
        if row is None:
            return _first(name, holder, ttl_s)
        now, ttl, mine = to_utc(row.now), timedelta(seconds=ttl_s), row.holder == holder
        # A LeaseHolder comes back when half of it is over by its own clock: then it must
        # not be sent away.
        if row.expires_at - now > (ttl * 2 / 3 if mine else timedelta()):
            return row.term if mine else None
        # Guarded by its term, and its end if another has it: of several that find it over,
        # one gets it, and
        # none whose holder has renewed it since.
        same = Lease.objects.filter(pk=name, holder=row.holder, term=row.term)
        same = same if mine else same.filter(expires_at__lte=now)
        number = row.term if mine else row.term + 1
        return (
            number
            if same.update(holder=holder, term=number, expires_at=now + ttl)
            else None
        )


def release(*, name: str, holder: str) -> None:
    """Give the lease up, so that another need not wait for its end."""
    with reachable():
        Lease.objects.filter(pk=name, holder=holder).update(expires_at=UtcNow())


@transactional
def _first(name: str, holder: str, ttl_s: float) -> int | None:
    until = database_now() + timedelta(seconds=ttl_s)
    try:
        return Lease.objects.create(name=name, holder=holder, term=1, expires_at=until).term
    except IntegrityError:
        return None
