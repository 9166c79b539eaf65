"""Which server of a list is written to, by what the servers say of themselves."""

from __future__ import annotations

import itertools

import pytest

from metadata.rules.addresses import Address, check_hosts, parse_addresses
from metadata.rules.cluster_members import (
    Member,
    NoWriter,
    ServerKind,
    choose_writer,
    member_of,
)

A, B, C = (Address(name, 3306) for name in ("a", "b", "c"))
SYNCED = {
    "wsrep_ready": "ON",
    "wsrep_cluster_status": "Primary",
    "wsrep_local_state": "4",
    "wsrep_local_state_comment": "Synced",
    "wsrep_cluster_conf_id": "7",
    "wsrep_cluster_state_uuid": "cluster",
    "wsrep_cluster_size": "3",
    "wsrep_local_index": "0",
}


def galera(address: Address, **status: str) -> Member:
    variables = {"wsrep_on": "ON", "read_only": "OFF", "version": "10.11.19-MariaDB"}
    return member_of(address, variables=variables, status=SYNCED | status)


def plain(address: Address, *, read_only: str = "OFF", identity: str = "") -> Member:
    member = member_of(
        address, variables={"read_only": read_only, "server_id": address.host}, status={}
    )
    return member._replace(identity=identity)


def group(
    address: Address,
    *states: str,
    primary: int = 0,
    mode: str = "ON",
    read_only: str = "OFF",
) -> Member:
    """Member number 0 of a group whose members have these states."""
    variables = {
        "server_uuid": "uuid-0",
        "read_only": read_only,
        "group_replication_group_name": "cluster",
        "group_replication_single_primary_mode": mode,
    }
    rows = [
        (
            f"uuid-{n}",
            "host",
            3306,
            state,
            "PRIMARY" if n == primary else "SECONDARY",
            "9.7.4",
            3,
            5_000,
        )
        for n, state in enumerate(states)
    ]
    return member_of(address, variables=variables, status={}, group=rows)


def test_every_order_of_the_list_gives_the_same_galera_member() -> None:
    members = [
        galera(A, wsrep_local_index="2"),
        galera(B, wsrep_local_index="0"),
        galera(C, wsrep_local_index="1"),
    ]
    for order in itertools.permutations(members):
        assert choose_writer(order, unreachable={}).address == B


def test_a_galera_member_that_is_no_member_of_the_majority_is_not_chosen() -> None:
    members = [
        galera(A, wsrep_cluster_status="non-Primary", wsrep_ready="OFF"),
        galera(B, wsrep_local_index="1"),
    ]
    assert choose_writer(members, unreachable={C: "timed out"}).address == B


@pytest.mark.parametrize(
    ("state", "comment"), [("1", "Joining"), ("3", "Joined"), ("2", "Donor/Desynced")]
)
def test_a_member_that_lags_is_not_chosen_although_it_comes_first(
    state: str, comment: str
) -> None:
    lagging = galera(A, wsrep_local_state=state, wsrep_local_state_comment=comment)
    assert (
        choose_writer([lagging, galera(B, wsrep_local_index="1")], unreachable={}).address
        == B
    )
    with pytest.raises(NoWriter, match="a:3306 is"):
        choose_writer([lagging], unreachable={})


def test_two_equal_halves_are_refused_by_name() -> None:
    halves = [galera(address, wsrep_cluster_status="non-Primary") for address in (A, B)]
    with pytest.raises(NoWriter, match="a:3306 has no contact to a majority"):
        choose_writer(halves, unreachable={})


def test_two_parts_that_both_accept_writes_are_refused() -> None:
    # pc.ignore_quorum or pc.bootstrap on both sides of a cut
    halves = [galera(A, wsrep_cluster_conf_id="8"), galera(B, wsrep_cluster_conf_id="9")]
    with pytest.raises(NoWriter, match="in separate parts of one cluster"):
        choose_writer(halves, unreachable={})
    # Both count on from the view before the cut.
    halves = [
        galera(A, wsrep_incoming_addresses="a:3306,c:3306"),
        galera(B, wsrep_incoming_addresses="b:3306"),
    ]
    with pytest.raises(NoWriter, match="in separate parts of one cluster"):
        choose_writer(halves, unreachable={})


def test_members_of_two_clusters_are_refused() -> None:
    members = [galera(A), galera(B, wsrep_cluster_state_uuid="other")]
    with pytest.raises(NoWriter, match="do not belong to one cluster"):
        choose_writer(members, unreachable={})
    with pytest.raises(NoWriter, match="do not belong to one cluster"):
        choose_writer([galera(A), plain(B)], unreachable={})


def test_the_data_of_another_node_is_refused_by_name() -> None:
    members = [plain(A, identity="here"), plain(B, read_only="ON", identity="other")]
    with pytest.raises(NoWriter, match="b:3306 has the data of another node"):
        choose_writer(members, unreachable={}, identity="here")


def test_an_empty_server_is_never_chosen() -> None:
    members = [plain(A, identity="here", read_only="ON"), plain(B)]
    with pytest.raises(NoWriter, match="b:3306 has no data of this node"):
        choose_writer(members, unreachable={}, identity="here")


def test_the_primary_is_the_server_that_is_not_read_only() -> None:
    for order in (
        [plain(A, read_only="ON"), plain(B)],
        [plain(B), plain(A, read_only="ON")],
    ):
        assert choose_writer(order, unreachable={}).address == B


def test_two_single_servers_that_accept_writes_are_refused() -> None:
    with pytest.raises(NoWriter, match="a:3306, b:3306 all accept writes"):
        choose_writer([plain(A), plain(B)], unreachable={})


def test_a_group_elects_its_primary() -> None:
    assert not group(A, "ONLINE", "ONLINE", "ONLINE").fault
    assert "secondary" in group(A, "ONLINE", "ONLINE", "ONLINE", primary=1).fault
    # It was elected a moment ago, and is behind.
    late = group(A, "ONLINE", "ONLINE", read_only="ON").fault
    assert late.endswith("read-only until it has applied 5000 received transactions")
    assert "RECOVERING" in group(A, "RECOVERING", "ONLINE", "ONLINE").fault


@pytest.mark.parametrize(
    "states", [("ONLINE", "UNREACHABLE"), ("ONLINE", *["UNREACHABLE"] * 2)]
)
def test_a_group_member_without_a_majority_is_refused(states: tuple[str, ...]) -> None:
    assert "majority" in group(A, *states).fault
    assert not group(A, "ONLINE", "ONLINE", "UNREACHABLE").fault


def test_a_multi_primary_group_is_refused_with_the_remedy() -> None:
    member = group(A, "ONLINE", "ONLINE", "ONLINE", mode="OFF")
    assert member.kind == ServerKind.GROUP
    with pytest.raises(NoWriter, match="switch_to_single_primary_mode"):
        choose_writer([member], unreachable={})


def test_unreachable_servers_are_named_with_their_reason() -> None:
    with pytest.raises(NoWriter, match="b:3306 does not answer: timed out"):
        choose_writer([plain(A, read_only="ON")], unreachable={B: "timed out"})


@pytest.mark.parametrize(
    "text",
    ["a,,b", "a:", "a:x", "a:70000", "a:0", "a/b", "[::1]x", "u@a", ",".join("abcdefghij")],
)
def test_bad_lists_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be HOST|addresses"):
        check_hosts(text)


def test_the_same_address_counts_once() -> None:
    assert parse_addresses("a,a:3306,b", 3306) == (A, B)
