"""docs/how-to/run-two-brokers.md does what it says, with both brokers on one machine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import documents
from tests.support.environment import ROOT, free_port
from tests.support.mariadb import MariaDB

PAGE = ROOT / "docs/how-to/run-two-brokers.md"


@pytest.fixture
def steps(mariadb: MariaDB) -> Iterator[list[str]]:
    """The page's blocks, with this database and ports that are free."""
    with mariadb.schema() as schema:
        url = f"mysql://catmq:{mariadb.password}@127.0.0.1:{mariadb.port}/{schema}"
        text = PAGE.read_text().replace("mysql://catmq:…@db1:3306/catmq", url)
        text = text.replace(
            "script/server --host 0.0.0.0",
            f"script/server --host 0.0.0.0 --port {free_port()}",
        )
        yield [
            str(block) for block in documents.blocks(text.replace("8001", str(free_port())))
        ]


def test_run_two_brokers(steps: list[str], tmp_path: Path) -> None:
    copy = documents.checkout(tmp_path)
    first, keys, second, listed, verify, accept = steps
    database = first.splitlines()[0]
    ours = f"{database}\n{keys}"
    with documents.serving(copy, first), documents.serving(copy, ours + second) as url:
        assert "CATMQ_API_KEY" not in (copy / "var2/credentials.env").read_text(), (
            "the first one's is for both"
        )
        said = documents.run(
            copy,
            f"PATH={ROOT}/.venv/bin:$PATH\nset -a\n. "
            f"var/credentials.env\nCATMQ_URL={url}\n{listed}",
        )
        assert len(re.findall(r"http://\S+", said)) == 2, said
        documents.run(copy, ours + verify)
        assert "are now those of the installation" in documents.run(copy, ours + accept)
