"""Programs and libraries of the systems that are compared.

They are in a directory below the user's cache. `install` downloads missing programs with
apt-get, go, mvn and pip; nothing is installed on the system. Versions are pinned, but for
Redis, whose version is that of the system's apt source. Each download is verified: by apt
with signatures, by go with the checksum database, by mvn with the checksums of the
repository, and by pip with those in requirements.txt.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import task_rivals
from benchmarks.peers.servers import CannotBeHad

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "catmq/bench-peers"
PYTHON = CACHE / "venv/bin/python"
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
JARS = CACHE / "kafka"
NATS = "github.com/nats-io/nats-server/v2@v2.15.3"
KAFKA = "4.4.0"
POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>bench</groupId><artifactId>peers</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>
    <version>{KAFKA}</version>
  </dependency></dependencies>
</project>
"""
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
INSTALL = "script/bench peers --install downloads it"
LIMIT_S = 900  # of one download


def python() -> Path:
    """Return the interpreter with the client libraries. Raises CannotBeHad."""
    installed = CACHE / "installed.txt"
    if not installed.exists() or installed.read_text() != REQUIREMENTS.read_text():
        raise CannotBeHad(f"there is no Python library: {INSTALL}")
    return PYTHON


def nats_server() -> str:
    """Return the path of nats-server. Raises CannotBeHad."""
    program = CACHE / "bin/nats-server"
    path = str(program) if program.exists() else shutil.which("nats-server")
    if path is None:
        raise CannotBeHad(f"there is no nats-server: {INSTALL}, if there is go")
    return path


def kafka_command() -> list[str]:
    """Return the Java command without the class to run. Raises CannotBeHad."""
    java = shutil.which("java")
    if java is None:
        raise CannotBeHad("Kafka needs Java 17 or newer")
    if not list(JARS.glob("kafka_2.13-*.jar")):
        raise CannotBeHad(f"there are no jars of Kafka: {INSTALL}, if there is mvn")
    return [java, "-Xms512m", "-Xmx1g", "-cp", f"{JARS}/*"]


def install(names: Sequence[str]) -> dict[str, str]:
    """Download programs of the named systems. Return the reason of each failure, by program."""
    steps = {"Python libraries": _install_libraries}
    if "redis" in names:
        steps["Redis"] = task_rivals.redis_directory
    if any(name.startswith("nats") for name in names):
        steps["NATS"] = _install_nats
    if any(name.startswith("kafka") for name in names):
        steps["Kafka"] = _install_kafka
    failures = {}
    for program, step in steps.items():
        print(f"  {program} …", file=sys.stderr)
        try:
            step()
        except (task_rivals.CannotBeHad, OSError, subprocess.SubprocessError) as error:
            failures[program] = str(error)
            print(f"  {program} cannot be had: {error}", file=sys.stderr)
    return failures


def _install_libraries() -> None:
    installed = CACHE / "installed.txt"
    if installed.exists() and installed.read_text() == REQUIREMENTS.read_text():
        return
    CACHE.mkdir(parents=True, exist_ok=True)
    _run(sys.executable, "-m", "venv", "--clear", str(CACHE / "venv"))
    pip = (str(PYTHON), "-m", "pip", "install", "-q", "--disable-pip-version-check")
    _run(*pip, "--require-hashes", "-r", str(REQUIREMENTS))
    installed.write_text(REQUIREMENTS.read_text())


def _install_nats() -> None:
    if not (CACHE / "bin/nats-server").exists():
        _run("go", "install", NATS, GOBIN=str(CACHE / "bin"))


def _install_kafka() -> None:
    if not list(JARS.glob(f"kafka_2.13-{KAFKA}.jar")):
        shutil.rmtree(JARS, ignore_errors=True)
        JARS.mkdir(parents=True)
        (JARS / "pom.xml").write_text(POM)
        options = ("-q", "--strict-checksums", "-f", str(JARS / "pom.xml"))
        _run("mvn", *options, COPY, f"-DoutputDirectory={JARS}")


def _run(*command: str, **environ: str) -> None:
    """Run a command. Raises CannotBeHad of task_rivals, OSError or TimeoutExpired."""
    # PYTHONPATH of script/bench is not for other environments.
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command,
        env={**inherited, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    if done.returncode:
        text = done.stderr.strip() or done.stdout.strip()
        raise task_rivals.CannotBeHad(f"{command[0]}: {text[-300:]}")
