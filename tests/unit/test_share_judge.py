"""The judge of script/chaos share finds what must not happen."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.acceptance.scenarios.share import Crowd, judge


def line(offset: int, pid: int, grant: int = 1) -> dict[str, Any]:
    return {
        "at": "begin",
        "pid": pid,
        "queue": 1,
        "offset": offset,
        "grant": f"g{grant}",
        "body": "x",
    }


def judged(tmp_path: Path, *lines: dict[str, Any], **excuses: Any) -> str:
    stage: Any = SimpleNamespace(directory=tmp_path)
    crowd = Crowd(stage, "t", "g", threads=1, work_ms=1, disturbed={7})
    crowd.log.write_text("".join(json.dumps(one) + "\n" for one in lines) + '{"at": "be')
    return judge(crowd, excuses=excuses)


def test_what_a_killed_member_had_may_be_repeated(tmp_path: Path) -> None:
    assert (
        judged(tmp_path, line(0, 7), line(1, 8), line(0, 8, 2))
        == "1 repeated: 1 of disturbed members"
    )


def test_a_repeat_without_a_reason_is_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="nobody who had it was disturbed"):
        judged(tmp_path, line(0, 8), line(0, 9, 2))


def test_two_handlers_under_one_lease_are_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="begun twice under one lease"):
        judged(tmp_path, line(0, 7), line(0, 9))


def test_a_repeat_with_an_excuse_is_counted_by_its_reason(tmp_path: Path) -> None:
    told = judged(
        tmp_path,
        line(0, 8),
        line(0, 9, 2),
        reset=lambda before, after: after["offset"] == 0,
    )
    assert told == "1 repeated: 1 reset"
