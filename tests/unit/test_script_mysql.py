"""script/mysql names what it can have, and why it cannot have the rest; without a network."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.environment import ROOT


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache that has MySQL 9.6, which Debian does not have."""
    (tmp_path / "catmq/9.6").mkdir(parents=True)
    (tmp_path / "catmq/9.6/version").write_text("9.6.1-2")
    return tmp_path


def mysql(cache: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    command = [ROOT / "script/mysql", *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


def test_list_names_versions_that_are_there_and_where_others_come_from(cache: Path) -> None:
    rows = [line.split(maxsplit=2) for line in mysql(cache, "list").stdout.splitlines()]
    told = {version: (product, source) for product, version, source in rows}
    assert told["9.7"] == ("MySQL", "from Debian sid")
    assert told["11.8"] == ("MariaDB", "from Debian trixie")
    assert told["9.6"] == ("MySQL", "in the cache: 9.6.1-2")
    assert told["12.3"][1].startswith("not in Debian")


def test_a_version_that_cannot_be_had_is_named_with_the_reason_and_an_exit_code_of_its_own(
    cache: Path, tmp_path: Path
) -> None:
    done = mysql(cache, "start", tmp_path / "server", "--version", "8.4")
    assert done.returncode == 3
    assert done.stderr.startswith(
        "!!! MySQL 8.4 CANNOT BE HAD here: not in Debian; give an apt source"
    )
    assert not (tmp_path / "server").exists()


def test_the_reason_of_apt_is_told_and_nothing_half_downloaded_stays(
    cache: Path, tmp_path: Path
) -> None:
    source = f"deb file:{tmp_path}/none trixie main"
    done = mysql(cache, "start", tmp_path / "server", "--version", "12.3", "--apt", source)
    assert done.returncode == 3
    assert "!!! MariaDB 12.3 CANNOT BE HAD here: apt-get" in done.stderr
    assert {path.name for path in (cache / "catmq").iterdir()} == {"9.6", "lock"}


def test_a_directory_keeps_its_version(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "version").write_text("11.8")
    done = mysql(cache, "start", tmp_path, "--version", "9.6")
    assert (done.returncode, "was made with 11.8" in done.stderr) == (1, True)


def test_no_server_is_started_on_the_data_of_another_one(
    cache: Path, tmp_path: Path
) -> None:
    (tmp_path / "old/data").mkdir(parents=True)
    done = mysql(cache, "start", tmp_path / "old")
    assert (done.returncode, "was made by script/mariadb" in done.stderr) == (1, True)
    (tmp_path / "new").mkdir()
    (tmp_path / "new/version").write_text("9.7")
    command = [ROOT / "script/mariadb", "start", tmp_path / "new"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (
        done.returncode,
        "was made by script/mysql with version 9.7" in done.stderr,
    ) == (1, True)
    assert [os.listdir(tmp_path / name) for name in ("old", "new")] == [
        ["data"],
        ["version"],
    ]


def test_a_server_that_does_not_run_is_stopped(cache: Path, tmp_path: Path) -> None:
    assert mysql(cache, "stop", tmp_path).returncode == 0
