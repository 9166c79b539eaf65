"""Brokers of two releases work together: a short form of `script/chaos mixed-releases`."""

from __future__ import annotations

from pathlib import Path

from tests.acceptance.scenarios import mixed_releases
from tests.acceptance.scenarios.stage import Stage
from tests.support.pair import Pair


def test_brokers_of_two_releases_lose_nothing_while_nodes_are_upgraded_under_them(
    on_pair: Stage, pair: Pair, tmp_path: Path
) -> None:
    mixed_releases.run_short(on_pair, pair, tmp_path / "previous")
