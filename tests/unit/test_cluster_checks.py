"""What an examination says of the servers that replicate a node."""

from __future__ import annotations

from typing import Any

import pytest

from messagestore.nodes import cluster_checks
from metadata.cache.snapshot_types import NodeInfo
from metadata.rules.addresses import Address
from metadata.rules.cluster_members import Member, ServerKind, member_of

A, B, C = (Address(name, 3306) for name in ("a", "b", "c"))
STATUS = {
    "wsrep_ready": "ON",
    "wsrep_cluster_status": "Primary",
    "wsrep_local_state": "4",
    "wsrep_cluster_size": "3",
    "wsrep_cluster_conf_id": "1",
    "wsrep_cluster_state_uuid": "u",
}


def node(writer: str = "") -> NodeInfo:
    return NodeInfo(
        id=1, name="n", kind="normal", engine="mysql", host="a,b,c", port=3306, database="d",
        username="", password="", state="read_write", dedicated=False, epoch=1,
        capacity_gb=None, identity="here", writer=writer,
    )  # fmt: skip


def galera(
    address: Address, *, options: str = "", version: str = "10.11", **status: str
) -> Member:
    variables = {"wsrep_on": "ON", "version": version, "wsrep_provider_options": options}
    rank = {"wsrep_local_index": str("abc".index(address.host))}
    member = member_of(address, variables=variables, status=STATUS | rank | status)
    return member._replace(identity="here")


def found(*members: Member, later: tuple[Member, ...] = (), **more: Any) -> dict[str, str]:
    """The verdict of each finding, by its text."""
    info, unreachable = more.pop("info", node()), more.pop("unreachable", {})
    fields = cluster_checks.check_members(
        info, members, unreachable=unreachable, later=later or members
    )
    return {text: verdict for _about, verdict, text, _words in fields}


def test_three_equal_members_are_in_order() -> None:
    assert found(galera(A), galera(B), galera(C)) == {"cluster": "ok"}


@pytest.mark.parametrize(
    ("member", "text", "verdict"),
    [
        (galera(C, options="pc.ignore_quorum = true; x = y"), "ignores_quorum", "bad"),
        (galera(C, wsrep_flow_control_paused="0.4"), "flow_control", "warn"),
        (galera(C, wsrep_flow_control_requested="true"), "stops_writes", "warn"),
        (galera(C, wsrep_local_recv_queue="5000"), "member_queue", "warn"),
        (galera(C, version="11.8"), "versions", "warn"),
        (galera(C, wsrep_local_state="2"), "member_fault", "warn"),
        (galera(C)._replace(identity="other"), "member_foreign", "bad"),
    ],
)
def test_a_member_out_of_order_is_named(member: Member, text: str, verdict: str) -> None:
    assert found(galera(A), galera(B), member)[text] == verdict


def test_two_members_and_a_lost_one_are_told_apart() -> None:
    two = [galera(place, wsrep_cluster_size="2") for place in (A, B)]
    assert found(*two)["two_members"] == "warn"
    one = galera(A, wsrep_cluster_size="1")
    assert found(one, unreachable={B: "timed out"}) == {
        "member_away": "warn", "cluster": "ok", "few_members": "warn",
    }  # fmt: skip


def test_commits_on_two_members_are_a_second_writer() -> None:
    before = [galera(A, wsrep_local_commits="5"), galera(B, wsrep_local_commits="7")]
    after = (galera(A, wsrep_local_commits="6"), galera(B, wsrep_local_commits="8"))
    assert found(*before, later=after)["two_writers"] == "warn"
    assert "two_writers" not in found(*before, later=(after[0], before[1]))


def test_a_replica_that_accepts_writes_is_named() -> None:
    single = [
        Member(place, ServerKind.SINGLE, "", place.host, "10.11", identity="here")
        for place in (A, B)
    ]
    assert found(*single, info=node("a:3306")) == {"member_writable": "warn"}


@pytest.mark.parametrize("role", ["source", "master"])
def test_the_wait_point_of_semi_sync_and_its_fallback_are_told(role: str) -> None:
    def semi(point: str, state: str) -> list[str]:
        prefix = f"rpl_semi_sync_{role}_"
        variables = {f"{prefix}enabled": "ON", f"{prefix}wait_point": point}
        status = {f"Rpl_semi_sync_{role}_status": state}
        return [f[2] for f in cluster_checks.check_semi_sync(variables, status)]

    assert semi("AFTER_SYNC", "ON") == ["semi_sync"]
    assert semi("AFTER_SYNC", "OFF") == ["semi_fallback"]
    assert semi("AFTER_COMMIT", "ON") == ["semi_point"]
    assert semi("AFTER_COMMIT", "OFF") == ["semi_fallback", "semi_point"]
    assert list(cluster_checks.check_semi_sync({}, {})) == []
