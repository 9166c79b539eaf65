"""The gate: what its steps come to, and what it leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import faults, gate, servers
from tests.support.environment import ROOT
from tests.support.server import alive
from tests.support.waiting import until

# Runs chosen commands as steps, with .test in the current directory.
PROGRAM = """
import sys, json
from pathlib import Path
from tests import gate, steps
gate.WORK = Path.cwd() / ".test"
made = [steps.Step(name, (sys.executable, *words)) for name,
words in json.loads(sys.argv.pop(1)).items()]
gate.GROUPS = {"everyday": made}
gate.STEPS = {}
sys.argv[1:] = sys.argv[1:] or ["everyday"]
sys.exit(gate.run())
"""
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Start the gate with steps, `name=[words for python]`."""

    def start(**steps: list[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, json.dumps(steps)],
            cwd=tmp_path,
            env=os.environ
            | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return start


def test_all_steps_run_and_one_that_fails_fails_the_gate(start: Start) -> None:
    with start(
        bad=["-c", "raise SystemExit(3)"], good=["-c", "print('it ran')"]
    ) as process:
        output = process.communicate(timeout=60)[0]
    assert process.returncode == 1
    assert "\nit ran\n" in output
    assert output.splitlines()[-1] == "1 passed, 1 failed"


def test_a_test_that_passes_at_the_second_try_is_named_and_fails_nothing(
    start: Start, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    (tmp_path / "test_twice.py").write_text(
        "from pathlib import Path\n"
        f"def test_late():\n    mark = Path({str(mark)!r})\n    tried = mark.exists()\n    "
        "mark.touch()\n"
        "    assert tried\n"
    )
    bare = [
        "-m",
        "pytest",
        "-q",
        "-c",
        "/dev/null",
        "-p",
        "no:cacheprovider",
        "-p",
        "pytest_rerunfailures",
    ]
    with start(
        twice=[*bare, "--reruns", "1", "-rfER", str(tmp_path / "test_twice.py")]
    ) as process:
        output = process.communicate(timeout=60)[0]
    assert process.returncode == 0, output
    assert "UNSTEADY, passed at the second try: test_twice.py::test_late" in output
    assert output.splitlines()[-1] == "1 passed, 0 failed"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_so_and_leaves_no_process(
    start: Start, tmp_path: Path, number: signal.Signals
) -> None:
    """The server is in a session of its own and has lost its parent, like a daemon."""
    pids, server = tmp_path / "pids", "import time; time.sleep(600)"
    daemon = (
        "import subprocess, sys, pathlib, time; "
        f"server = subprocess.Popen([sys.executable, '-c', {server!r}], start_new_session=True); "
        f"pathlib.Path({str(pids)!r}).write_text(str(server.pid)); time.sleep(600)"
    )
    with start(step=["-c", daemon]) as process:
        pid = int(until(lambda: pids.exists() and pids.read_text(), limit_s=60))
        process.send_signal(number)
        output = process.communicate(timeout=60)[0]
    assert process.returncode == 130
    assert "interrupted" in output and "passed" not in output
    assert not alive(pid)


def test_a_second_run_in_a_checkout_is_refused(start: Start, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    code = f"import pathlib, time; pathlib.Path({str(begun)!r}).touch(); time.sleep(600)"
    with start(first=["-c", code]) as first:
        until(begun.exists, limit_s=60)
        with start(second=["-c", ""]) as second:
            output = second.communicate(timeout=60)[0]
        first.send_signal(signal.SIGINT)
        first.communicate(timeout=60)
    assert second.returncode == 1
    assert "another run uses" in output and "passed" not in output


def test_too_little_room_for_temporary_files_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda place: Full)
    with pytest.raises(
        SystemExit, match=r"has 1 MB free, tests need 2048 MB .* set TMPDIR"
    ):
        gate.place_for_scratch()


class Full:
    """The usage of a full disk."""

    free = 1 << 20


def test_a_server_that_cannot_be_had_comes_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "catmq/9.6").mkdir(parents=True)
    (tmp_path / "catmq/9.6/version").write_text("9.6.1-2")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    packages, reasons = servers.download(["8.4", "9.6", "8.4"])
    assert packages == {"9.6": "MySQL 9.6.1-2"}
    assert list(reasons) == ["8.4"] and "CANNOT BE HAD here" in reasons["8.4"]


def test_each_fault_of_the_table_can_be_planted_and_names_a_test() -> None:
    for fault in faults.read_faults([]):  # raises FaultError for a place that has changed
        _, _, test = fault.caught_by.partition(" ")
        if test:
            file, name = test.split("::", 1)
            function = name.partition("[")[0].rpartition("::")[2]
            assert f"def {function}(" in (ROOT / file).read_text(), fault.name
