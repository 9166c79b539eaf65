"""Addresses of clients, also of those behind proxies that are trusted to name them."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

# addresses of one network of proxies, where clients are let in by their address
MAX_PROXIES = 256
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def parse_networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """Return networks such as 10.0.0.0/8; a single address counts as one. Raises
    ValueError.
    """
    return tuple(ipaddress.ip_network(text) for text in texts)


def width_problem(proxies: Sequence[str]) -> str:
    """Return what is wrong with a network of proxies that is too wide; '' if none is.

    Each host of such a network may name any client in X-Forwarded-For.

    >>> width_problem(["10.0.0.2", "10.9.0.0/24"]), width_problem(["10.0.0.0/8"])[:40]
    ('', 'each of the 16777216 hosts of 10.0.0.0/8')
    """
    for network in parse_networks(proxies):
        if network.num_addresses > MAX_PROXIES:
            return (
                f"each of the {network.num_addresses} hosts of {network} could claim an address of "
                "CATMQ_JAVA_NETWORKS. Name the proxies themselves, or networks of at most "
                f"{MAX_PROXIES} addresses."
            )
    return ""


def is_address(text: str) -> bool:
    """Return True for an IP address.

    >>> is_address("10.0.0.5"), is_address("::1"), is_address("db-1"), is_address("")
    (True, True, False, False)
    """
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def is_within(address: str, trusted: Sequence[Network]) -> bool:
    """Return whether an address belongs to one of the networks; what is no address does
    not.
    """
    try:
        known = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(known, ipaddress.IPv6Address) and known.ipv4_mapped is not None:
        known = known.ipv4_mapped
    return any(known in network for network in trusted)


def client_address(peer: str, forwarded: str, trusted: Sequence[Network]) -> str:
    """Return the address of the client: the last one in `X-Forwarded-For` that is no
    trusted proxy's.

    Each proxy adds whom it was asked by at the end, so what stands further left may be
    invented. Without a proxy, and when the header is of no use, it is `peer`, who is
    connected.

    >>> client_address("10.0.0.1", "6.6.6.6, 192.0.2.7, 10.0.0.2", parse_networks(["10.0.0.0/8"]))
    '192.0.2.7'
    """
    found = peer
    for entry in reversed(forwarded.split(",")):
        if not is_within(found, trusted):
            break
        try:
            found = str(ipaddress.ip_address(entry.strip().strip("[]")))
        except ValueError:
            break
    return found
