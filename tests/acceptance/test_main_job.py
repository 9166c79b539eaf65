"""The main job on real processes: all events arrive, in order, shared by two consumers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.scenarios import main_job
from tests.acceptance.scenarios.stage import Stage
from tests.support.server import Server


@pytest.mark.everyday
def test_two_groups_get_every_event_although_a_broker_and_a_consumer_are_killed(
    stage: Stage, part: Callable[[int], Path]
) -> None:
    main_job.with_kills(stage, source=part(5_000))


def test_a_stream_arrives_as_well_when_every_message_is_sent_by_itself(
    stage: Stage, part: Callable[[int], Path]
) -> None:
    main_job.run(stage, source=part(1_000), batch=1)


def test_two_consumers_that_start_on_a_backlog_leave_nothing_out(
    stage: Stage, part: Callable[[int], Path]
) -> None:
    main_job.backlog(stage, source=part(5_000))


def test_two_consumers_share_the_whole_stream_on_two_nodes_and_get_every_event_in_order(
    mariadb_server: Server, on_stage: Callable[[Server], Stage], stream: Path
) -> None:
    stage = on_stage(mariadb_server)
    before = queues_by_node(stage)
    main_job.run(stage, source=stream, batch=500)
    assert {
        name: count - before[name] for name, count in queues_by_node(stage).items()
    } == {"n1": 2, "n2": 2}


def queues_by_node(stage: Stage) -> dict[str, int]:
    """How many queues each node holds; other tests have theirs there, too."""
    return {node["name"]: node["queues"] for node in stage.terminal.admin.nodes()}
