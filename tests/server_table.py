"""Write the results of a run on other database servers into the table of their page.

    script/test servers | tee run.txt; .venv/bin/python -m tests.server_table run.txt

Results are kept in tests/servers.json. Those of an earlier version of a series are dropped.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from tests.servers import INSTALLED, ROOT, SUITES, VERSIONS

RESULTS = ROOT / "tests" / "servers.json"
PAGES = (ROOT / "docs" / "reference" / "servers.md",)
BEGIN, END = "<!-- made by tests/server_table.py -->\n", "<!-- end -->"
COLUMNS = {name: suite.title for name, suite in SUITES.items() if name != "core"}


def results_of(output: str) -> dict[str, dict[str, str]]:
    """Return what suites came to by server and suite, from the summary of a run.

    >>> results_of("spark-9.7  1 s  1 passed, 0 failed\\non SQLite 3.40.1, MySQL 9.7.4-2")
    {'MySQL 9.7.4': {'spark': 'passed'}}
    """
    packages = re.findall(
        r"(MariaDB|MySQL) (?:\d+:)?(\d+\.\d+\.\d+)", output.rpartition("\non ")[2]
    )
    results: dict[str, dict[str, str]] = {}
    for version in VERSIONS:
        # The installed MariaDB is the first of the list.
        fitting = [
            (name, whole)
            for name, whole in packages
            if version in (INSTALLED, whole.rpartition(".")[0])
        ]
        for suite in COLUMNS:
            line = rf"^{suite}-{re.escape(version) or 'installed'} .* (\d+) passed, (\d+) failed$"
            for passed, failed in re.findall(line, output, re.MULTILINE)[-1:]:
                verdict = "failed" if int(failed) or not int(passed) else "passed"
                results.setdefault(" ".join(fitting[0]), {})[suite] = verdict
    return results


def record(results: dict[str, dict[str, str]]) -> None:
    """Keep results by server and suite, and write the table into its pages."""
    kept = json.loads(RESULTS.read_text())
    for server, verdicts in results.items():
        series = server.rpartition(".")[0] + "."
        kept = {
            name: row
            for name, row in kept.items()
            if name == server or not name.startswith(series)
        }
        kept.setdefault(server, {}).update(verdicts)
    RESULTS.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
    for page in PAGES:
        page.write_text(with_table(page.read_text()))


def with_table(page: str) -> str:
    """Return the text of a page with the table of the kept results between its two marks."""
    rows = [["Server", *COLUMNS.values()], ["---"] * (1 + len(COLUMNS))]
    for server, verdicts in sorted(json.loads(RESULTS.read_text()).items()):
        rows.append([server, *(verdicts.get(suite, "not run") for suite in COLUMNS)])
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    record(results_of(Path(sys.argv[1]).read_text()))
