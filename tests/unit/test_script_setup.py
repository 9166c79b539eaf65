"""script/setup for somebody unlucky: each message says what is missing, and what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.answering import unused_url
from tests.support.environment import ROOT

TOOLS = (
    "bash",
    "cat",
    "dirname",
    "env",
    "flock",
    "grep",
    "id",
    "rm",
    "sed",
    "sha256sum",
    "tail",
)
WITHOUT = "-dac_override,-dac_read_search"


class Checkout:
    """A checkout with the script and the requirements, and a PATH that has only what a test
    puts there.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.bin = path / "checkout", path / "bin"
        (self.path / "script").mkdir(parents=True)
        (self.path / "client").mkdir()
        self.bin.mkdir()
        shutil.copy(ROOT / "client/pyproject.toml", self.path / "client")
        for lock in ROOT.glob("requirements*.lock"):
            shutil.copy(lock, self.path)
        # The machine's own Python would be found beside those of a test.
        text = (ROOT / "script/setup").read_text().replace(" /usr/bin/python3;", ";")
        (self.path / "script/setup").write_text(text)
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool) or tool)

    def has(self, name: str, script: str) -> None:
        """Put a program into PATH, or at a path of the checkout."""
        program = self.path / name if "/" in name else self.bin / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    def setup(self, *before: str, **environ: str) -> tuple[int, str]:
        """Run the script; return its exit code and what it said."""
        ran = subprocess.run(
            [*before, str(self.bin / "bash"), str(self.path / "script/setup")],
            env={"PATH": str(self.bin), "HOME": str(self.path), **environ},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return ran.returncode, ran.stdout + ran.stderr


@pytest.fixture
def checkout() -> Iterator[Checkout]:
    with TemporaryDirectory() as path:  # pytest's own directories are closed to other users
        Path(path).chmod(0o755)
        yield Checkout(Path(path))


def test_a_python_that_is_too_old_is_named_with_its_version(checkout: Checkout) -> None:
    checkout.has("python3", '[ "$1" = --version ] && echo "Python 3.9.2" || exit 1')
    code, said = checkout.setup()
    assert code == 1
    assert "CatMQ needs Python 3.11 or newer; python3 here is Python 3.9.2." in said
    assert not (checkout.path / ".venv").exists()


def test_no_python_at_all_is_said(checkout: Checkout) -> None:
    code, said = checkout.setup()
    assert code == 1 and "python3 here is missing" in said


def test_an_incomplete_venv_module_names_the_package(checkout: Checkout) -> None:
    checkout.has("python3", f'[ "$2" = venv ] && exit 1\nexec {sys.executable} "$@"')
    code, said = checkout.setup()
    assert code == 1
    assert (
        "venv module is incomplete here. As root: apt-get install -y python3-venv" in said
    )


def test_without_a_network_a_proxy_a_mirror_and_wheels_are_offered(
    checkout: Checkout,
) -> None:
    checkout.has("python3", f'exec {sys.executable} "$@"')
    code, said = checkout.setup(
        PIP_INDEX_URL=unused_url(), PIP_RETRIES="1", PIP_CONFIG_FILE="/dev/null"
    )
    assert code == 1
    assert "It reached no package index. Behind a proxy: set HTTPS_PROXY" in said
    assert "PIP_NO_INDEX=1 PIP_FIND_LINKS=" in said


@pytest.mark.parametrize(("url", "wanted"), [("", 0), ("mysql://root@127.0.0.1/catmq", 1)])
def test_without_a_compiler_the_driver_is_left_out_unless_a_setting_needs_it(
    checkout: Checkout, url: str, wanted: int
) -> None:
    checkout.has("python3", f'exec {sys.executable} "$@"')
    checkout.has(".venv/bin/python", 'case "$2" in *MySQLdb*) exit 1;; esac')
    checkout.has(".venv/pyvenv.cfg", "")
    code, said = checkout.setup(CATMQ_DATABASE_URL=url)
    assert code == wanted
    assert "the embedded engine works without it" in said
    assert (
        "apt-get install -y build-essential pkg-config python3-dev libmariadb-dev" in said
    )
    assert ("CATMQ_DATABASE_URL needs it." in said) == bool(wanted)


def test_a_checkout_that_one_may_not_write_is_refused_before_anything(
    checkout: Checkout,
) -> None:
    checkout.path.chmod(0o555)
    setpriv = shutil.which("setpriv")
    if os.getuid() == 0 and setpriv is None:
        pytest.skip("root may write everywhere, and setpriv is not here")
    # As root without its right to write everywhere: another user could not reach a
    # directory of this test.
    other = (
        (setpriv, f"--bounding-set={WITHOUT}", f"--inh-caps={WITHOUT}")
        if os.getuid() == 0 and setpriv
        else ()
    )
    code, said = checkout.setup(*other)
    checkout.path.chmod(0o755)
    assert code == 1 and f"may not write to {checkout.path}" in said
