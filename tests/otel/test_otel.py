"""catmq_client.contrib.otel and its page, with OpenTelemetry's SDK in a virtualenv of its own.

Skipped if the SDK cannot be had.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support import documents, venvs
from tests.support.environment import ROOT
from tests.support.server import Server

REQUIREMENTS = Path(__file__).with_name("requirements.txt")


def test_spans_and_metrics_of_both_clients(tmp_path: Path) -> None:
    python = venvs.python_with(REQUIREMENTS)
    # Without the session's conftest: the checks need neither Django nor a server.
    command = [python, "-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider"]
    command += ["-c", os.devnull, f"--rootdir={tmp_path}", f"--basetemp={tmp_path / 'b'}"]
    checks = subprocess.run(
        [*command, Path(__file__).with_name("span_checks.py")],
        env=os.environ | {"PYTHONPATH": str(ROOT / "client/src")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert checks.returncode == 0, checks.stdout + checks.stderr
    assert " passed" in checks.stdout and "skipped" not in checks.stdout


def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    """Run its blocks in their order, on a server of their own."""
    python = venvs.python_with(REQUIREMENTS)
    page = (ROOT / "docs/how-to/trace-messages.md").read_text()
    blocks = documents.blocks(page)
    server = Server(tmp_path / "data").start()
    try:
        environ = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "client/src"),
            "CATMQ_URL": server.url,
            "CATMQ_API_KEY": server.api_key,
        }
        prepare = (
            "catmq topic create orders --queues 1 && catmq group create billing && "
            "catmq subscribe billing orders && catmq group create mails && "
            "catmq subscribe mails orders"
        )
        programs = "\n".join(block for block in blocks if block.kind == "python")
        shell = [block for block in blocks if block.kind == "sh"]
        catmq = f'catmq() {{ {python} -m catmq_client "$@"; }}\n'
        run = {"env": environ, "capture_output": True, "text": True, "timeout": 120}
        made = subprocess.run(["bash", "-c", catmq + prepare], **run, check=False)
        assert made.returncode == 0, made.stderr
        done = subprocess.run([python, "-c", programs], **run, check=False)
        assert done.returncode == 0, done.stderr
        assert "handled {'item': 'tea'} of trace" in done.stdout
        assert "mail about {'item': 'tea'}" in done.stdout
        # The first block installs, as venvs.python_with() has done.
        found = subprocess.run(["bash", "-ec", catmq + shell[1]], **run, check=False)
        assert found.returncode == 0, found.stderr
        assert "from a shell" in found.stdout and "by hand" in found.stdout
    finally:
        server.end()
