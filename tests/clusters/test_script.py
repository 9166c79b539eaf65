"""script/cluster: members join, links are cut and healed, killed servers come back."""

from __future__ import annotations

import subprocess
from functools import partial
from pathlib import Path

import pytest

from tests.support import clusters
from tests.support.clusters import SCRIPT, Cluster
from tests.support.waiting import until


def test_what_is_written_on_the_writer_is_on_all_members(cluster: Cluster) -> None:
    cluster.writer.execute("CREATE DATABASE IF NOT EXISTS seen_by_all")
    for member in cluster.members.values():
        # A member may be a moment late.
        until(partial(member.execute, "SHOW DATABASES LIKE 'seen_by_all'"))
    cluster.writer.execute("DROP DATABASE seen_by_all")


@pytest.mark.rounds
def test_a_member_that_is_cut_off_loses_its_majority_and_joins_again(
    cluster: Cluster,
) -> None:
    clusters.require_links(cluster)
    cut_off = cluster.writer.member
    cluster.cut(cut_off)
    assert cluster.members[cut_off].cut == "peers"
    cluster.await_state(
        lambda members: (
            not members[cut_off].primary
            and any(member.writer for member in members.values())
            and sum(member.size == 2 for member in members.values()) == 2
        )
    )
    cluster.heal()
    cluster.await_state(
        lambda members: all(
            member.primary and member.size == 3 for member in members.values()
        )
    )


def test_a_member_may_be_heard_and_hear_nothing(cluster: Cluster) -> None:
    clusters.require_links(cluster)
    cluster.cut(1, "--one-way")
    assert cluster.members[1].cut == "from peers"
    cluster.heal()
    assert cluster.members[1].cut == ""
    cluster.await_whole()


@pytest.mark.rounds
def test_all_killed_members_start_again(cluster: Cluster) -> None:
    for number in cluster.members:
        cluster.kill(number)
    assert {member.state for member in cluster.members.values()} == {"stopped"}
    cluster.start()
    assert all(member.size == 3 for member in cluster.members.values())


def test_errors_name_cause_and_remedy(tmp_path: Path) -> None:
    def refusal(*arguments: str) -> str:
        command = [SCRIPT, *arguments, "--dir", str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        return done.stderr.strip()

    assert refusal("galera", "kill", "1") == (
        f"There is no cluster in {tmp_path}: run script/cluster galera start."
    )
    (tmp_path / "file").touch()
    assert refusal("group", "start") == (
        f"{tmp_path} is not empty. Give another one with --dir."
    )
