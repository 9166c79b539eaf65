"""docs/how-to/install-the-client.md does what it says, in a project beside a checkout."""

from __future__ import annotations

import os
from pathlib import Path

import catmq_client
from tests.support import documents
from tests.support.environment import ROOT
from tests.support.server import clean_environment

PAGE = (ROOT / "docs/how-to/install-the-client.md").read_text()
UNINSTALL = "python -m pip uninstall -q -y catmq-client\n"
SHOWN = "python -m pip show catmq-client\n"


def test_install_the_client(tmp_path: Path) -> None:
    copy = documents.checkout(tmp_path)
    project = tmp_path / "shop"
    project.mkdir()
    environ = clean_environment() | {
        "PATH": f"{copy}/.venv/bin:{os.environ['PATH']}",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        # pip reads 0 as "no isolation": the session's setuptools builds. The README's test
        # builds as users do, with a setuptools that pip downloads.
        "PIP_NO_BUILD_ISOLATION": "0",
    }
    environ.pop("PYTHONPATH", None)

    def typed(block: str, directory: Path = project) -> str:
        return documents.typed(block, directory=directory, environ=environ)

    def installed(block: str) -> None:
        typed(block)
        assert str(copy) in typed(SHOWN), "installed here, not found in the test session"
        typed(UNINSTALL)

    path, check, build, wheel, offline = documents.blocks(PAGE)
    typed(path)
    assert typed(check) == f"catmq {catmq_client.__version__}\n"
    typed(UNINSTALL)
    (requirement,) = [
        line for line in PAGE.splitlines() if line.startswith("catmq-client[")
    ]
    built = typed(build, copy).splitlines()[-1]
    assert built == str(copy / "dist" / Path(built).name)
    installed(wheel)
    requirements = project / "requirements.txt"
    requirements.write_text(requirement.replace("/srv/wheels", str(copy / "dist")) + "\n")
    installed("pip install -r requirements.txt")
    # By its name alone, pip would be content with the package of the test session.
    installed(offline.replace("--no-index", "--no-index --ignore-installed"))
