"""The client as a package that could be published, and the one version that everything
says.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from django.test import Client

import catmq_client
from tests.support.environment import ROOT

VERSION = catmq_client.__version__
INFO = f"catmq_client-{VERSION}.dist-info"
CHANGES = ROOT / "CHANGELOG.md"
LEGAL = ("LICENSE", "NOTICE")
PACKAGES = (
    "catmq_site",
    "brokerapi",
    "portal",
    "metadata",
    "messagestore",
    "spark_tasks",
    "client/src",
)


def run(*command: object, **options: object) -> str:
    """What a command prints; it fails with that if the command fails."""
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        **options,
    )  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the sdist and the wheel, made from a copy of client/ by what is
    installed here.
    """
    source = tmp_path_factory.mktemp("source") / "client"
    made = shutil.ignore_patterns("*.egg-info", "build", "__pycache__")
    shutil.copytree(ROOT / "client", source, ignore=made)
    target = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", target, source)
    return target


def wheel(built: Path) -> Path:
    return built / f"catmq_client-{VERSION}-py3-none-any.whl"


def test_a_registry_would_take_the_package(built: Path) -> None:
    told = run(sys.executable, "-m", "twine", "check", "--strict", *built.iterdir())
    assert told.count("PASSED") == 2


def test_wheel_and_sdist_hold_all_sources_types_and_licences(built: Path) -> None:
    sources = {
        str(path.relative_to(ROOT / "client/src"))
        for path in (ROOT / "client/src/catmq_client").rglob("*")
        if path.suffix in (".py", ".typed", ".json")
    }
    packed = zipfile.ZipFile(wheel(built))
    assert {name for name in packed.namelist() if not name.startswith(INFO)} == sources
    with tarfile.open(built / f"catmq_client-{VERSION}.tar.gz") as archive:
        root = f"catmq_client-{VERSION}"
        assert {f"{root}/src/{source}" for source in sources} <= set(archive.getnames())
        for name in LEGAL:
            text = (ROOT / "client" / name).read_bytes()
            assert packed.read(f"{INFO}/licenses/{name}") == text
            file = archive.extractfile(f"{root}/{name}")
            assert file is not None and file.read() == text


def test_the_licence_of_the_package_is_the_projects() -> None:
    assert (ROOT / "client/LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_the_package_names_no_host_and_every_link_of_its_readme_leads_out_of_a_checkout(
    built: Path,
) -> None:
    metadata = zipfile.ZipFile(wheel(built)).read(f"{INFO}/METADATA").decode()
    head, _, readme = metadata.partition("\n\n")
    assert "Project-URL" not in head and "Home-page" not in head
    assert [
        link
        for link in re.findall(r"\]\(([^)]+)\)", readme)
        if not link.startswith("https://")
    ] == []


def test_an_installed_wheel_says_its_version(built: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    python = tmp_path / "venv/bin/python"
    pip = ("-m", "pip", "--disable-pip-version-check", "--python", python)
    alone = {
        name: value for name, value in os.environ.items() if name != "PYTHONPATH"
    }  # else it is there already
    run(sys.executable, *pip, "install", "--no-index", "--no-deps", wheel(built), env=alone)
    (library,) = (tmp_path / "venv/lib").glob("python*/site-packages")
    ours = next(path for path in sys.path if path.endswith("site-packages"))
    # requests; an editable client in it is not seen
    (library / "outer.pth").write_text(f"{ours}\n")
    environ = {"PATH": "/nonexistent"}

    assert (
        run(tmp_path / "venv/bin/catmq", "--version", env=environ) == f"catmq {VERSION}\n"
    )
    where = "import catmq_client; print(catmq_client.__file__)"
    assert run(python, "-c", where, env=environ).startswith(str(library))


def test_the_server_says_the_version_of_the_package() -> None:
    assert Client().get("/api/v1").json()["version"] == VERSION


def test_the_version_stands_in_one_place_and_has_its_changes() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?", VERSION)
    assert re.search(
        rf"^## \[{re.escape(VERSION)}\] - \d{{4}}-\d\d-\d\d$",
        CHANGES.read_text(),
        re.MULTILINE,
    )
    places = [
        str(path.relative_to(ROOT))
        for folder in PACKAGES
        for path in (ROOT / folder).rglob("*")
        if path.suffix == ".py" and f'"{VERSION}"' in path.read_text()
    ]
    assert places == ["client/src/catmq_client/version.py"]
