"""The short form of script/bench peers: CatMQ on SQLite, and other systems if they are in the
cache. It checks the output, not the speed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.environment import ROOT


def processes_below(directory: Path) -> list[str]:
    """Return the command lines of processes that name a path below the directory."""
    lines = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(directory) in line:
            lines.append(line)
    return lines


def test_it_measures_each_line_and_leaves_nothing(tmp_path: Path) -> None:
    figures, temporary = tmp_path / "figures.json", tmp_path / "tmp"
    temporary.mkdir()
    # PGMQ cannot be had, since --pgmq is missing.
    names = ("sqlite", "redis", "pgmq")
    options = ("--quick", "--systems", *names, "--json", str(figures))
    done = subprocess.run(
        [sys.executable, "-P", "-m", "benchmarks.peers", *options],
        cwd=ROOT,
        env={
            **{name: text for name, text in os.environ.items() if "CATMQ_" not in name},
            "PYTHONPATH": f"{ROOT}:{ROOT / 'client/src'}",
            "TMPDIR": str(temporary),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    written = json.loads(figures.read_text())
    assert "--pgmq FILE" in written["skipped"]["pgmq"]
    assert f"* pgmq: {written['skipped']['pgmq']}" in done.stdout

    rounds_by_system: dict[str, dict[tuple[str, int], Any]] = {name: {} for name in names}
    for line in written["measures"]:
        rounds_by_system[line["system"]][line["line"], line["processes"]] = line["rounds"]
    assert rounds_by_system.pop("pgmq") == {}
    for name, lines in rounds_by_system.items():
        if name in written["skipped"]:
            assert name != "sqlite"
            assert "script/bench peers --install" in written["skipped"][name]
            assert not lines
            continue
        assert len(lines) == (8 if name == "sqlite" else 6)
        for (line_name, _), (measured,) in lines.items():
            assert measured["messages"] > 0, (name, line_name)
            assert set(measured["cpu_s"]) == {"client", "server"}
        (timed,) = lines["end to end, ms", 1]
        assert timed["messages"] == 60  # 0.6 s, all of them received
        assert all(0 < seconds < 60 for seconds in timed["latencies_s"])

    assert not processes_below(temporary)
    assert not list(temporary.glob("catmq-bench-*"))
