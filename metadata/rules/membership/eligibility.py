"""Members of a group that may own queues: those with an allowed address, up to a maximum
number.

Other members stay registered and stand by. Members that hold queues go first, then
those that joined first. So a member that comes back does not push out the one that took
its place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_network

from msgspec import Struct

from metadata.rules.membership.addresses import Network, is_within


class Candidate(Struct, frozen=True):
    """A member: its id (ids rise as members join), its address, and the number of queues
    that it holds.
    """

    member: int
    address: str
    queues: int


def eligible_members(
    members: Iterable[Candidate], *, allow: str, deny: str, most: int | None
) -> list[int]:
    """Return the ids of the members that may own queues, in order.

    `allow` and `deny` list addresses and networks. An empty `allow` allows all, an
    empty `deny` denies none, and `deny` takes precedence. `most` is the maximum number,
    None for no limit.

    >>> two = [Candidate(1, "10.0.0.1", 0), Candidate(2, "10.0.0.2", 3)]
    >>> eligible_members(two, allow="10.0.0.0/24", deny="", most=1)
    [2]
    >>> eligible_members(two, allow="", deny="10.0.0.2", most=None)
    [1]
    """
    allowed, denied = parse_networks(allow), parse_networks(deny)
    permitted = [
        candidate
        for candidate in members
        # An empty address is in no network.
        if not is_within(candidate.address, denied)
        and (not allowed or is_within(candidate.address, allowed))
    ]
    # Holders of queues first, so that a new limit moves as few queues as possible.
    ranked = sorted(
        permitted, key=lambda candidate: (candidate.queues == 0, candidate.member)
    )
    return sorted(candidate.member for candidate in ranked[:most])


def parse_networks(text: str) -> list[Network]:
    """Parse a list of networks, separated by commas or spaces. Raises ValueError with the
    first wrong entry.
    """
    return [ip_network(word, strict=False) for word in re.split(r"[,\s]+", text) if word]
