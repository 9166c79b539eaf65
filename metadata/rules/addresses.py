"""Lists of server addresses: `host` of a node or of the metadata database may name several.

    db1                      one server, on the default port
    db1,db2:3307,[::1]:3308  three servers of one cluster, or a primary and its replicas

The order of a list means nothing: servers are asked which of them accepts writes (see
`cluster_members`).
"""

from __future__ import annotations

from typing import NamedTuple

DEFAULT_PORT = 3306
MAX_TEXT = 500  # characters of a list
MAX_ADDRESSES = 9  # Galera and Group Replication advise against more members


class Address(NamedTuple):
    """Host and port of a server."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_addresses(text: str, port: int | None = None) -> tuple[Address, ...]:
    """Return the addresses of a list, each only once. `port` is that of hosts without one.

    Raises ValueError with a text that continues the name of the field.

    >>> [str(address) for address in parse_addresses("db1, db2:3307", 3306)]
    ['db1:3306', 'db2:3307']
    >>> parse_addresses("::1")
    (Address(host='::1', port=3306),)
    >>> str(parse_addresses("[::1]:3308")[0])
    '[::1]:3308'
    """
    default_port = port or DEFAULT_PORT
    addresses = [_parse_address(part.strip(), default_port) for part in text.split(",")]
    if len(addresses) > MAX_ADDRESSES:
        raise ValueError(
            f"has {len(addresses)} addresses, and at most {MAX_ADDRESSES} may be"
        )
    return tuple(dict.fromkeys(addresses))


def _parse_address(text: str, default_port: int) -> Address:
    host, port_text = text, ""
    if text.startswith("["):
        host, _bracket, rest = text[1:].partition("]")
        if rest:
            port_text = rest.removeprefix(":") if rest.startswith(":") else "?"
    # More than one colon without brackets is an IPv6 address without a port.
    elif text.count(":") == 1:
        host, _colon, port_text = text.partition(":")
        port_text = port_text or "?"
    is_port = not port_text or (port_text.isdigit() and 0 < int(port_text) < 65_536)
    if not host or not is_port or any(mark in host for mark in " /@?#"):
        raise ValueError(f"must be HOST or HOST:PORT, separated by commas, not {text!r}")
    return Address(host, int(port_text or default_port))


def describe(text: str, port: int | None) -> str:
    """Return a host field with the port of every address.

    >>> describe("db1,db2:3307", 3306), describe("db1", None)
    ('db1:3306, db2:3307', 'db1:3306')
    """
    try:
        return ", ".join(map(str, parse_addresses(text, port)))
    except ValueError:  # stored before addresses were checked
        return f"{text}:{port or DEFAULT_PORT}"


def is_list(text: str) -> bool:
    """Return True if a host field names several servers.

    >>> is_list("db1"), is_list("db1,db2")
    (False, True)
    """
    return "," in text


def check_hosts(text: str) -> None:
    """Raise ValueError unless the text is empty or a list of addresses."""
    if text:
        parse_addresses(text)
