"""The pages about clusters do what they say, by their own blocks, from the first to the last."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support import documents
from tests.support.clusters import UNAVAILABLE
from tests.support.environment import ROOT, free_port
from tests.support.server import clean_environment

pytestmark = pytest.mark.rounds
PROGRAMS = f"{ROOT}/.venv/bin:{os.environ['PATH']}"


@pytest.mark.parametrize(
    ("page", "kind"),
    [("run-on-galera.md", "galera"), ("run-on-group-replication.md", "group")],
)
def test_a_cluster_loses_its_writer_and_goes_on(
    tmp_path: Path, page: str, kind: str
) -> None:
    environ = clean_environment()
    blocks = documents.blocks((ROOT / "docs/how-to" / page).read_text())
    start, serve, send, lose, return_, end = blocks
    copy, port = documents.checkout(tmp_path), free_port()

    def typed(block: str) -> str:
        return documents.typed(block, directory=copy, environ=environ)

    first = subprocess.run(
        ["script/cluster", kind, "start"],
        cwd=copy,
        capture_output=True,
        text=True,
        check=False,
    )
    if first.returncode == UNAVAILABLE:
        pytest.skip(first.stderr)
    try:
        assert typed(start).count("catmq:") == 3
        with documents.serving(
            copy, serve.replace("script/server", f"script/server --port {port}")
        ):
            terminal = (
                f"PATH={PROGRAMS}; set -a; . var/credentials.env; set +a\n"
                f"CATMQ_URL=http://127.0.0.1:{port}\n"
            )
            shown = typed(terminal + send)
            (former,) = re.findall(r"node1 .* (\S+:3306) +\S+$", shown, re.MULTILINE)
            peeked = typed(terminal + lose)
            messages = [
                json.loads(line) for line in peeked.splitlines() if line.startswith("{")
            ]
            numbers = sorted(int(message["body"]) for message in messages)
            assert numbers == [*range(1, 11)]
            returned = typed(terminal + return_)
            assert "stopped" not in returned
            (writer,) = re.findall(r"node1 .* (\S+:3306) +\S+$", returned, re.MULTILINE)
            if kind == "group":  # on Galera a member that is back may be the writer again
                assert writer != former
    finally:
        typed(end)
