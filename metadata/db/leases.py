"""Leases: who does a sweep just now. A lease only saves double work; every leased job is right when two run.

Time is the database's. A lease is a term: each new holder gets the next one.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from django.db import IntegrityError
from django.db.models import F

from metadata.db.clock import database_now
from metadata.db.transactions import reachable, transactional
from metadata.models import Lease


@dataclass(frozen=True, slots=True)
class Term:
    name: str
    holder: str
    term: int


def acquire(*, name: str, holder: str, ttl_s: float) -> bool:
    """Take or renew the lease; return True if `holder` has it for the next `ttl_s` / 2 seconds at least."""
    return term(name=name, holder=holder, ttl_s=ttl_s) is not None


def term(*, name: str, holder: str, ttl_s: float) -> Term | None:
    """The holder's term after acquiring or renewing, None while another holds the lease."""
    with reachable():
        now = database_now()
        row = Lease.objects.filter(pk=name).first()
        if row is None:
            return _first(name, holder, ttl_s)
        if row.holder != holder:
            return None if row.expires_at > now else _taken(row, holder, ttl_s)
        left_s = (row.expires_at - now).total_seconds()
        if left_s < ttl_s / 2 and not _renewed(row, ttl_s):
            return None
        return Term(name, holder, row.term)


def release(*, name: str, holder: str) -> None:
    """Give the lease up, so that another need not wait for its end."""
    with reachable():
        Lease.objects.filter(pk=name, holder=holder).update(expires_at=database_now())


@transactional
def _first(name: str, holder: str, ttl_s: float) -> Term | None:
    until = database_now() + timedelta(seconds=ttl_s)
    try:
        Lease.objects.create(name=name, holder=holder, term=1, expires_at=until)
    except IntegrityError:
        return None
    return Term(name, holder, 1)


def _taken(row: Lease, holder: str, ttl_s: float) -> Term | None:
    """Guarded by the term: of several that find it over, one gets it."""
    until = database_now() + timedelta(seconds=ttl_s)
    over = Lease.objects.filter(pk=row.pk, holder=row.holder, term=row.term, expires_at=row.expires_at)
    taken = over.update(holder=holder, term=F("term") + 1, expires_at=until)
    return Term(row.name, holder, row.term + 1) if taken else None


def _renewed(row: Lease, ttl_s: float) -> bool:
    until = database_now() + timedelta(seconds=ttl_s)
    return Lease.objects.filter(pk=row.pk, holder=row.holder, term=row.term).update(expires_at=until) > 0
