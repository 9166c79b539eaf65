"""The judge of trials and `verify` name what is planted, each defect by its kind and place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import defects, selftest
from tests.support.clean_run import CleanRun
from tests.support.verdicts import KINDS

pytestmark = pytest.mark.one_engine


def test_each_defect_is_named_by_its_kind_and_place_and_a_clean_run_has_none(
    make_node: Callable[..., str], tmp_path: Path
) -> None:
    for name in ("n1", "n2"):
        make_node(name)
    make_node("failure", kind="failure")
    run = CleanRun(tmp_path / "journals")
    run.play()
    named = list(selftest.prove_all(run))
    assert [one.defect for one in named] == list(defects.ALL)


def test_every_kind_that_the_judge_knows_is_planted() -> None:
    of_logs = {"log"}  # tests/unit/test_broker_logs.py
    assert {one.judge for one in defects.ALL} == KINDS.keys() - of_logs
