"""The import contracts of pyproject.toml hold, and each of them catches what it is there to
catch.
"""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.environment import ROOT

PACKAGES = (
    "catmq_site",
    "brokerapi",
    "portal",
    "metadata",
    "messagestore",
    "client",
    "spark_tasks",
)
SPARK = {"pyspark", "pyarrow", "py4j"}
ARROW_MODULE = "client/src/catmq_client/frames/columns.py"  # of the extra `arrow`
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
# Contract → (file to append to, an import that breaks it).
BREACHES = {
    "Imports point down": ("metadata/actors.py", "import messagestore.produce.publish"),
    "The client stands alone": ("client/src/catmq_client/errors.py", "import django"),
    "The server does not use the client": (
        "brokerapi/http/formats.py",
        "import catmq_client",
    ),
    "Spark tasks run without Django": ("spark_tasks/__init__.py", "import metadata.config"),
    "Rules are pure": ("metadata/rules/topics/slots.py", "import random"),
    "Only messagestore.tables loads statements": (
        "messagestore/consume/pull.py",
        "import messagestore.tables.statements",
    ),
    "Only messagestore touches message tables": (
        "catmq_site/jobs/schedules.py",
        "import messagestore.tables",
    ),
    "Endpoints call functions, not models": (
        "brokerapi/http/formats.py",
        "import metadata.models",
    ),
    "No cycles inside a package": (
        "metadata/errors.py",
        "import metadata.config\nimport metadata.topics.topic_rows",
    ),
}


def lint(directory: Path) -> subprocess.CompletedProcess[str]:
    """Runs the contracts on a copy of the source."""
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    path = f"{directory}:{directory / 'client/src'}"
    return subprocess.run(
        command,
        cwd=directory,
        env={"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages and pyproject.toml."""
    directory = tmp_path_factory.mktemp("source")
    leave_out = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, directory / package, ignore=leave_out)
    shutil.copy(ROOT / "pyproject.toml", directory)
    return directory


def test_the_contracts_hold(source: Path) -> None:
    done = lint(source)
    assert done.returncode == 0, done.stdout


def imported(node: ast.AST) -> list[str]:
    """The first words of what an import statement names."""
    names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
    names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
    return [name.partition(".")[0] for name in names]


def test_only_spark_tasks_need_what_comes_with_spark() -> None:
    guilty = []
    for package in (
        "catmq_site",
        "brokerapi",
        "portal",
        "metadata",
        "messagestore",
        "client/src",
    ):
        for path in sorted((ROOT / package).rglob("*.py")):
            if path == ROOT / ARROW_MODULE:
                continue
            tree = ast.parse(path.read_text())
            within = {
                node
                for one in ast.walk(tree)
                if isinstance(one, FUNCTION)
                for node in ast.walk(one)
            }
            for node in ast.walk(tree):
                found = SPARK.intersection(imported(node))
                if "pyspark" in found or (found and node not in within):
                    guilty.append(f"{path.relative_to(ROOT)}: {', '.join(found)}")
    assert guilty == []
    listed = (ROOT / "requirements.txt").read_text() + (
        ROOT / "requirements-mysql.txt"
    ).read_text()
    assert not [name for name in SPARK if name in listed]


def test_every_contract_has_a_planted_breach() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    named = {contract["name"] for contract in settings["tool"]["importlinter"]["contracts"]}
    assert named == set(BREACHES)


@pytest.mark.parametrize("contract", BREACHES)
def test_a_planted_breach_is_caught(source: Path, contract: str) -> None:
    name, breach = BREACHES[contract]
    file = source / name
    clean = file.read_text()
    file.write_text(f"{clean}\n{breach}\n")
    try:
        done = lint(source)
    finally:
        file.write_text(clean)
    assert f"{contract} BROKEN" in done.stdout, done.stdout
