"""Leases: which process runs a periodic job. A lease only avoids double work. Every leased job
stays correct if two processes run it at the same time.

A lease is a row with its holder and its end, by the clock of the database. The term of a lease
is a number that increases with each new holder. A LeaseHolder also estimates the end by its
own clock, to save queries.
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
_COLUMNS = "SELECT name, holder, term, expires_at"


_ends: LeaseEnds | None = None


def share(memory: mmap.mmap) -> None:
    """Share the ends of leases with the other workers of the broker. Called before the
    loops start.
    """
    global _ends
    _ends = LeaseEnds(memory)


class LeaseHolder:
    """A process that acquires a lease again and again. Used by a single thread.

    It sends no query in the first half of the lease's duration, when it certainly has the
    lease, nor while another worker of its broker has the lease.
    """

    def __init__(self, name: str, holder: str, *, ttl_s: float) -> None:
        self._name, self._holder, self._ttl_s = name, holder, ttl_s
        # Until then (time.monotonic()) this process has the lease, and need not renew it.
        self._renew_at = float("-inf")
        # The end of the lease (time.monotonic_ns()) as this process last noted it in the memory
        # that the workers share. 0: it has noted none, or has released the lease.
        self._noted_end = 0

    def acquire(self) -> bool:
        """Take or renew the lease. Return False while another holder has it. Raises
        MetadataUnavailable.
        """
        now = time.monotonic()
        if now < self._renew_at:
            return True
        if self._is_held_by_other_worker():
            return False
        lease = {"name": self._name, "holder": self._holder}
        # A renewal is a single statement, an acquire is several. So if this process noted an
        # end that has not come, it tries to renew first. The renewal may fail: then it acquires.
        may_hold = time.monotonic_ns() < self._noted_end
        is_held = may_hold and renew(**lease, ttl_s=self._ttl_s)
        if not is_held and not acquire(**lease, ttl_s=self._ttl_s):
            return False
        # The second half of the duration is left for a renewal that is late.
        self._renew_at = now + self._ttl_s / 2
        self._share_end(int(1e9 * (now + self._ttl_s)))
        return True

    def release(self) -> None:
        """Give up the lease, so that the next holder need not wait for its end. No effect
        if it was not taken.
        """
        if self._renew_at == float("-inf"):
            return
        self._renew_at = float("-inf")
        release(name=self._name, holder=self._holder)
        if not self._is_held_by_other_worker():
            self._share_end(0)

    def _is_held_by_other_worker(self) -> bool:
        """Return True if another worker of this broker has the lease."""
        # The shared memory has one end for each lease name. If it is not the end that this
        # process noted last, another worker has noted it. Without shared memory, no other
        # worker is known.
        end = _ends.end(self._name) if _ends is not None else 0
        return end != self._noted_end and time.monotonic_ns() < end

    def _share_end(self, end: int) -> None:
        """Note the end of the lease for the other workers, 0 after a release."""
        self._noted_end = end
        if _ends is not None:
            _ends.note(self._name, end)


def acquire(*, name: str, holder: str, ttl_s: float) -> bool:
    """Take or renew the lease. Return True if `holder` has it for at least `ttl_s` / 2 more
    seconds.
    """
    return acquire_term(name=name, holder=holder, ttl_s=ttl_s) is not None


def renew(*, name: str, holder: str, ttl_s: float) -> bool:
    """Move the end of a lease, in a single statement. Return False if it is not the holder's any
    more.
    """
    with reachable():
        is_held = f"name = %s AND holder = %s AND expires_at > {now_sql()}"
        renewal = f"UPDATE {_TABLE} SET expires_at = {later_sql()} WHERE {is_held}"  # noqa: S608
        return update(renewal, [ttl_s, name, holder]) > 0


def acquire_term(*, name: str, holder: str, ttl_s: float) -> int | None:
    """Take or renew the lease. Return the number of the holder's term, None while another
    holder has the lease.
    """
    with reachable():
        rows = Lease.objects.raw(
            f"{_COLUMNS}, {now_sql()} AS now FROM {_TABLE} WHERE name = %s", [name]
        )
        row: Any = next(iter(rows), None)
        if row is None:
            return _create(name, holder, ttl_s)
        now, ttl, is_own = to_utc(row.now), timedelta(seconds=ttl_s), row.holder == holder
        # Nothing to do while the lease has more time left than this. Of another holder: until
        # it has ended (0 left). Own lease: until a third of its duration is over (2/3 left). A
        # LeaseHolder calls this when half is over by its own clock. A third by the database's
        # clock leaves room for a difference between the two clocks, or the call would return
        # without a renewal.
        if row.expires_at - now > (ttl * 2 / 3 if is_own else timedelta()):
            return row.term if is_own else None
        # The UPDATE is guarded. By the term: of several processes that have read an expired lease,
        # only the first gets it. By the end, for another holder's lease: no process gets it if
        # its holder has renewed it since it was read.
        unchanged = Lease.objects.filter(pk=name, holder=row.holder, term=row.term)
        unchanged = unchanged if is_own else unchanged.filter(expires_at__lte=now)
        number = row.term if is_own else row.term + 1
        return (
            number
            if unchanged.update(holder=holder, term=number, expires_at=now + ttl)
            else None
        )


def release(*, name: str, holder: str) -> None:
    """Give up the lease, so that the next holder need not wait for its end."""
    with reachable():
        Lease.objects.filter(pk=name, holder=holder).update(expires_at=UtcNow())


@transactional
def _create(name: str, holder: str, ttl_s: float) -> int | None:
    until = database_now() + timedelta(seconds=ttl_s)
    try:
        return Lease.objects.create(name=name, holder=holder, term=1, expires_at=until).term
    except IntegrityError:  # another process was first
        return None
