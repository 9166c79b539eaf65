"""Checks of the servers that replicate a node: members of a cluster, and semi-synchronous
replicas.

`check` asks them; `check_members` and `check_semi_sync` judge what they answered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from messagestore.engine.mysql_session import MySqlSession
from messagestore.nodes.server_checks import FindingFields
from messagestore.pool import writers
from metadata.cache.snapshot_types import NodeInfo
from metadata.errors import CatmqError
from metadata.rules import cluster_members
from metadata.rules.addresses import Address, is_list, parse_addresses
from metadata.rules.cluster_members import Member, ServerKind

TEXTS = {  # texts of findings, part of preflight.TEXTS
    "cluster": "The cluster has %(members)d members. Messages are written on %(writer)s.",
    "one_address": (
        "The server is a member of a cluster, but only its address is known. List the addresses "
        "of all members, or brokers cannot follow a switch."
    ),
    "two_members": (
        "The cluster has two members, so the loss of one can stop both. Add a third member, or an "
        "arbitrator (garbd)."
    ),
    "few_members": (
        "Only %(reachable)d of %(members)d members are in contact. If one more is lost, the "
        "others may refuse writes."
    ),
    "ignores_quorum": (
        "pc.ignore_quorum is on at %(server)s: after a cut both sides accept writes and lose "
        "messages. Remove it from wsrep_provider_options."
    ),
    "two_writers": (
        "%(servers)s have both committed transactions of their own since the check began. Let "
        "other applications write to %(writer)s, or conflicts delay sends."
    ),
    "flow_control": (
        "Flow control has stopped writes for %(percent)d %% of the time at %(server)s. Find the "
        "slow member: the disk, or wsrep_slave_threads."
    ),
    "stops_writes": (
        "%(server)s cannot keep up and stops the writes of all members now. Find what slows it: a "
        "lock on its tables, the disk, or wsrep_slave_threads."
    ),
    "certification_queue": (
        "%(server)s has %(transactions)d transactions that wait for certification, so commits "
        "wait. Find what slows it: its processors, the network, or large transactions."
    ),
    "member_queue": (
        "%(server)s has %(transactions)d received transactions to apply. After a switch it first "
        "has to catch up."
    ),
    "versions": (
        "The members have different versions: %(versions)s. Finish the upgrade before the next "
        "change of the schema."
    ),
    "member_away": "%(server)s does not answer: %(why)s.",
    "member_fault": "%(server)s cannot become the writer: it %(why)s.",
    "member_foreign": (
        "%(server)s has the data of another node. Remove its address from the list."
    ),
    "member_writable": (
        "%(server)s accepts writes, too, and is not the node's primary. Run SET GLOBAL "
        "read_only = 1 there."
    ),
    "semi_sync": (
        "Semi-synchronous: a replica has each message before it is visible (AFTER_SYNC). Without "
        "an answer for %(seconds)g s the server goes on alone."
    ),
    "semi_point": (
        "Semi-synchronous, but messages are visible before a replica has them (%(point)s): "
        "consumers may get messages that are lost with the server. Set %(variable)s to AFTER_SYNC."
    ),
    "semi_fallback": (
        "Semi-synchronous replication is enabled but not active: no replica answers, so "
        "acknowledged messages are lost with this server. Repair the replica."
    ),
}
MIN_MEMBERS = 3
MAX_PAUSED = 0.1  # part of the time that flow control may stop writes
MAX_QUEUE = 1000  # transactions that a member may still have to certify, or to apply
_SEMI_SYNC = (
    "SHOW GLOBAL VARIABLES LIKE 'rpl_semi_sync%'",
    "SHOW GLOBAL STATUS LIKE 'Rpl_semi_sync%'",
)


def check(info: NodeInfo, session: MySqlSession) -> Iterator[FindingFields]:
    """Yield findings about the servers behind a session on a node. Raises `db_errors.*`."""
    if is_list(info.host):
        found = writers.survey(info)
        with suppress(CatmqError):
            yield from check_members(
                info,
                found.members,
                unreachable=found.unreachable,
                later=writers.survey(info).members,
            )
    elif session.is_clustered:
        member = writers.read_member(session, parse_addresses(info.host, info.port)[0])
        yield "cluster", "warn", "one_address", {}
        yield from check_members(info, [member], unreachable={}, later=[member])
    yield from read_semi_sync(session)


def read_semi_sync(session: MySqlSession) -> list[FindingFields]:
    """Return the findings about semi-synchronous replication. Raises `db_errors.*`."""
    variables, status = session.send(";".join(_SEMI_SYNC).encode(), statements=2)
    return list(check_semi_sync(dict(variables.rows), dict(status.rows)))


def check_members(
    info: NodeInfo,
    members: Sequence[Member],
    *,
    unreachable: Mapping[Address, str],
    later: Sequence[Member],
) -> Iterator[FindingFields]:
    """Yield findings about the servers of a list. `later` are the same, asked a moment after."""
    for address, why in unreachable.items():
        yield "cluster", "warn", "member_away", {"server": str(address), "why": why}
    for member in members:
        if info.identity and member.identity not in ("", info.identity):
            yield "cluster", "bad", "member_foreign", {"server": str(member.address)}
    try:
        writer = writers.choose(info, writers.Survey(tuple(members), dict(unreachable)))
    except cluster_members.NoWriter:
        # The connection of the check would have failed before, unless it just happened.
        return
    if writer.kind == ServerKind.SINGLE:
        for member in members:
            if member.address != writer.address and not member.fault:
                yield "cluster", "warn", "member_writable", {"server": str(member.address)}
        return
    yield from _check_cluster(writer, members, later)


def _check_cluster(
    writer: Member, members: Sequence[Member], later: Sequence[Member]
) -> Iterator[FindingFields]:
    """Yield findings about a cluster that has a writer."""
    yield (
        "cluster",
        "ok",
        "cluster",
        {"members": writer.size, "writer": str(writer.address)},
    )
    if writer.size == 2:
        yield "cluster", "warn", "two_members", {}
    elif writer.reachable < max(writer.size, MIN_MEMBERS):
        values = {"reachable": writer.reachable, "members": max(writer.size, MIN_MEMBERS)}
        yield "cluster", "warn", "few_members", values
    versions = sorted({member.version for member in members})
    if len(versions) > 1:
        yield "cluster", "warn", "versions", {"versions": ", ".join(versions)}
    for member in members:
        yield from _check_member(member, is_writer=member.address == writer.address)
    commits = {member.address: member.figures.get("commits", 0.0) for member in members}
    writing = [
        m.address
        for m in later
        if m.figures.get("commits", 0.0) > commits.get(m.address, 0)
    ]
    if len(writing) > 1:
        names = {"servers": cluster_members.join(writing), "writer": str(writer.address)}
        yield "cluster", "warn", "two_writers", names


def _check_member(member: Member, *, is_writer: bool) -> Iterator[FindingFields]:
    """Yield findings about one member of a cluster."""
    server = str(member.address)
    # A secondary of a group is read-only as long as it is one.
    if member.fault and not is_writer and "secondary" not in member.fault:
        yield "cluster", "warn", "member_fault", {"server": server, "why": member.fault}
    if member.figures.get("ignores_quorum"):
        yield "cluster", "bad", "ignores_quorum", {"server": server}
    paused = member.figures.get("flow_control_paused", 0.0)
    if paused > MAX_PAUSED:
        values = {"server": server, "percent": round(100 * paused)}
        yield "cluster", "warn", "flow_control", values
    if member.figures.get("stops_writes"):
        yield "cluster", "warn", "stops_writes", {"server": server}
    for queue in ("certification_queue", "member_queue"):
        transactions = int(member.figures.get(queue, 0.0))
        if transactions > MAX_QUEUE:
            yield "cluster", "warn", queue, {"server": server, "transactions": transactions}


def check_semi_sync(
    variables: Mapping[str, str], status: Mapping[str, str]
) -> Iterator[FindingFields]:
    """Yield findings about semi-synchronous replication; none if it is not enabled.

    `variables` and `status` are those of the server whose names begin with rpl_semi_sync.
    """
    # MySQL 8.0.26 renamed master to source; MariaDB kept the name.
    for role in ("source", "master"):
        prefix = f"rpl_semi_sync_{role}_"
        if variables.get(f"{prefix}enabled") != "ON":
            continue
        states = {name.lower(): value for name, value in status.items()}
        if states.get(f"{prefix}status") != "ON":
            yield "replicas", "warn", "semi_fallback", {}
        point = variables.get(f"{prefix}wait_point", "")
        if point != "AFTER_SYNC":
            values = {"point": point, "variable": f"{prefix}wait_point"}
            yield "replicas", "warn", "semi_point", values
        elif states.get(f"{prefix}status") == "ON":
            seconds = float(variables.get(f"{prefix}timeout", 0)) / 1000
            yield "replicas", "ok", "semi_sync", {"seconds": seconds}
        return
