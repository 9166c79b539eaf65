"""The gate: what its steps come to, and how it is told."""

from __future__ import annotations

import json
import platform
import re
import sqlite3
import sys
import time
from importlib.util import module_from_spec
from itertools import groupby
from pathlib import Path
from types import ModuleType

import pytest

from tests import branches, gate, steps, unsteady
from tests.steps import Step

ONCE = """
from pathlib import Path

def test_passes_at_the_second_try():
    seen = Path({file!r})
    before = seen.exists()
    seen.touch()
    assert before

def test_passes():
    pass
"""


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the gate puts its reports, and counts unsteady tests."""
    for one in (gate, steps):
        monkeypatch.setattr(one, "WORK", tmp_path / "work")
    monkeypatch.setattr(gate, "UNSTEADY", tmp_path / "unsteady.txt")
    gate.UNSTEADY.write_text("# counted here\n")
    return tmp_path / "work"


def step(name: str, code: str) -> Step:
    return Step(name, (sys.executable, "-c", code), 30)


def test_all_steps_run_although_one_fails_and_the_exit_code_tells(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = [step("bad", "raise SystemExit(3)"), step("good", "print('it ran')")]

    assert gate.gate(chosen, lanes=1) == 1
    told = capsys.readouterr().out
    assert "it ran" in told
    assert told.splitlines()[-1] == "1 passed, 1 failed"

    assert gate.gate(chosen[1:], lanes=2) == 0


def test_what_each_of_two_steps_prints_stands_together(capsys: pytest.CaptureFixture[str]) -> None:
    lines = "for _ in range(500): print({name!r}, flush=True)"
    chosen = [step(name, lines.format(name=name)) for name in ("left", "right")]

    gate.gate(chosen, lanes=2)

    told = [line for line in capsys.readouterr().out.splitlines() if line in ("left", "right")]
    assert sorted((name, len([*same])) for name, same in groupby(told)) == [("left", 500), ("right", 500)]


def test_a_test_that_passes_at_the_second_try_is_named_and_fails_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_once.py").write_text(ONCE.format(file=str(tmp_path / "seen")))
    bare = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    made = steps.tests("once", "-c", "/dev/null", str(tmp_path / "test_once.py"), budget_s=30, **bare)

    assert gate.gate([made], lanes=1) == 0

    told = capsys.readouterr().out
    assert "UNSTEADY, passed at the second try: test_once::test_passes_at_the_second_try" in told
    assert told.splitlines()[-1] == "2 passed, 0 failed"


def test_a_step_that_hangs_is_killed_and_tells_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gate, "LIMIT_S", 3)
    (tmp_path / "test_slow.py").write_text("import time\ndef test_that_hangs(): time.sleep(60)\n")
    bare = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    made = steps.tests("slow", "-c", "/dev/null", str(tmp_path / "test_slow.py"), budget_s=30, **bare)

    assert gate.gate([made], lanes=1) == 1

    told = capsys.readouterr().out
    assert "in test_that_hangs" in told and "killed after 3 s" in told
    assert told.splitlines()[-1] == "0 passed, 1 failed"


def test_the_third_run_in_a_row_with_an_unsteady_test_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "test_once::test_passes_at_the_second_try"
    gate.UNSTEADY.write_text(f"# counted here\n2 | {name} | a file is late\n")
    (tmp_path / "test_once.py").write_text(ONCE.format(file=str(tmp_path / "seen")))
    bare = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    made = steps.tests("once", "-c", "/dev/null", str(tmp_path / "test_once.py"), budget_s=30, **bare)

    assert gate.gate([made], lanes=1) == 1

    told = capsys.readouterr().out
    assert f"unsteady in 3 runs in a row: {name} (a file is late)" in told
    assert told.splitlines()[-1] == "2 passed, 1 failed"
    assert gate.UNSTEADY.read_text() == f"# counted here\n3 | {name} | a file is late\n"

    assert gate.gate([made], lanes=1) == 0  # it passes at the first try now
    assert gate.UNSTEADY.read_text() == "# counted here\n"


def test_a_test_that_did_not_run_keeps_its_count(tmp_path: Path) -> None:
    file = tmp_path / "counts.txt"
    file.write_text("# known\n1 | a::one | a race\n2 | b::other | a slow disk\n")

    assert unsteady.count(["a::one", "c::new"], ["d::good"], file) == []

    assert file.read_text().splitlines()[1:] == [
        "2 | a::one | a race", "2 | b::other | a slow disk", f"1 | c::new | {unsteady.UNKNOWN}",
    ]  # fmt: skip


@pytest.mark.parametrize(("least", "few"), [("50.0", False), ("51.0", True)])
def test_branches_of_all_runs_are_counted_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: str, few: bool
) -> None:
    (tmp_path / "which.py").write_text("if GIVEN == 'a':\n    x = 1\nelse:\n    x = 2\n")
    (tmp_path / "other.py").write_text("if GIVEN:\n    x = 1\nx = 2\n")
    reports = []
    for given in ("a", "b"):
        finder = branches.Finder([tmp_path])
        loaded(finder, tmp_path / "which.py", GIVEN=given)
        reports.append(tmp_path / f"{given}.json")
        reports[-1].write_text(json.dumps(finder.told(tmp_path)))
    fewest = tmp_path / "coverage.txt"
    fewest.write_text(least)
    monkeypatch.setattr(branches, "FEWEST", fewest)

    line, verdict = branches.judge(reports)

    assert line.startswith("branches: 50.00 % of 4 taken")
    assert verdict is few


BRANCHING = """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import nothing
for one in GIVEN:
    if one == 1: x = 1
    elif one == 2: x = 2
    else: break
while GIVEN and x == 9: pass
while True: break
match x:
    case 1: y = 1
    case 2: y = 2
match x:
    case 2: y = 2
    case _: y = 0
"""


def test_each_way_of_a_statement_is_a_branch(tmp_path: Path) -> None:
    file = tmp_path / "branching.py"
    file.write_text(BRANCHING)
    finder = branches.Finder([tmp_path])

    module = loaded(finder, file, GIVEN=[1, 3])

    assert (module.x, module.y) == (1, 0)
    assert finder.told(tmp_path)["branching.py"] == {
        "5:0 into": 1, "5:0 past": 0,
        "6:4 into": 1, "6:4 past": 1,
        "7:4 into": 0, "7:4 past": 1,
        "9:0 into": 0, "9:0 past": 1,
        "10:0 into": 1,
        "12:9 into": 1, "13:9 into": 0, "11:0 past": 0,
        "15:9 into": 0, "16:9 into": 1,
    }  # fmt: skip


def loaded(finder: branches.Finder, file: Path, **given: object) -> ModuleType:
    """Return a module that the finder loads, with names that it finds there."""
    spec = finder.find_spec(file.stem, [str(file.parent)])
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    module.__dict__.update(given)
    spec.loader.exec_module(module)
    return module


def test_temporary_files_of_a_step_are_gone_when_it_has_ended(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "import tempfile; file = tempfile.NamedTemporaryFile(delete=False); print(file.name)"

    gate.gate([step("untidy", code)], lanes=1)

    (left,) = (line for line in (work / "untidy.log").read_text().splitlines() if "catmq-gate-" in line)
    assert not Path(left).exists()


def test_what_others_use_of_processors_is_in_the_figure_of_the_machine(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before_s, begun = gate.machine_s(), time.process_time()
    while time.process_time() - begun < 0.5:  # this process is no child of the gate, as a daemon is none
        pass
    assert gate.machine_s() - before_s > 0.4

    gate.gate([step("good", "")], lanes=1)

    assert re.search(
        r"^\d+ s, \d+ s of processors, \d+ s by the whole machine$", capsys.readouterr().out, re.M
    )


@pytest.mark.parametrize("more", [0, 1])
def test_only_the_whole_gate_is_held_against_its_time(
    more: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = (step("good", ""), step("well", ""))
    monkeypatch.setattr(gate, "STEPS", whole)
    monkeypatch.setattr(gate, "conclusions", lambda outcomes: 0)  # of branches, which these do not measure

    gate.gate([*whole, *[step("beside", "")] * more], lanes=1)

    told = re.findall(
        r"^the gate took \d+ s of 780 s; \d+ processors need \d+ s at least$", capsys.readouterr().out, re.M
    )
    assert len(told) == 1 - more


def test_the_summary_says_on_what_it_ran(capsys: pytest.CaptureFixture[str]) -> None:
    gate.gate([step("good", "")], lanes=1)

    (told,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("on Python "))
    assert told.startswith(f"on Python {platform.python_version()}, ")
    assert f"SQLite {sqlite3.sqlite_version}, MariaDB 1" in told
