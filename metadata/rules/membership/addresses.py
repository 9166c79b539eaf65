"""Addresses of clients, also of clients that are connected through trusted proxies."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

# Widest network of proxies, in addresses, if clients are allowed by their address.
MAX_PROXIES = 256
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def parse_networks(texts: Sequence[str]) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(text) for text in texts)


def width_problem(proxies: Sequence[str]) -> str:
    """Return the problem with a network of proxies that is too wide, '' if there is none.

    Each host of such a network may claim any client address in X-Forwarded-For.

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
    """Return True if an address belongs to one of the networks; False if it is no address."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    # A dual-stack socket reports IPv4 clients as ::ffff:a.b.c.d.
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return any(ip in network for network in trusted)


def client_address(peer: str, forwarded: str, trusted: Sequence[Network]) -> str:
    """Return the address of the client: the last one in `X-Forwarded-For` that is not of a
    trusted proxy.

    Each proxy appends the address that connected to it, so entries further left may be
    forged. `peer`, the address that is connected, is returned without a proxy, and if
    the header is unusable.

    >>> client_address("10.0.0.1", "6.6.6.6, 192.0.2.7, 10.0.0.2", parse_networks(["10.0.0.0/8"]))
    '192.0.2.7'
    """
    client = peer
    # From the nearest proxy outwards, as long as the address before is trusted.
    for entry in reversed(forwarded.split(",")):
        if not is_within(client, trusted):
            break
        try:
            client = str(ipaddress.ip_address(entry.strip().strip("[]")))
        except ValueError:
            break
    return client
