"""The servers at a list of addresses: what each says of itself, and which of them to write
to.

    single   a server without a cluster, maybe with replicas: it accepts writes unless it is
             read-only
    galera   a member of a Galera cluster: every synced member of the primary component
             accepts writes, so all brokers have to choose the same member
    group    a member of a MySQL group (InnoDB Cluster): the group elects its primary

`member_of` makes a Member from the answers to QUERIES. `choose_writer` compares members. It
does not depend on the order of addresses, so all brokers that reach the same members choose
the same writer. docs/decisions/0036-writers-of-clusters.md says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from metadata.rules.addresses import Address

Row = Sequence[Any]

# Each is a statement with one result. SHOW works on a Galera member that refuses SELECT
# (1047), and leaves out a variable that the server lacks, where SELECT @@x would fail.
VARIABLES_QUERY = (
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('read_only', 'version', 'wsrep_on',"
    " 'wsrep_cluster_name', 'wsrep_provider_options', 'server_uuid', 'server_id',"
    " 'group_replication_group_name', 'group_replication_single_primary_mode',"
    " 'group_replication_consistency')"
)
STATUS_QUERY = (
    "SHOW GLOBAL STATUS WHERE Variable_name IN ('wsrep_ready', 'wsrep_cluster_status',"
    " 'wsrep_local_state', 'wsrep_local_state_comment', 'wsrep_cluster_conf_id',"
    " 'wsrep_cluster_state_uuid', 'wsrep_cluster_size', 'wsrep_local_index',"
    " 'wsrep_gcomm_uuid', 'wsrep_flow_control_paused', 'wsrep_flow_control_requested',"
    " 'wsrep_local_recv_queue', 'wsrep_local_commits', 'wsrep_local_cert_failures',"
    " 'wsrep_incoming_addresses')"
)
# Only for a server with group_replication_group_name: others may lack the table.
# The counts are those of transactions that wait for certification, and to be applied.
GROUP_QUERY = (
    "SELECT MEMBER_ID, MEMBER_HOST, MEMBER_PORT, MEMBER_STATE, MEMBER_ROLE, MEMBER_VERSION,"
    " COUNT_TRANSACTIONS_IN_QUEUE, COUNT_TRANSACTIONS_REMOTE_IN_APPLIER_QUEUE"
    " FROM performance_schema.replication_group_members"
    " LEFT JOIN performance_schema.replication_group_member_stats USING (MEMBER_ID)"
)
# Variable of a session and its value with which a read waits until the member has applied
# what the cluster committed before. Until then its log end offsets look too low. Any account
# may set them.
BARRIERS: Mapping[str, tuple[str, str]] = {
    "galera": ("wsrep_sync_wait", "1"),
    "group": ("group_replication_consistency", "BEFORE"),
}
SYNCED = 4  # wsrep_local_state
DONOR = 2  # wsrep_local_state of a member that copies its data to another


class ServerKind(StrEnum):
    SINGLE = "single"
    GALERA = "galera"
    GROUP = "group"


class Member(NamedTuple):
    """A server that answered.

    `fault` says why it accepts no writes, '' if it does. `cluster` and `view` are equal for
    members that agree on their membership. `rank` orders the members of a view: the lowest
    is the writer. `size` is the number of members that the server sees, itself included,
    `reachable` the number of those that it reaches.
    """

    address: Address
    kind: ServerKind
    fault: str
    server_id: str
    version: str
    cluster: str = ""
    view: str = ""
    rank: int = 0
    size: int = 1
    reachable: int = 1
    identity: str = ""  # of the node whose data the server holds
    figures: Mapping[str, float] = {}


class NoWriter(Exception):
    """No server of a list can be written to. The text says why, and the remedy."""


class Parted(NoWriter):
    """Members accept writes in separate parts, maybe only while members come or go."""


def as_literal(value: str) -> str:
    """Return the value of a variable as SHOW prints it, for a SET.

    >>> as_literal("1"), as_literal("BEFORE")
    ('1', "'BEFORE'")
    """
    return value if value.isdigit() else f"'{value}'"


def member_of(
    address: Address,
    *,
    variables: Mapping[str, str],
    status: Mapping[str, str],
    group: Sequence[Row] = (),
) -> Member:
    """Return the member that the answers of a server describe.

    `variables` and `status` are the rows of VARIABLES_QUERY and STATUS_QUERY, `group` those
    of GROUP_QUERY.
    """
    common = {
        "address": address,
        "version": variables.get("version", ""),
        "server_id": variables.get("server_uuid") or variables.get("server_id", ""),
    }
    if variables.get("wsrep_on") == "ON":
        return _galera_member(common, variables, status)
    if variables.get("group_replication_group_name"):
        return _group_member(common, variables, group)
    fault = "is read-only" if variables.get("read_only") == "ON" else ""
    return Member(kind=ServerKind.SINGLE, fault=fault, **common)  # type: ignore[arg-type]


def _galera_member(
    common: Mapping[str, object], variables: Mapping[str, str], status: Mapping[str, str]
) -> Member:
    state = int(status.get("wsrep_local_state") or 0)
    if status.get("wsrep_cluster_status") != "Primary":
        fault = "has no contact to a majority of its Galera cluster"
    elif status.get("wsrep_ready") != "ON" or state not in (SYNCED, DONOR):
        comment = status.get("wsrep_local_state_comment") or "not ready"
        fault = f"is not synced with its Galera cluster: {comment}"
    # It accepts writes, but may block them, and lag without a limit.
    elif state == DONOR:
        fault = "is a donor or desynced: it copies its data, or a backup holds a lock"
    else:
        fault = "is read-only" if variables.get("read_only") == "ON" else ""
    size = int(status.get("wsrep_cluster_size") or 0)
    addresses = status.get("wsrep_incoming_addresses", "").split(",")
    return Member(
        kind=ServerKind.GALERA,
        fault=fault,
        **{**common, "server_id": status.get("wsrep_gcomm_uuid") or common["server_id"]},  # type: ignore[arg-type]
        cluster=status.get("wsrep_cluster_state_uuid", ""),
        # Two parts that were split count on from the same number.
        view=f"{status.get('wsrep_cluster_conf_id')} of {','.join(sorted(addresses))}",
        # The index in the view that all members of the view agree on.
        rank=int(status.get("wsrep_local_index") or 0),
        size=size,
        reachable=size,
        figures={
            "flow_control_paused": float(status.get("wsrep_flow_control_paused") or 0),
            "stops_writes": float(status.get("wsrep_flow_control_requested") == "true"),
            "member_queue": float(status.get("wsrep_local_recv_queue") or 0),
            "ignores_quorum": float(_ignores_quorum(variables)),
            "commits": float(status.get("wsrep_local_commits") or 0),
            "certification_failures": float(status.get("wsrep_local_cert_failures") or 0),
        },
    )


def _ignores_quorum(variables: Mapping[str, str]) -> bool:
    """Return True if a Galera member accepts writes without a majority."""
    options = variables.get("wsrep_provider_options", "").split(";")
    pairs = (option.partition("=") for option in options)
    set_options = {name.strip(): value.strip() for name, _equals, value in pairs}
    return set_options.get("pc.ignore_quorum") in ("true", "1", "yes", "on")


def _group_member(
    common: Mapping[str, object], variables: Mapping[str, str], group: Sequence[Row]
) -> Member:
    own = next((row for row in group if row[0] == common["server_id"]), None)
    reachable = [row for row in group if row[3] in ("ONLINE", "RECOVERING")]
    state = str(own[3]) if own else "OFFLINE"
    if state != "ONLINE":
        fault = f"is not online in its group: {state}"
    elif 2 * len(reachable) <= len(group):
        fault = "has no contact to a majority of its group"
    elif variables.get("group_replication_single_primary_mode") == "OFF":
        fault = (
            "runs in multi-primary mode, and a node needs one writer: run SELECT "
            "group_replication_switch_to_single_primary_mode()"
        )
    elif own and own[4] != "PRIMARY":
        fault = "is a secondary of its group"
    elif variables.get("read_only") != "ON":
        fault = ""
    else:
        fault = "is the primary of its group, but read-only"
        # A new primary applies what it has received before it accepts writes.
        if own and own[7]:
            fault += f" until it has applied {own[7]} received transactions"
    primaries = sorted(str(row[0]) for row in group if row[4] == "PRIMARY")
    return Member(
        kind=ServerKind.GROUP,
        fault=fault,
        **common,  # type: ignore[arg-type]
        cluster=variables["group_replication_group_name"],
        view=",".join(primaries),
        size=len(group),
        reachable=len(reachable),
        figures={
            "versions": float(len({row[5] for row in reachable})),
            "certification_queue": float((own and own[6]) or 0),
            "member_queue": float((own and own[7]) or 0),
        },
    )


def choose_writer(
    members: Iterable[Member], *, unreachable: Mapping[Address, str], identity: str = ""
) -> Member:
    """Return the member that all brokers write to. Raises NoWriter.

    `unreachable` has the reason for each address that did not answer. `identity` is that of
    the node: members with other data are never chosen, and raise unless they are empty.
    """
    by_rank = sorted(
        members, key=lambda member: (member.rank, member.server_id, member.address)
    )
    foreign = [m for m in by_rank if identity and m.identity not in ("", identity)]
    if foreign:
        raise NoWriter(
            f"{foreign[0].address} has the data of another node. Remove its address from the "
            "list."
        )
    clusters = {m.cluster for m in by_rank if m.kind != ServerKind.SINGLE and not m.fault}
    kinds = {m.kind for m in by_rank}
    if len(clusters) > 1 or len(kinds) > 1:
        raise NoWriter(
            f"The servers at {join(m.address for m in by_rank)} do not belong to one cluster. "
            "List only members of one cluster, or a server and its replicas."
        )
    usable = [
        m for m in by_rank if not m.fault and (not identity or m.identity == identity)
    ]
    if not usable:
        faults = [f"{m.address} {m.fault or 'has no data of this node'}" for m in by_rank]
        faults += [
            f"{address} does not answer: {why}" for address, why in unreachable.items()
        ]
        raise NoWriter(f"No server accepts writes: {'; '.join(faults)}.")
    if len({m.view for m in usable}) > 1:
        raise Parted(
            f"The servers at {join(m.address for m in usable)} accept writes in separate parts "
            "of one cluster, or its members are changing right now. If that lasts, both parts "
            "may have other data: stop all but one part, and let its members join again."
        )
    if usable[0].kind == ServerKind.SINGLE and len(usable) > 1:
        raise NoWriter(
            f"The servers at {join(m.address for m in usable)} all accept writes. Run SET GLOBAL "
            "read_only = 1 on every replica."
        )
    return usable[0]


def decides(member: Member, *, recorded: str = "") -> bool:
    """Return True if no other member of its cluster can be chosen instead of a member.

    `recorded` is the writer in metadata, for servers without a cluster.
    """
    if member.fault:
        return False
    if member.kind == ServerKind.SINGLE:
        return str(member.address) == recorded
    # The only primary of a group, or the first of a Galera cluster's view.
    return member.rank == 0


def join(addresses: Iterable[Address]) -> str:
    """Return addresses as text.

    >>> join([Address("db1", 3306), Address("db2", 3306)])
    'db1:3306, db2:3306'
    """
    return ", ".join(map(str, addresses))
