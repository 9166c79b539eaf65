"""Handlers that fail at 30 % of their calls, over the real input: short forms; all of it
takes minutes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.scenarios import shaky
from tests.acceptance.scenarios.stage import Stage


def test_every_event_is_handled_or_dead_although_its_handler_fails(
    stage: Stage, part: Callable[[int], Path]
) -> None:
    shaky.run(stage, source=part(1_000), ordered=False)


@pytest.mark.parametrize("order", ["key", "queue"])
def test_in_an_ordered_subscription_no_failure_breaks_the_order(
    stage: Stage, part: Callable[[int], Path], order: str
) -> None:
    shaky.run(stage, source=part(1_000), ordered=True, order=order)
