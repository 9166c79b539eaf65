"""Addresses: whom a proxy that is trusted names is believed, nobody else."""

from __future__ import annotations

import pytest

from metadata.rules.membership.addresses import client_address, is_within, parse_networks

PROXIES = parse_networks(["10.0.0.0/8", "::1"])


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("192.0.2.9", "6.6.6.6", "192.0.2.9"),
        ("10.0.0.1", "192.0.2.7", "192.0.2.7"),
        ("10.0.0.1", "6.6.6.6, 192.0.2.7", "192.0.2.7"),
        ("10.0.0.1", "6.6.6.6, 192.0.2.7, 10.0.0.2", "192.0.2.7"),
        ("::1", "[2001:db8::1]", "2001:db8::1"),
        ("::ffff:10.0.0.1", "192.0.2.7", "192.0.2.7"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "nonsense\r\nX: y", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.3", "10.0.0.3"),
        ("", "192.0.2.7", ""),
    ],
)
def test_the_client_is_the_last_address_that_is_no_trusted_proxy(
    peer: str, forwarded: str, client: str
) -> None:
    assert client_address(peer, forwarded, PROXIES) == client


def test_without_trusted_proxies_no_header_is_believed() -> None:
    assert client_address("127.0.0.1", "192.0.2.7", ()) == "127.0.0.1"
    assert not is_within("127.0.0.1", ())
