"""Database servers of several versions: what runs on each, how they are had, and what passed there.

`script/test servers` runs all `SUITES` on all `VERSIONS` and on the installed MariaDB, `script/test
servers-ci` the suites of `IN_CI` on `IN_CI_ON`, and `script/test core` only `CORE` there. What passed is
kept in tests/servers.json, and from there the tables in README.md, README.zh-CN.md and
docs/reference/servers.md are made:

    python -m tests.servers        writes the tables
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "tests" / "servers.json"
PAGES = (ROOT / "README.md", ROOT / "README.zh-CN.md", ROOT / "docs" / "reference" / "servers.md")
BEGIN, END = "<!-- made by tests/servers.py -->\n", "<!-- end -->"
IN_CI_ON = ("9.7", "11.8")
VERSIONS = (*IN_CI_ON, "8.4", "10.6", "12.3")
INSTALLED = ""  # as CATMQ_TEST_SERVER has it
DOWNLOAD_S = 900


class Suite(NamedTuple):
    """Tests that run together on one server; `budget_s` is what they should take.

    `engine` is that of the tests' own process, beside the servers that they start.
    """

    title: str
    paths: tuple[str, ...]
    budget_s: int
    engine: str = "mysql"


FORCED = "tests/integration/mariadb/test_"
PROMOTION = (f"{FORCED}store_promotion.py", "tests/integration/test_lost_nodes.py")
DURABILITY = tuple(
    f"{FORCED}{name}.py" for name in ("store_durability", "store_crash", "delays_crash", "failures_killed")
)
APART = tuple(f"--ignore={path}" for path in (*PROMOTION, *DURABILITY))
READS = tuple(f"tests/spark/test_{name}.py" for name in ("reading", "packets", "lost_nodes", "whole_way"))
SUITES = {  # in the order in which they begin
    "acceptance": Suite("Acceptance", ("tests/acceptance",), 600, "sqlite"),
    "store": Suite("Store, delivery, groups, portal", ("tests/integration", *APART), 420),
    "promotion": Suite("Promotion with GTID", PROMOTION, 90),
    "durability": Suite("Durability, kill -9", DURABILITY, 120),
    "spark": Suite("Spark reads", READS, 180, "sqlite"),
    "contract": Suite("HTTP contract", ("tests/contract",), 180),
}
IN_CI = ("store", "promotion", "durability", "spark")
# Where servers differ: statements, tables, errors, locks, isolation, durability. The suites of `IN_CI` have
# these tests, too.
CORE = Suite(
    "Core",
    (
        *(f"{FORCED}store_{name}.py" for name in ("durability", "faults", "group_commit")),
        *(f"{FORCED}{name}.py" for name in ("site_connections", "lost_sessions", "isolation")),
        *(
            f"tests/integration/test_{name}.py"
            for name in (
                "store_tables",
                "store_publish",
                "store_nodes",
                "partitions",
                "joining",
                "outbox",
                "inbox",
            )
        ),
    ),
    120,
)


def title(version: str) -> str:
    """A version with its product; MariaDB's begin at 10."""
    return f"{'MariaDB' if int(version.partition('.')[0]) >= 10 else 'MySQL'} {version}"


def short(whole: str) -> str:
    """The three numbers of a package's version.

    >>> short("MariaDB 1:11.8.6-0+deb13u1"), short("MySQL 9.7.4-2")
    ('MariaDB 11.8.6', 'MySQL 9.7.4')
    """
    return re.sub(r"^(\w+) (?:\d+:)?(\d+\.\d+\.\d+).*$", r"\1 \2", whole)


class Prepared(NamedTuple):
    """{version: product and whole version} of servers that are here now, and why others are not."""

    there: dict[str, str]
    missing: dict[str, str]


def prepare(versions: Iterable[str]) -> Prepared:
    """Have each version in the cache; those that are not are downloaded, one after the other."""
    there, missing = {}, {}
    for version in sorted(set(versions)):
        command = [ROOT / "script" / "mysql", "fetch", "--version", version]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DOWNLOAD_S)
        except subprocess.TimeoutExpired:
            missing[version] = f"!!! {title(version)} CANNOT BE HAD here: no download in {DOWNLOAD_S} s."
            continue
        if done.returncode:
            missing[version] = done.stderr.strip().splitlines()[-1]
        else:
            there[version] = done.stdout.strip()
    return Prepared(there, missing)


def record(results: Mapping[tuple[str, str], bool]) -> None:
    """Note of (product and version, suite) whether it passed, and make the tables anew.

    What is known of an earlier version of the same series goes.
    """
    known = json.loads(RESULTS.read_text())
    for (server, suite), passed in results.items():
        for other in [one for one in known if series(one) == series(server) and one != server]:
            del known[other]
        known.setdefault(server, {})[suite] = "passed" if passed else "failed"
    RESULTS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    for page in PAGES:
        page.write_text(with_table(page.read_text()))


def series(server: str) -> str:
    """A server without the last number of its version."""
    return server.rpartition(".")[0]


def table() -> str:
    """What passed where, as Markdown."""
    known = json.loads(RESULTS.read_text())
    heads = ["Server", *(suite.title for suite in SUITES.values())]
    rows = [
        [server, *(told.get(name, "not run") for name in SUITES)] for server, told in sorted(known.items())
    ]
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def with_table(text: str) -> str:
    """A page with the table of now between its two marks."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    record({})
