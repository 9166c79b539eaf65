"""Parameters of a connection of kombu: its brokers, and the options that it was given."""

from __future__ import annotations

from typing import Any

from catmq_client.contrib.kombu.cluster import Key
from catmq_client.contrib.kombu.options import (
    KEY_RULE,
    PORT,
    SCHEMES,
    Address,
    TransportOptions,
    address,
    checked,
)
from catmq_client.errors import OptionError


def addresses_of(client: Any, scheme: str) -> list[Address]:
    """Return the brokers of a connection: the one it goes to now, then the alternates.
    Raises OptionError.
    """
    host = client.hostname or "localhost"
    if "://" in host:
        own = address(host)
    else:
        if client.userid:
            raise OptionError(KEY_RULE)
        is_secure = scheme == "catmqs" or bool(client.ssl)
        name = f"[{host}]" if ":" in host else host
        url = f"{'https' if is_secure else 'http'}://{name}:{client.port or PORT}"
        path = (client.virtual_host or "").strip("/")
        own = Address(url, client.password or None, path or address(f"{scheme}://x").vhost)
    others = [
        address(url) for url in client.alt or () if url.partition("://")[0] in SCHEMES
    ]
    return [own, *(one for one in others if one.url != own.url)]


def key_of(client: Any, addresses: list[Address]) -> Key:
    options: TransportOptions = checked(client.transport_options or {})
    if isinstance(client.ssl, dict) and client.ssl.get("ca_certs"):
        options = checked({**client.transport_options, "verify": client.ssl["ca_certs"]})
    first = addresses[0]
    wrong = next(
        (
            one
            for one in addresses
            if (one.api_key, one.vhost) != (first.api_key, first.vhost)
        ),
        None,
    )
    if wrong is not None:
        raise OptionError(
            f"broker URLs: {wrong.url} has another API key or name behind the / than {first.url}: "
            "write the same for all brokers"
        )
    return Key(tuple(one.url for one in addresses), first.api_key, first.vhost, options)
