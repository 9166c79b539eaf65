"""Clients that hold on to the broker: the short form of what script/chaos slow-clients
plays at length.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.acceptance.scenarios import slow_clients
from tests.acceptance.scenarios.stage import Stage
from tests.support.server import Server

FEW = {"CATMQ_WORKERS": "1", "CATMQ_THREADS": "16", "CATMQ_MAX_WAITERS": "6"}


def test_everybody_is_served_beside_clients_that_send_slowly_and_idle_ones_take_no_thread(
    new_server: Callable[..., Server], on_stage: Callable[[Server], Stage]
) -> None:
    slow_clients.run(
        on_stage(new_server(environ=FEW)), sockets=120, idle=60, rounds=10, every_s=1.0
    )
