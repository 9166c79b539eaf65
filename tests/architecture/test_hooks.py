""".pre-commit-config.yaml: hooks before a commit run what the gate runs, in the same
versions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.steps import STEPS
from tests.support.environment import ROOT

# which are given files, and speak only of what is wrong
OF_HOOKS = ("--force-exclude", "--quiet")
LINTERS = ("ruff", "format", "mypy", "imports", "docs")


def hooks() -> dict[str, dict[str, Any]]:
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local", (
        "another repository would bring versions of its own"
    )
    return {hook["id"]: hook for hook in repository["hooks"]}


def test_the_hooks_are_the_linters_of_the_gate() -> None:
    steps = {name: step.command for name, step in STEPS.items()}
    assert tuple(hooks()) == (*LINTERS, "subject")
    for name in LINTERS:
        hook = hooks()[name]
        assert hook["language"] == "system"
        program, *arguments = steps[name]
        told = [word for word in hook["entry"].split() if word not in OF_HOOKS]
        assert told == [f".venv/bin/{Path(program).name}", *arguments][: len(told)]
