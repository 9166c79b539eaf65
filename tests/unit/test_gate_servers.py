"""Database servers of the gate: those that cannot be had are told loudly, and what passed is kept."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests import gate, servers, steps
from tests.steps import Step

PAGE = f"Servers\n\n{servers.BEGIN}\nold\n{servers.END}\n\nAfterwards.\n"
MISSING = "!!! MySQL 8.4 CANNOT BE HAD here: not in Debian"


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Reports, results and pages of the test's own, and a cache that has MySQL 9.6 and nothing else."""
    for one in (gate, steps):
        monkeypatch.setattr(one, "WORK", tmp_path / "work")
    monkeypatch.setattr(gate, "UNSTEADY", tmp_path / "unsteady.txt")
    monkeypatch.setattr(servers, "RESULTS", tmp_path / "servers.json")
    monkeypatch.setattr(servers, "PAGES", (tmp_path / "page.md",))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    gate.UNSTEADY.touch()
    servers.RESULTS.write_text("{}")
    (tmp_path / "page.md").write_text(PAGE)
    (tmp_path / "catmq/9.6").mkdir(parents=True)
    (tmp_path / "catmq/9.6/version").write_text("9.6.1-2")
    return tmp_path


def step(name: str, code: str, version: str) -> Step:
    """One on a server of a version."""
    return Step(name, (sys.executable, "-c", code), 30, {"CATMQ_TEST_SERVER": version})


def test_each_version_is_prepared_once_and_one_that_cannot_be_had_comes_with_its_reason() -> None:
    there, missing = servers.prepare(["8.4", "9.6", "8.4"])
    assert there == {"9.6": "MySQL 9.6.1-2"}
    assert list(missing) == ["8.4"]
    assert missing["8.4"].startswith(MISSING)


def test_a_download_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "DOWNLOAD_S", 0.001)
    there, missing = servers.prepare(["9.6"])
    assert (there, list(missing)) == ({}, ["9.6"])
    assert missing["9.6"].startswith("!!! MySQL 9.6 CANNOT BE HAD here: no download in")


def test_steps_of_a_missing_server_are_left_out_loudly_and_fail_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    chosen = [step("core-8.4", "print('it ran')", "8.4"), step("core-9.6", "print('it ran')", "9.6")]

    assert gate.gate(chosen, lanes=1) == 0

    told = capsys.readouterr().out.splitlines()
    begin = told.index("── core-9.6 begins, on MySQL 9.6")
    loud = [number for number, line in enumerate(told) if line.startswith(MISSING)]
    assert [number > begin for number in loud] == [False, True], "at the begin and in the summary"
    assert told.count("it ran") == 1
    assert "MySQL 9.6.1-2" in next(line for line in told if line.startswith("on Python "))
    assert told[-1] == "1 passed, 0 failed"


def test_a_suite_on_a_server_is_recorded_as_what_it_came_to(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = step("store-9.6", "", "9.6"), step("spark-9.6", "raise SystemExit(1)", "9.6")
    monkeypatch.setattr(gate, "ON_SERVERS", {("store", "9.6"): good, ("spark", "9.6"): bad})

    gate.gate([good, bad, step("other", "", "9.6")], lanes=1)

    assert json.loads(servers.RESULTS.read_text()) == {
        "MySQL 9.6.1": {"store": "passed", "spark": "failed"},
    }


def test_a_suite_that_ran_no_test_did_not_pass(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (places / "empty").mkdir()
    bare = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "CATMQ_TEST_SERVER": "9.6"}
    empty = steps.tests("store-9.6", "-c", "/dev/null", str(places / "empty"), budget_s=30, **bare)
    monkeypatch.setattr(gate, "ON_SERVERS", {("store", "9.6"): empty})

    gate.gate([empty], lanes=1)

    assert json.loads(servers.RESULTS.read_text()) == {}


def test_results_replace_those_of_earlier_versions_of_the_series_and_make_the_table(places: Path) -> None:
    known = {"MySQL 9.7.3": {"store": "passed"}, "MariaDB 11.8.6": {"store": "passed", "spark": "failed"}}
    servers.RESULTS.write_text(json.dumps(known))

    servers.record({("MySQL 9.7.4", "spark"): True, ("MariaDB 11.8.6", "spark"): True})

    assert json.loads(servers.RESULTS.read_text()) == {
        "MySQL 9.7.4": {"spark": "passed"},
        "MariaDB 11.8.6": {"store": "passed", "spark": "passed"},
    }
    page = (places / "page.md").read_text()
    (row,) = (line for line in page.splitlines() if line.startswith("| MySQL"))
    shown = {"spark": "passed"}
    assert row == f"| MySQL 9.7.4 | {' | '.join(shown.get(name, 'not run') for name in servers.SUITES)} |"
    assert page.startswith("Servers\n") and page.endswith("Afterwards.\n") and "old" not in page
