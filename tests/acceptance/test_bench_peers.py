"""The short form of script/bench peers, with CatMQ alone. It says nothing about speed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

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
    options = ("--quick", "--only", "sqlite", "pgmq", "--json", str(figures))
    done = subprocess.run(
        [sys.executable, "-P", "-m", "benchmarks.peers", *options],
        cwd=ROOT,
        env={
            **{name: text for name, text in os.environ.items() if "CATMQ_" not in name},
            "PYTHONPATH": f"{ROOT}:{ROOT / 'client/src'}",
            "TMPDIR": str(temporary),
            "XDG_CACHE_HOME": str(tmp_path / "cache"),  # so PGMQ cannot be had
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    written = json.loads(figures.read_text())
    assert "--install" in written["skipped"]["pgmq"]
    assert "* pgmq:" in done.stdout

    lines = {(one["line"], one["processes"]): one["rounds"] for one in written["measures"]}
    assert len(lines) == 13
    for (line, _), (measured,) in lines.items():
        assert measured["messages"] > 0, line
        assert set(measured["cpu_s"]) == {"client", "server"}
    (timed,) = lines["end to end, ms", 1]
    assert timed["messages"] == 80  # 0.8 s, none lost
    assert all(0 < seconds < 60 for seconds in timed["latencies_s"])

    assert not processes_below(temporary)
    assert not list(temporary.glob("catmq-bench-*"))
