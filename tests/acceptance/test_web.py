"""Web applications on asyncio, killed and restarted: short forms of
`script/chaos web-fastapi` and `web-django`."""

from __future__ import annotations

import pytest

from tests.acceptance.scenarios import web
from tests.acceptance.scenarios.stage import Stage


@pytest.mark.parametrize("kind", ["fastapi", "django"])
def test_no_order_is_lost_or_doubled_though_its_application_is_killed(
    stage: Stage, kind: str
) -> None:
    web.run(stage, kind=kind, count=400, restarts=2 if kind == "fastapi" else 4)
