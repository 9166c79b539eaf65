"""Members of a group that may own queues: those at an allowed address, at most so many.

The others stay registered and stand by. Who holds queues already goes first, then who
joined first, so a member that comes back does not push out the one that took its place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_network

from metadata.rules.membership.addresses import Network, is_within


@dataclass(frozen=True, slots=True)
class Candidate:
    """A member: its id (ids rise as members join), where it speaks from, and how many
    queues it has now.
    """

    member: int
    address: str
    queues: int


def eligible_members(
    members: Iterable[Candidate], *, allow: str, deny: str, most: int | None
) -> list[int]:
    """Ids of the members that may own queues, rising.

    `allow` and `deny` list addresses and networks ('' allows all, denies none; what is
    denied is not allowed, whatever `allow` says); `most` is the largest number of them,
    None for no limit.

    >>> two = [Candidate(1, "10.0.0.1", 0), Candidate(2, "10.0.0.2", 3)]
    >>> eligible_members(two, allow="10.0.0.0/24", deny="", most=1)
    [2]
    >>> eligible_members(two, allow="", deny="10.0.0.2", most=None)
    [1]
    """
    allowed, denied = parse_networks(allow), parse_networks(deny)
    welcome = [one for one in members if _may(one.address, allowed, denied)]
    first = sorted(welcome, key=lambda one: (one.queues == 0, one.member))
    return sorted(one.member for one in first[:most])


def parse_networks(text: str) -> list[Network]:
    """The networks of a list separated by commas or blanks; raises ValueError naming the
    first wrong word.
    """
    return [ip_network(word, strict=False) for word in re.split(r"[,\s]+", text) if word]


def _may(address: str, allowed: list[Network], denied: list[Network]) -> bool:
    """A socket without an address is in no network."""
    return not is_within(address, denied) and (not allowed or is_within(address, allowed))
