"""examples/check_stream.py finds what is lost, stored twice, out of order or wrong, and
nothing else.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "check_stream.py"
PATHS = ["a.go", "b.go", "c.md"]

Run = Callable[..., subprocess.CompletedProcess[str]]


def event(seq: int) -> dict[str, Any]:
    return {
        "seq": seq,
        "commit": "c",
        "time": 1,
        "path": PATHS[seq % 3],
        "added": 5,
        "deleted": 2 if seq > 2 else 0,
    }


def row(seq: int, **more: Any) -> dict[str, Any]:
    """Event `seq` where a broker would have put it: each path has a queue of its own."""
    place = {"topic": "changes", "queue": 1 + seq % 3, "offset": seq // 3}
    return {**place, "key": PATHS[seq % 3], "body": json.dumps(event(seq)), **more}


def text(rows: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(one) + "\n" for one in rows)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs the script on consumers' outputs; a `source` is written to a file first."""

    def call(
        *outputs: str, argv: Iterable[str] = (), source: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        names = []
        for number, output in enumerate(outputs):
            (tmp_path / f"{number}.jsonl").write_text(output)
            names.append(f"{number}.jsonl")
        given = list(argv)
        if source is not None:
            (tmp_path / "source.jsonl.gz").write_bytes(gzip.compress(source.encode()))
            given += ["--source", "source.jsonl.gz"]
        command = [sys.executable, str(SCRIPT), *names, *given]
        return subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=60, input=""
        )

    return call


SOURCE = text(event(seq) for seq in range(30))


def test_a_whole_stream_shared_by_two_consumers_is_ok(run: Run) -> None:
    first = text(row(seq) for seq in range(30) if seq % 3 == 0)
    second = text(row(seq) for seq in range(30) if seq % 3)
    done = run(first, second, source=SOURCE, argv=["--exactly-once", "--min-share", "10"])
    assert done.returncode == 0, done.stderr
    assert (
        done.stdout
        == "OK: 30 events, 3 paths, 0 redelivered; 0.jsonl 33.3 %, 1.jsonl 66.7 %\n"
    )


def test_redelivered_messages_are_counted_and_refused_only_on_demand(run: Run) -> None:
    first = text(row(seq) for seq in range(20))
    second = text(row(seq) for seq in range(15, 30))
    assert run(first, second, source=SOURCE).returncode == 0
    assert "5 redelivered" in run(first, second).stdout
    refused = run(first, second, argv=["--exactly-once"])
    assert refused.returncode == 1
    assert "5 messages were delivered again" in refused.stderr


def test_a_consumer_that_begins_again_at_its_commit_is_in_order(run: Run) -> None:
    again = [*range(20), *range(10, 30)]
    assert run(text(row(seq) for seq in again), source=SOURCE).returncode == 0


@pytest.mark.parametrize(
    ("rows", "argv", "fault"),
    [
        (
            [row(s) for s in range(30) if s != 17],
            ["--count", "30"],
            "seq 17 was never received",
        ),
        ([row(s) for s in range(29)], ["--count", "30"], "seq 29 was never received"),
        ([row(s) for s in range(30)], ["--count", "29"], "seq 29 was not expected"),
        (
            [*(row(s) for s in range(30)), row(29, offset=10)],
            [],
            "seq 29 is stored 2 times",
        ),
        ([row(s) for s in (3, 0, 1, 2)], [], "offset 0 of queue 1 after 1"),
        (
            [row(0, offset=1), row(3, offset=2), row(1), row(2)],
            ["--count", "5"],
            "seq 4 was never received",
        ),
        ([row(3, offset=0), row(0, offset=1), row(1), row(2)], [], "a.go: seq 0 after 3"),
        ([row(0), row(1), row(2), row(3, queue=9)], [], "a.go: lies in queues 1 and 9"),
        (
            [row(0), row(1), row(2), row(3, offset=0)],
            [],
            "is seq 3 here and seq 0 elsewhere",
        ),
        (
            [row(0, body=json.dumps({**event(0), "deleted": 6}))],
            [],
            "a.go: -1 lines at seq 0",
        ),
        ([], [], "no message was received"),
    ],
)
def test_a_fault_is_named(
    run: Run, rows: list[dict[str, Any]], argv: list[str], fault: str
) -> None:
    done = run(text(rows), argv=argv)
    assert done.returncode == 1
    assert done.stdout.startswith("FAILED: ")
    assert fault in done.stderr


def test_a_sum_that_differs_from_the_source_is_a_fault(run: Run) -> None:
    rows = [row(seq) for seq in range(29)] + [
        row(29, body=json.dumps({**event(29), "added": 6}))
    ]
    done = run(text(rows), source=SOURCE)
    assert done.returncode == 1
    assert "c.md: sum 33, the source says 32" in done.stderr


def test_a_share_that_is_too_small_is_a_fault_also_of_a_consumer_with_nothing(
    run: Run,
) -> None:
    done = run(text(row(seq) for seq in range(30)), "", argv=["--min-share", "10"])
    assert done.returncode == 1
    assert "1.jsonl: 0 of 30 messages, less than 10 %" in done.stderr


def test_a_line_that_a_killed_consumer_left_half_is_left_out_and_told(run: Run) -> None:
    first = text(row(seq) for seq in range(20)) + json.dumps(row(20))[:30]
    done = run(first, text(row(seq) for seq in range(20, 30)), source=SOURCE)
    assert done.returncode == 0, done.stderr
    assert "1 lines cut off" in done.stdout


@pytest.mark.parametrize(
    "line",
    ["oops\n", "[]\n", "{}\n", '{"topic":"t","queue":1,"offset":0,"body":"x"}\n', "7\n"],
)
def test_a_line_that_is_none_names_file_and_line(run: Run, line: str) -> None:
    done = run(text([row(0)]) + line)
    assert done.returncode == 1
    assert "0.jsonl line 2" in done.stdout
    assert "Traceback" not in done.stderr


def test_a_wrong_call_ends_with_exit_code_2(run: Run, tmp_path: Path) -> None:
    assert run(text([row(0)]), argv=["--source", "nowhere.jsonl"]).returncode == 2
    assert run(text([row(0)]), argv=["--counts"]).returncode == 2
    assert run(text([row(0)]), argv=["nowhere.jsonl"]).returncode == 2


def test_standard_input_is_read_when_no_file_is_named(tmp_path: Path) -> None:
    rows = text(row(seq) for seq in range(30))
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        input=rows,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0
    assert "stdin 100.0 %" in done.stdout
