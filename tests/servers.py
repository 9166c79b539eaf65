"""Database servers of several versions: which tests run on each, and the table of what passed.

Each run of a suite keeps its result in tests/servers.json and writes the table into `PAGES`;
`python -m tests.servers` writes the table only.
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
INSTALLED = ""  # the version of CATMQ_TEST_SERVER that stands for the installed MariaDB


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
DURABILITY = files(FORCED, "store_durability", "store_crash", "delays_crash", "failures_killed")
STORE_OPTIONS = ("-m", "not one_engine", *(f"--ignore={path}" for path in (*PROMOTION, *DURABILITY)))
SPARK = files("spark", "reading", "packets", "lost_nodes", "whole_way")
# Where servers differ: statements, tables, errors, locks, isolation, durability. `IN_CI` includes them.
CORE = (
    *files(FORCED, "store_durability", "store_faults", "store_group_commit"),
    *files(FORCED, "site_connections", "lost_sessions", "isolation"),
    *files("integration", "store_tables", "store_publish", "store_nodes", "partitions", "joining"),
    *files("integration", "outbox", "inbox"),
)
SUITES = {  # in the order in which they begin
    "acceptance": Suite("Acceptance", ("tests/acceptance",), engine="sqlite"),
    "store": Suite("Store, delivery, groups, portal", ("tests/integration",), STORE_OPTIONS),
    "promotion": Suite("Promotion with GTID", PROMOTION),
    "durability": Suite("Durability, kill -9", DURABILITY),
    "spark": Suite("Spark reads", SPARK, engine="sqlite"),
    "contract": Suite("HTTP contract", ("tests/contract",)),
    "core": Suite("", CORE),
}
WHOLE = tuple(name for name in SUITES if name != "core")  # which have a column in the table
IN_CI = ("store", "promotion", "durability", "spark")


def download(versions: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Download servers that are not in the cache. Return packages, and reasons of failures, by version."""
    packages, reasons = {}, {}
    for version in sorted(set(versions)):
        command = ["timeout", "900", ROOT / "script" / "mysql", "fetch", "--version", version]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            last_line = (done.stderr.strip() or "no download in 900 s").splitlines()[-1]
            reasons[version] = f"!!! Server {version} CANNOT BE HAD here: {last_line}"
        else:
            packages[version] = done.stdout.strip()
    return packages, reasons


def record(passed: Mapping[tuple[str, str], bool]) -> None:
    """Keep whether suites passed, by package ("MySQL 9.7.4-2") and suite, and write the table."""
    results = json.loads(RESULTS.read_text())
    for (package, suite), has_passed in passed.items():
        server = re.sub(r"^(\w+) (?:\d+:)?(\d+\.\d+\.\d+).*$", r"\1 \2", package)
        series = server.rpartition(".")[0]
        # Results of an earlier version of the series say nothing of this one.
        results = {name: row for name, row in results.items() if name == server or series not in name}
        results.setdefault(server, {})[suite] = "passed" if has_passed else "failed"
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    for page in PAGES:
        page.write_text(with_table(page.read_text()))


def with_table(page: str) -> str:
    """Return the text of a page with the table of the kept results between its two marks."""
    results = json.loads(RESULTS.read_text())
    rows = [["Server", *(SUITES[name].title for name in WHOLE)], ["---"] * (1 + len(WHOLE))]
    rows += [
        [server, *(results[server].get(name, "not run") for name in WHOLE)] for server in sorted(results)
    ]
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    record({})
