"""The tables of database servers say what was run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import server_table, servers

SUMMARY = """
store-9.7   300 s  400 s of processors   900 passed, 0 failed
spark-9.7    30 s   40 s of processors     8 passed, 1 failed
spark-installed  30 s  40 s of processors  9 passed, 0 failed

on Python 3.11.7, SQLite 3.40.1, MariaDB 10.11.19, MySQL 9.7.4-2
"""


@pytest.mark.parametrize("page", server_table.PAGES, ids=lambda page: page.name)
def test_the_table_of_servers_is_that_of_the_results(page: Path) -> None:
    assert server_table.with_table(page.read_text()) == page.read_text()


def test_every_test_that_is_named_for_a_server_is_there() -> None:
    paths = [path for suite in servers.SUITES.values() for path in suite.paths]
    assert [path for path in paths if not (servers.ROOT / path).exists()] == []


def test_results_of_a_run_replace_those_of_earlier_versions_of_a_series(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, kept = tmp_path / "page.md", tmp_path / "servers.json"
    page.write_text(f"Before\n{server_table.BEGIN}\nold\n{server_table.END}\nAfter\n")
    kept.write_text(
        json.dumps(
            {"MySQL 9.7.3": {"contract": "passed"}, "MariaDB 11.8.6": {"spark": "passed"}}
        )
    )
    monkeypatch.setattr(server_table, "RESULTS", kept)
    monkeypatch.setattr(server_table, "PAGES", (page,))

    server_table.record(server_table.results_of(SUMMARY))

    assert json.loads(kept.read_text()) == {
        "MySQL 9.7.4": {"store": "passed", "spark": "failed"},
        "MariaDB 10.11.19": {"spark": "passed"},
        "MariaDB 11.8.6": {"spark": "passed"},
    }
    assert page.read_text().startswith("Before\n") and page.read_text().endswith("After\n")
    assert "old" not in page.read_text() and "| MySQL 9.7.4 |" in page.read_text()
