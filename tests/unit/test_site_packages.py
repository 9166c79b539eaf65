"""The server starts only with its own packages: no others of their names, none of another
release.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from metadata.installation import INSTALLED_PROGRAMS, name_programs
from tests.support.environment import ROOT

PROGRAM = """
import sys
from pathlib import Path
from catmq_site import packages
try:
    packages.require_own_packages(*map(Path, sys.argv[1:]))
    print("own")
except packages.ForeignPackage as error:
    print(error)
"""


def check(*arguments: Path, path: str) -> str:
    """Return what the check says in a process with this PYTHONPATH."""
    result = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stdout.strip()


def make_installation(home: Path, *, server: str = "1.0.0", client: str = "1.0.0") -> None:
    """Make a directory such as site-packages with the packages and both distributions."""
    for name in ("brokerapi", "messagestore", "metadata", "portal", "spark_tasks"):
        (home / name).mkdir(parents=True)
        (home / name / "__init__.py").touch()
    (home / "catmq_site").mkdir()
    for file in ("__init__.py", "packages.py"):
        (home / "catmq_site" / file).write_text((ROOT / "catmq_site" / file).read_text())
    make_distribution(home, "catmq_server", server, "metadata/__init__.py")
    make_distribution(home, "catmq_client", client, "catmq_client/__init__.py")


def make_distribution(home: Path, name: str, version: str, *files: str) -> None:
    info = home / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
    )
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))


def test_a_checkout_and_an_installation_have_their_own_packages(tmp_path: Path) -> None:
    assert check(path=str(ROOT)) == "own"
    make_installation(tmp_path)
    assert check(path=str(tmp_path)) == "own"


def test_a_package_of_another_distribution_is_named_with_the_remedy(tmp_path: Path) -> None:
    server, other = tmp_path / "server", tmp_path / "other"
    make_installation(server)
    (other / "portal").mkdir(parents=True)
    (other / "portal/__init__.py").touch()
    make_distribution(other, "city_portal", "3.1", "portal/__init__.py")
    text = check(path=f"{other}{os.pathsep}{server}")
    assert text.startswith(
        f"Python imports portal from {other}/portal, of the distribution city-portal, instead "
        f"of {server}/portal. Install catmq-server into a virtual environment of its own"
    )


def test_a_package_of_a_directory_in_pythonpath_is_named_with_the_directory(
    tmp_path: Path,
) -> None:
    server, other = tmp_path / "server", tmp_path / "other"
    make_installation(server)
    (other / "metadata").mkdir(parents=True)
    (other / "metadata/__init__.py").touch()
    text = check(path=f"{other}{os.pathsep}{server}")
    assert f"Python imports metadata from {other}/metadata instead of" in text
    assert f"Take {other} out of PYTHONPATH" in text


def test_a_distribution_that_wrote_into_the_same_directory_is_named(tmp_path: Path) -> None:
    make_installation(tmp_path)
    make_distribution(tmp_path, "city_portal", "3.1", "portal/views.py", "docs/index.md")
    assert check(path=str(tmp_path)).startswith(
        "The distribution city-portal 3.1 has files in the package portal of "
        f"{tmp_path}, which belongs to catmq-server. Install catmq-server into a virtual"
    )


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    make_installation(tmp_path)
    (tmp_path / "spark_tasks/__init__.py").unlink()
    (tmp_path / "spark_tasks").rmdir()
    assert "The package spark_tasks is missing" in check(path=str(tmp_path))


def test_server_and_client_are_of_one_release(tmp_path: Path) -> None:
    make_installation(tmp_path, server="1.1.0", client="1.0.0")
    assert (
        "catmq-server is 1.1.0 and catmq-client is 1.0.0: install both wheels of one release"
        in check(path=str(tmp_path))
    )


def test_an_installed_server_refuses_to_start_with_a_foreign_package(
    tmp_path: Path,
) -> None:
    (tmp_path / "metadata").mkdir()
    (tmp_path / "metadata/__init__.py").touch()
    result = subprocess.run(
        [sys.executable, "-P", "-m", "catmq_site.program", "help"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert result.stderr.startswith("CatMQ cannot start. Python imports metadata from")
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("program", INSTALLED_PROGRAMS)
def test_texts_name_programs_that_the_installation_has(program: str) -> None:
    text = name_programs(f"To repair it: {program} x.", is_checkout=False)
    assert not any(name in text for name in ("manage.py", "script/"))
    assert name_programs(program, is_checkout=True) == program
