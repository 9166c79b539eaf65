"""Handlers that fail, on a whole server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.acceptance.scenarios import failing
from tests.acceptance.scenarios.stage import Stage
from tests.support.server import Server


def test_what_handlers_fail_at_is_handled_in_the_end_and_no_copy_is_made_twice(
    new_server: Callable[..., Server], on_stage: Callable[[Server], Stage], part: Callable[[int], Path]
) -> None:
    failing.run(on_stage(new_server()), source=part(1_000))
