"""A client of the previous release with a broker of this release, and the reverse: what most
applications do works, and the broker refuses no request.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import previous
from tests.support.environment import ROOT
from tests.support.server import Server, clean_environment

PROGRAM = ROOT / "tests/acceptance/programs/everyday.py"
TOPIC, GROUP = "releases", "release-readers"
LIMIT_S = 120


@pytest.fixture(scope="module")
def former(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the previous release."""
    return previous.extracted(tmp_path_factory.mktemp("release") / "previous")


def run_program(server: Server, root: Path) -> dict[str, Any]:
    """Run the program with the client of the release in `root`. Return what it printed."""
    process = subprocess.run(
        [sys.executable, "-P", str(PROGRAM), server.url, server.api_key, TOPIC, GROUP],
        env=clean_environment() | {"PYTHONPATH": str(root / "client/src")},
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert process.returncode == 0, process.stderr
    result: dict[str, Any] = json.loads(process.stdout)
    assert Path(result["file"]).is_relative_to(root), "it ran with another client"
    return result


def check_everyday(server: Server, root: Path) -> None:
    """Check what a client and a broker do with each other, on a topic of their own."""
    status, answer = server.call("POST", "/api/v1/topics", {"name": TOPIC, "queues": 3})
    assert status == 201, answer
    result = run_program(server, root)
    assert result["refusals"] == []
    assert result["received"] == result["sent"]
    assert result["again"] == []
    _, offsets = server.call("GET", f"/api/v1/groups/{GROUP}/offsets")
    assert offsets["lag"] == 0


def test_a_client_of_the_previous_release_works_with_this_broker(
    new_server: Callable[..., Server], former: Path
) -> None:
    check_everyday(new_server(), former)


def test_this_client_works_with_a_broker_of_the_previous_release(
    new_server: Callable[..., Server], former: Path
) -> None:
    server = new_server(root=former, from_nothing=True)
    assert "features" not in server.call("GET", "/api/v1")[1], "it is not the previous"
    check_everyday(server, ROOT)
