"""A server that is installed by its wheel alone: its own environment, which is read-only, and
no checkout.

The environment gets both wheels, built here, by pip without a network. A line in a .pth file
lets it see the packages that the test session has, such as Django.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import catmq_client
from tests.support import mounts
from tests.support.environment import ROOT
from tests.support.server import Server, clean_environment
from tests.support.tracked import tracked_files

VERSION = catmq_client.__version__
WHEEL = f"catmq_server-{VERSION}-py3-none-any.whl"
INFO = f"catmq_server-{VERSION}.dist-info"
DATA_FILES = (".css", ".html", ".js", ".mo", ".sql", ".svg")
PACKAGES = ("brokerapi", "catmq_site", "messagestore", "metadata", "portal", "spark_tasks")


@dataclass
class InstalledServer(Server):
    """A server of an installation, run by a user that may not write into it."""

    venv: Path = Path()

    def command(self) -> list[str]:
        options = ["--port", str(self.port), "--data", str(self.data)]
        return [*self.program(), "serve", *options]

    def program(self) -> list[str]:
        return [*mounts.drop_root_rights(), str(self.venv / "bin/catmq-server")]

    def environment(self) -> dict[str, str]:
        environ = super().environment() | {
            "PATH": f"{self.venv / 'bin'}:{os.environ['PATH']}",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        environ.pop("PYTHONPATH", None)
        return environ

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a program in another directory than the checkout."""
        return subprocess.run(
            words, env=self.environment() | self.credentials, cwd=self.data.parent,
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with both wheels, built by script/build with the session's
    setuptools.
    """
    directory = tmp_path_factory.mktemp("wheels")
    subprocess.run(
        [ROOT / "script/build", "--server", directory],
        # pip reads 0 as "no isolation", so that the build needs no network.
        env=clean_environment() | {"PIP_NO_BUILD_ISOLATION": "0"},
        check=True,
        timeout=300,
    )
    return directory


@pytest.fixture(scope="module")
def venv(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a virtual environment with both wheels that nobody may write to."""
    directory = tmp_path_factory.mktemp("installation") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "--python")
    install = ("install", "--no-index", "--no-deps", *wheels.glob("*.whl"))
    environ = clean_environment()
    environ.pop("PYTHONPATH", None)
    subprocess.run([*pip, directory / "bin/python", *install], env=environ, check=True)
    (library,) = (directory / "lib").glob("python*/site-packages")
    session_packages = next(path for path in sys.path if path.endswith("site-packages"))
    # A plain line adds a directory behind the packages of the environment. The .pth files in
    # that directory, such as that of the editable client, have no effect.
    (library / "session.pth").write_text(f"{session_packages}\n")
    paths = [path for path in directory.rglob("*") if not path.is_symlink()]
    for path in paths:
        path.chmod(path.stat().st_mode & ~0o222)
    yield directory
    for path in paths:
        path.chmod(path.stat().st_mode | 0o200)
    shutil.rmtree(directory)


def test_the_wheel_has_all_modules_and_data_files_and_a_registry_would_take_it(
    wheels: Path,
) -> None:
    patterns = [f"{package}/*" for package in PACKAGES]
    sources = {
        str(path)
        for path in tracked_files(*patterns)
        if path.suffix in (".py", *DATA_FILES) or path.name == "errors.md"
    }
    packed = zipfile.ZipFile(wheels / WHEEL)
    names = {name for name in packed.namelist() if not name.startswith(INFO)}
    assert names == sources
    for name in ("LICENSE", "NOTICE"):
        assert packed.read(f"{INFO}/licenses/{name}") == (ROOT / name).read_bytes()
    head = packed.read(f"{INFO}/METADATA").decode().partition("\n\n")[0]
    assert f"Version: {VERSION}\n" in head
    assert f"Requires-Dist: catmq-client=={VERSION}\n" in head
    assert "Requires-Dist: django~=5" in head and "Provides-Extra: mysql\n" in head
    subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", wheels / WHEEL], check=True
    )


def test_an_installed_server_runs_without_a_checkout(venv: Path, tmp_path: Path) -> None:
    server = InstalledServer(
        tmp_path / "data", environ={"CATMQ_WORKERS": "1"}, venv=venv, from_nothing=True
    )
    program, files = server.program(), set(venv.rglob("*"))
    server.data.mkdir(mode=0o700)
    (server.data / "credentials.env").touch(mode=0o600)  # read by run()
    version = server.run(*program, "--version")
    assert version.stdout == f"catmq-server {VERSION}\n", version.stderr
    migrated = server.run(*program, "migrate")
    assert migrated.returncode == 0, migrated.stderr
    try:
        server.start()
        topic = server.run("catmq", "topic", "create", "orders", "--queues", "2")
        assert topic.returncode == 0, topic.stderr
        sent = server.call(
            "POST", "/api/v1/topics/orders/messages", {"messages": [{"body": "hello"}]}
        )
        assert sent[0] in (200, 201), sent
        assert server.run("catmq", "peek", "orders", "--output", "body").stdout == "hello\n"
        assert server.call("GET", "/static/portal/portal.css")[0] == 200
        assert "exceeds a limit" in server.call("GET", "/api/v1/docs")[1]
        doctor = server.run(*program, "doctor")
        assert (doctor.returncode, doctor.stderr) == (0, ""), doctor.stdout
        registered = server.run(*program, "register-node", "none")
        assert registered.returncode == 1
        assert "give it, or set CATMQ_NODE_NONE_URL" in registered.stderr
        # Texts name this program, where those of a checkout name manage.py.
        help_text = server.run(*program, "help", "archive").stdout
        assert "catmq-server purge" in help_text and "manage.py" not in help_text
        assert str(ROOT) not in (server.data / "log/broker.log").read_text()
    finally:
        code = server.end()
        server.clear_away()
    assert code == 0
    assert set(venv.rglob("*")) == files, "a server writes nothing into its installation"
