"""Liveness and names of brokers: when a broker counts as alive, and which process may have a name.

A name belongs to one life of a broker (its incarnation: one gunicorn master). Another life
that claims the name gets it

* if the former life is over: it signed off, or was silent for ALIVE_S;
* at a start, if the former life has the same URL: only one process can listen there, so
  this is the same broker after a crash. If the former life is still running, it notices
  that it was replaced and stops.

Two lives with different URLs that claim a name are two brokers with one name: the first
keeps it.
"""

from __future__ import annotations

import re
from datetime import datetime
from enum import StrEnum
from urllib.parse import urlsplit

ALIVE_S = 10.0


class BrokerState(StrEnum):
    IN = "in"  # in service
    OUT = "out"  # drained: clients use the other brokers


class Claim(StrEnum):
    TAKE = "take"
    REPLACED = "replaced"  # the claimant had the name until another life took it
    TAKEN = "taken"  # by a live broker with another URL


def counts_as_alive(
    *, last_seen: datetime, stopped_at: datetime | None, now: datetime
) -> bool:
    """Return True if a broker is alive, by the database's clock, even if that was set
    back.
    """
    return stopped_at is None and abs((now - last_seen).total_seconds()) < ALIVE_S


def decide_claim(*, holder_alive: bool, same_url: bool, held: bool) -> Claim:
    """Decide a claim to a name that another life holds. `held`: the claimant had the name
    before.

    >>> decide_claim(holder_alive=True, same_url=True, held=False)
    <Claim.TAKE: 'take'>
    >>> decide_claim(holder_alive=True, same_url=False, held=False)
    <Claim.TAKEN: 'taken'>
    """
    if not holder_alive:
        return Claim.TAKE
    if not same_url:
        return Claim.TAKEN
    return Claim.REPLACED if held else Claim.TAKE


def is_broker_url(url: str) -> bool:
    """Return True if clients can use the URL: host, optional port and path, nothing else."""
    if not re.fullmatch(r"https?://[!-~]{1,490}", url) or set(url) & set("@?#\\"):
        return False
    # urlsplit() and its `port` raise for brackets and numbers that are no host and port.
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0 and not parts.netloc.endswith(":")
    except ValueError:
        return False
