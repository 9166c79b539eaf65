"""The brokers and the options of a connection of kombu."""

from __future__ import annotations

from typing import Any

from catmq_client.contrib.kombu.cluster import ClusterKey
from catmq_client.contrib.kombu.options import (
    KEY_RULE,
    PORT,
    SCHEMES,
    Address,
    TransportOptions,
    parse_address,
    parse_options,
)
from catmq_client.errors import OptionError


def broker_addresses(client: Any, scheme: str) -> list[Address]:
    """Return the brokers of a kombu.Connection: the current one, then its alternates.

    Raises OptionError for an invalid URL.
    """
    host = client.hostname or "localhost"
    if "://" in host:
        current = parse_address(host)
    else:
        if client.userid:
            raise OptionError(KEY_RULE)
        is_secure = scheme == "catmqs" or bool(client.ssl)
        name = f"[{host}]" if ":" in host else host
        url = f"{'https' if is_secure else 'http'}://{name}:{client.port or PORT}"
        current = Address(
            url,
            client.password or None,
            (client.virtual_host or "").strip("/") or parse_address(f"{scheme}://x").vhost,
        )
    alternates = [
        parse_address(url) for url in client.alt or () if url.partition("://")[0] in SCHEMES
    ]
    return [current, *(address for address in alternates if address.url != current.url)]


def cluster_key(client: Any, addresses: list[Address]) -> ClusterKey:
    """Return the parameters of a connection's cluster.

    Raises OptionError for an invalid option, or if the addresses differ in API key or vhost.
    """
    options: TransportOptions = parse_options(client.transport_options or {})
    # Celery's broker_use_ssl.
    if isinstance(client.ssl, dict) and client.ssl.get("ca_certs"):
        options = parse_options(
            {**client.transport_options, "verify": client.ssl["ca_certs"]}
        )
    first = addresses[0]
    deviating = next(
        (
            address
            for address in addresses
            if (address.api_key, address.vhost) != (first.api_key, first.vhost)
        ),
        None,
    )
    if deviating is not None:
        raise OptionError(
            f"broker URLs: {deviating.url} has another API key or name behind the / than "
            f"{first.url}: "
            "write the same for all brokers"
        )
    return ClusterKey(
        tuple(address.url for address in addresses), first.api_key, first.vhost, options
    )
