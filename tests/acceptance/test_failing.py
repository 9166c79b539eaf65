"""Handlers that fail, on a whole server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.acceptance.scenarios import failing
from tests.acceptance.scenarios.stage import Stage


def test_what_handlers_fail_at_is_handled_in_the_end_and_no_copy_is_made_twice(
    stage: Stage, part: Callable[[int], Path]
) -> None:
    failing.run(stage, source=part(1_000))
