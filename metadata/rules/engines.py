"""Versions of MySQL and MariaDB that can hold messages."""

from __future__ import annotations

import re
from typing import NamedTuple

# Required by statements. MariaDB: SKIP LOCKED. MySQL: STOP REPLICA (8.0.22), and columns
# that are added instantly (8.0.29).
OLDEST = {"MariaDB": (10, 6, 0), "MySQL": (8, 0, 29)}
# Series with long-term support, with the year and month in which it ends; None: later
# than known.
LONG_TERM: dict[str, dict[tuple[int, int], tuple[int, int] | None]] = {
    "MariaDB": {
        (10, 6): (2026, 7),
        (10, 11): (2028, 2),
        (11, 4): (2029, 5),
        (11, 8): (2028, 6),
        (12, 3): None,
    },
    "MySQL": {(8, 0): (2026, 4), (8, 4): (2032, 4), (9, 7): None},
}
# MariaDB puts this before its version for old clients that expect a 5.x server.
REPLICATION_PREFIX = "5.5.5-"


class Server(NamedTuple):
    """Kind of a server (MySQL or MariaDB) and numbers of its version; (0, 0, 0) if
    unknown.
    """

    kind: str
    numbers: tuple[int, int, int]


def parse_version(version: str) -> Server:
    """Parse the version string of a server. Percona Server, Aurora and the clouds' MySQL
    count as MySQL.

    >>> parse_version("10.11.6-MariaDB-0+deb12u1")
    Server(kind='MariaDB', numbers=(10, 11, 6))
    >>> parse_version("5.5.5-10.6.12-MariaDB-log").numbers, parse_version("8.0.36-28").kind
    ((10, 6, 12), 'MySQL')
    """
    kind = "MariaDB" if "mariadb" in version.lower() else "MySQL"
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version.removeprefix(REPLICATION_PREFIX))
    return Server(
        kind, (int(match[1]), int(match[2]), int(match[3] or 0)) if match else (0, 0, 0)
    )


def is_supported(version: str) -> bool:
    """Return True if a server of this version can be a node.

    >>> is_supported("5.7.44"), is_supported("10.5.23-MariaDB"), is_supported("11.4.2-MariaDB")
    (False, False, True)
    >>> is_supported("8.0.28"), is_supported("8.0.36-28"), is_supported("8.0.mysql_aurora.3.08.0")
    (False, True, False)
    """
    kind, numbers = parse_version(version)
    return numbers >= OLDEST[kind]


TOO_OLD = "%(version)s is too old. %(oldest)s is required, or a later version."


def too_old_message(version: str) -> str:
    return TOO_OLD % {"version": version, "oldest": oldest_versions()}


def oldest_versions() -> str:
    return " or ".join(
        f"{kind} {'.'.join(map(str, numbers)).removesuffix('.0')}"
        for kind, numbers in OLDEST.items()
    )


def is_maintained(version: str, *, now: tuple[int, int]) -> bool:
    """Return True if a version gets security fixes in a month (year, month), as far as
    known.

    A version that is newer than all known series counts as maintained. Short-term
    series between two long-term series do not.

    >>> is_maintained("8.0.44", now=(2026, 11)), is_maintained("8.4.7", now=(2026, 11))
    (False, True)
    >>> is_maintained("9.1.0", now=(2026, 11)), is_maintained("13.0.1-MariaDB", now=(2026, 11))
    (False, True)
    """
    kind, numbers = parse_version(version)
    series = LONG_TERM[kind]
    # A series between two long-term series ended with its successor.
    if numbers[:2] not in series:
        return numbers[:2] > max(series)
    end = series[numbers[:2]]
    return end is None or now <= end
