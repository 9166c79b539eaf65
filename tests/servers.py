"""Database servers of several versions, and the suites of tests that run on each.

`script/test servers` runs all of `SUITES` but the core on all of `VERSIONS`, `servers-ci`
those of `IN_CI`, and `core` the core on the same
versions.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
INSTALLED = ""  # the version of CATMQ_TEST_SERVER that stands for the installed MariaDB
VERSIONS = ("9.7", "11.8", "8.4", "10.6", "12.3", INSTALLED)


class Suite(NamedTuple):
    """Tests that run together on one server. `engine` is that of the tests' own process."""

    title: str
    paths: tuple[str, ...]
    options: tuple[str, ...] = ()
    engine: str = "mysql"


def files(folder: str, *names: str) -> tuple[str, ...]:
    """Return the test files of a folder by their names."""
    return tuple(f"tests/{folder}/test_{name}.py" for name in names)


FORCED = "integration/mariadb"  # errors that only a server has
PROMOTION = (*files(FORCED, "store_promotion"), *files("integration", "lost_nodes"))
DURABILITY = files(
    FORCED, "store_durability", "store_crash", "delays_crash", "failures_killed"
)
ON_EACH = ("-m", "not one_engine")
# The portal and the commands read metadata through Django, and nodes through the store. So CI
# tests them on SQLite and the installed MariaDB only.
SITE = "tests/integration/site"
STORE_OPTIONS = (
    *ON_EACH,
    *(f"--ignore={path}" for path in (SITE, *PROMOTION, *DURABILITY)),
)
SPARK = files("spark", "reading", "packets", "lost_nodes", "whole_way")
# Where servers differ: statements, tables, errors, locks, isolation, durability. What CI runs
# on each server includes them.
CORE = (
    *files(FORCED, "store_durability", "store_faults", "store_group_commit"),
    *files(
        FORCED,
        "site_connections",
        "lost_sessions",
        "isolation",
        "commits_waiting",
        "store_cut",
    ),
    *files(
        "integration",
        "store_tables",
        "store_publish",
        "store_nodes",
        "partitions",
        "joining",
    ),
    *files("integration", "share_tables", "metadata_snapshot", "outbox", "inbox"),
)
SUITES = {  # in the order in which they begin
    "acceptance": Suite("Acceptance", ("tests/acceptance",), engine="sqlite"),
    "store": Suite("Store, delivery, groups", ("tests/integration",), STORE_OPTIONS),
    "site": Suite("Portal and commands", (SITE,), ON_EACH),
    "promotion": Suite("Promotion with GTID", PROMOTION),
    "durability": Suite("Durability, kill -9", DURABILITY),
    "spark": Suite("Spark reads", SPARK, engine="sqlite"),
    "contract": Suite("HTTP contract", ("tests/contract",)),
    "core": Suite("Core", CORE),
}
# Suites by version. The installed MariaDB has all of them, so on another MariaDB CI has time
# only for what differs between servers; `script/test servers` has the rest.
IN_CI = {
    "9.7": ("store", "promotion", "durability", "spark"),
    "11.8": ("core", "promotion", "durability"),
}


def download(versions: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Download servers that are not in the cache. Return packages, and reasons of failures,
    by version.
    """
    packages, reasons = {}, {}
    for version in sorted(set(versions)):
        command = [
            "timeout",
            "900",
            ROOT / "script" / "mysql",
            "fetch",
            "--version",
            version,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            last_line = (done.stderr.strip() or "no download in 900 s").splitlines()[-1]
            reasons[version] = f"!!! Server {version} CANNOT BE HAD here: {last_line}"
        else:
            packages[version] = done.stdout.strip()
    return packages, reasons
