"""The data directory: closed to other users when a process starts, whatever it was before."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from metadata import private
from tests.support.environment import ROOT
from tests.support.server import clean_environment


@pytest.fixture(autouse=True)
def _umask() -> Iterator[None]:
    """The umask of the test's process stays."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    """The permissions of a file."""
    return stat.S_IMODE(path.stat().st_mode)


def test_a_directory_that_others_can_read_is_closed_and_new_files_are_too(
    tmp_path: Path,
) -> None:
    tmp_path.chmod(0o755)

    assert [private.protect(tmp_path), private.protect(tmp_path)] == [True, False]

    (tmp_path / "new").write_text("a secret")
    assert (mode(tmp_path), mode(tmp_path / "new")) == (0o700, 0o600)


def test_a_directory_that_is_shared_by_all_users_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)

    with pytest.raises(private.NotPrivate, match="of its own"):
        private.protect(tmp_path)


def test_a_directory_that_cannot_be_closed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, mode: int) -> None:
        raise PermissionError

    tmp_path.chmod(0o755)
    monkeypatch.setattr(Path, "chmod", refuse)

    with pytest.raises(SystemExit, match="choose another data directory"):
        private.protect_or_exit(tmp_path)


def test_a_management_command_closes_the_directory_and_makes_files_for_its_user_alone(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    environ = clean_environment() | {"CATMQ_DATA_DIR": str(data)}
    command = [sys.executable, str(ROOT / "manage.py"), "migrate", "--verbosity", "0"]
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, check=False, timeout=120
    )

    assert done.returncode == 0 and "closed to them now" in done.stderr, done.stderr
    files = [path for path in data.rglob("*") if path.is_file()]
    assert files and {mode(path) & 0o077 for path in [data, *files]} == {0}
