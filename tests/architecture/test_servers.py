"""The tables of database servers say what was run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import servers


@pytest.mark.parametrize("page", servers.PAGES, ids=lambda page: page.name)
def test_the_table_of_servers_is_that_of_the_results(page: Path) -> None:
    assert servers.with_table(page.read_text()) == page.read_text(), "run python -m tests.servers"


def test_every_test_that_is_named_for_a_server_is_there() -> None:
    paths = [path for suite in servers.SUITES.values() for path in suite.paths]
    assert [path for path in paths if not (servers.ROOT / path).exists()] == []
