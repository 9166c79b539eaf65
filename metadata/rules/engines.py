"""Versions of MySQL and MariaDB that can hold messages."""

from __future__ import annotations

import re

OLDEST = {"MariaDB": (10, 6), "MySQL": (8, 0)}


def server_of(version: str) -> tuple[str, tuple[int, int]]:
    """Parse a server's VERSION(): its kind, and the first two numbers; (0, 0) if it says none.

    >>> server_of("10.11.6-MariaDB-0+deb12u1")
    ('MariaDB', (10, 11))
    >>> server_of("8.0.36")
    ('MySQL', (8, 0))
    """
    kind = "MariaDB" if "mariadb" in version.lower() else "MySQL"
    found = re.match(r"(\d+)\.(\d+)", version)
    return kind, (int(found[1]), int(found[2])) if found else (0, 0)


def is_supported(version: str) -> bool:
    """Return True if a server of this version can be a node.

    >>> is_supported("5.7.44"), is_supported("10.5.23-MariaDB"), is_supported("11.4.2-MariaDB")
    (False, False, True)
    """
    kind, numbers = server_of(version)
    return numbers >= OLDEST[kind]
