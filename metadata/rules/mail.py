"""E-mail addresses, and the URL of a mail server."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
ALLOWED = (LETTERS | set("!#$%&'*+/=?^_`{|}~.-"), LETTERS | set(".-"))
MAX_CHARS = 254
PORTS = {"smtp": 25, "smtp+starttls": 587, "smtps": 465}


class MailServer(NamedTuple):
    """A mail server; `security` is "" (plain text), "tls" (from the first byte) or
    "starttls".
    """

    host: str
    port: int
    username: str
    password: str
    security: str


def parse_server(url: str) -> MailServer:
    """Parse smtp://user:password@host:port, with %-escapes in user and password. Raises
    ValueError.

    >>> server = parse_server("smtp+starttls://ops:a%40b@mail.example.org")
    >>> server.host, server.port, server.username, server.password, server.security
    ('mail.example.org', 587, 'ops', 'a@b', 'starttls')
    """
    parts = urlsplit(url)
    # urlsplit() checks the port only when it is read.
    try:
        port = parts.port or PORTS.get(parts.scheme, 0)
    except ValueError:
        port = 0
    if parts.scheme not in PORTS or not parts.hostname or not port or parts.path.strip("/"):
        raise ValueError(
            "must look like smtp://host:25, smtp+starttls://user:password@host:587 or smtps://…:465"
        )
    security = {"smtp": "", "smtp+starttls": "starttls", "smtps": "tls"}[parts.scheme]
    return MailServer(
        parts.hostname,
        port,
        unquote(parts.username or ""),
        unquote(parts.password or ""),
        security,
    )


def parse_addresses(text: str) -> list[str]:
    """Return the e-mail addresses in a text, separated by commas, semicolons or spaces,
    without duplicates.

    >>> parse_addresses("a@x.org, b@x.org; a@x.org")
    ['a@x.org', 'b@x.org']
    """
    return list(dict.fromkeys(text.replace(",", " ").replace(";", " ").split()))


def is_allowed_recipient(address: str, domains: Collection[str]) -> bool:
    """Return True if the domain of an address is in `domains` (exactly), or if `domains`
    is empty.

    >>> is_allowed_recipient("ops@Example.org", ["example.org"])
    True
    >>> is_allowed_recipient("ops@a.example.org", ["example.org"])
    False
    """
    return not domains or address.rpartition("@")[2].lower() in {
        domain.lower() for domain in domains
    }


def is_address(text: str) -> bool:
    """Return True if a text looks like an e-mail address.

    >>> [is_address(one) for one in ("ops@example.org", "ops@localhost", "ops", "a@b@c",
    ...     "a b@c", "a@-")]
    [True, True, False, False, False, False]
    """
    user, _at, domain = text.partition("@")
    has_valid_parts = all(
        text and set(text) <= allowed
        for text, allowed in zip((user, domain), ALLOWED, strict=True)
    )
    return (
        has_valid_parts
        and len(text) <= MAX_CHARS
        and domain[0] not in ".-"
        and domain[-1] not in ".-"
    )
