"""Connections to the servers of a node: which server is written to, and a session on it.

`host` of a node may name several servers (metadata/rules/addresses.py). This process
remembers the writer of each list. A new session goes there and asks the server again; if it
does not answer or accepts no writes, all servers of the list are asked (`survey`) and
`cluster_members.choose_writer` decides. `review` asks all of them from time to time, because
another member of a Galera cluster may have become the writer while the former still answers.

Servers without a cluster are different: only a promotion moves their writer, and metadata
knows it (`NodeInfo.writer`). docs/decisions/0036-writers-of-clusters.md says why.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from messagestore.engine import db_errors
from messagestore.engine.mysql_session import LOG_EVERY_S, READ_TIMEOUT_S, MySqlSession
from messagestore.tables import promotion_sql
from metadata import surveys
from metadata.cache.snapshot_types import NodeInfo
from metadata.errors import CatmqError
from metadata.rules import addresses, cluster_members
from metadata.rules.addresses import Address
from metadata.rules.cluster_members import Member, NoWriter, ServerKind
from metadata.rules.tls import Tls

log = logging.getLogger(__name__)
SURVEY_TIMEOUT_S = 2  # for an answer of each server
# For a new session's wait until its member has caught up. A member that was cut off a moment
# ago looks healthy, and would let it wait for the whole read timeout.
CATCH_UP_S = 2.0


class Survey(NamedTuple):
    """The servers of a list that answered, and why each of the others did not."""

    members: tuple[Member, ...]
    unreachable: dict[Address, str]


class Writer(NamedTuple):
    """The writer of a list, and the time.monotonic() at which it was last chosen.

    `recorded` is the writer in metadata at that time.
    """

    member: Member
    chosen_at: float
    recorded: str


class Behind(NoWriter):
    """A member accepts writes, but does not catch up with its cluster."""


class Failure(NamedTuple):
    """Why no writer was found, and the time.monotonic() of that answer."""

    error: NoWriter
    failed_at: float


_guard = threading.Lock()
_survey_locks: dict[str, threading.Lock] = {}
_writers: dict[str, Writer] = {}
_failures: dict[str, Failure] = {}
_logged_at: dict[str, tuple[str, float]] = {}  # name of a node → last reason, and when
_reasons: dict[str, str] = {}  # name of a node → why it has no writer, until it has one


def connect(info: NodeInfo, *, read_timeout_s: int = READ_TIMEOUT_S) -> MySqlSession:
    """Return a session on the server that a node is written to. Raises Unreachable.

    A session on a member of a cluster has waited until the member applied everything that
    the cluster had committed.
    """
    if addresses.is_list(info.host):
        session = _connect_to_list(info, read_timeout_s)
    else:
        session = open_at(info, _only_address(info), read_timeout_s=read_timeout_s)
        # One address in front of a cluster: its own proxy chooses the member.
        if session.is_clustered:
            session = _settle(session, info)
    _reasons.pop(info.name, None)
    return session


def _connect_to_list(info: NodeInfo, read_timeout_s: int) -> MySqlSession:
    writer = _remembered(info)
    if writer is not None:
        try:
            return _connect_writer(info, writer.member.address, read_timeout_s)
        except db_errors.Unreachable as error:
            # Most likely the same member would be chosen again, and waited for.
            if isinstance(error.__cause__, Behind):
                raise
    try:
        member = find_writer(info)
    except NoWriter as error:
        raise _no_writer(info, str(error)) from error
    return _connect_writer(info, member.address, read_timeout_s)


def connect_to_read(
    info: NodeInfo, *, read_timeout_s: int = READ_TIMEOUT_S
) -> MySqlSession:
    """Return a session on a server that a replica's messages are read from.

    Of several servers it is the first that answers with the node's data, whether it accepts
    writes or not. Raises Unreachable.
    """
    if not addresses.is_list(info.host):
        return open_at(info, _only_address(info), read_timeout_s=read_timeout_s)
    found = survey(info)
    for member in found.members:
        if not info.identity or member.identity == info.identity:
            return open_at(info, member.address, read_timeout_s=read_timeout_s)
    reasons = "; ".join(f"{address}: {why}" for address, why in found.unreachable.items())
    raise _no_writer(info, f"No server has the data of this node. {reasons}".rstrip())


def open_at(
    info: NodeInfo, address: Address, *, read_timeout_s: int = READ_TIMEOUT_S
) -> MySqlSession:
    """Return a session on the server at an address, whatever it is. Raises Unreachable."""
    return MySqlSession(
        name=info.name,
        host=address.host,
        port=address.port,
        database=info.database,
        username=info.username,
        password=info.password,
        encryption=Tls(info.tls, info.tls_ca),
        read_timeout_s=read_timeout_s,
    )


def read_member(session: MySqlSession, address: Address) -> Member:
    """Return the state of a session's server in its cluster or replication.

    Raises `db_errors.*`.
    """
    text = f"{cluster_members.VARIABLES_QUERY};{cluster_members.STATUS_QUERY}"
    variables, status = (dict(r.rows) for r in session.send(text.encode(), statements=2))
    group = (
        session.send(cluster_members.GROUP_QUERY.encode(), statements=1)[0].rows
        if variables.get("group_replication_group_name")
        else ()
    )
    return cluster_members.member_of(
        address, variables=variables, status=status, group=group
    )


def survey(info: NodeInfo, *, decides: Callable[[Member], bool] | None = None) -> Survey:
    """Ask every server of a node's list at the same time.

    Servers that are slow are left out after an answer for which `decides` returns True.
    """

    def ask(address: Address) -> Member | str:
        try:
            session = open_at(info, address, read_timeout_s=SURVEY_TIMEOUT_S)
        except CatmqError as error:
            return _reason(error)
        try:
            member = read_member(session, address)
            # A server without the node's tables, or a Galera member that is not ready.
            with suppress(CatmqError):
                member = member._replace(identity=promotion_sql.read_identity(session))
        except CatmqError as error:
            return _reason(error)
        else:
            return member
        finally:
            session.close()

    places = addresses.parse_addresses(info.host, info.port)
    members, unreachable = surveys.ask_all(places, ask, decides=decides)
    return Survey(tuple(members), unreachable)


def find_writer(info: NodeInfo) -> Member:
    """Ask all servers of a list, and remember the writer. Raises NoWriter."""
    key = _key(info)
    with _guard:
        lock = _survey_locks.setdefault(key, threading.Lock())
    entered_at = time.monotonic()
    with lock:
        # Another thread has asked while this one waited. Its failure counts, too: a survey
        # takes seconds while servers are cut off, and threads would ask one after the other.
        latest, failure = _remembered(info), _failures.get(key)
        if latest is not None and latest.chosen_at >= entered_at:
            return latest.member
        if failure is not None and failure.failed_at >= entered_at:
            raise type(failure.error)(str(failure.error))
        try:
            member = choose(info, survey(info, decides=partial(_decides, info)))
        except NoWriter as error:
            _writers.pop(key, None)
            _failures[key] = Failure(error, time.monotonic())
            raise
        _writers[key] = Writer(member, time.monotonic(), info.writer)
    if latest is not None and latest.member.address != member.address:
        log.warning(
            "Node %s: %s accepts writes now, instead of %s",
            info.name,
            member.address,
            latest.member.address,
        )
    return member


def _decides(info: NodeInfo, member: Member) -> bool:
    has_data = not info.identity or member.identity == info.identity
    return has_data and cluster_members.decides(member, recorded=info.writer)


def choose(info: NodeInfo, found: Survey) -> Member:
    """Return the writer among the servers of a survey. Raises NoWriter."""
    is_clustered = any(m.kind != ServerKind.SINGLE for m in found.members)
    if is_clustered or not found.members or not info.writer:
        return cluster_members.choose_writer(
            found.members, unreachable=found.unreachable, identity=info.identity
        )
    # Only a promotion may move the writer of servers without a cluster: see `takeovers`.
    recorded = next((m for m in found.members if str(m.address) == info.writer), None)
    if recorded is not None and not recorded.fault:
        if info.identity and recorded.identity != info.identity:
            raise NoWriter(f"{info.writer} has no data, or that of another node.")
        return recorded
    fault = recorded.fault if recorded is not None else "does not answer"
    others = [m for m in found.members if not m.fault]
    successors = [m.address for m in others if m.identity == info.identity]
    foreign = [m.address for m in others if m.identity != info.identity]
    advice = (
        f"{cluster_members.join(successors)} accepts writes: a broker will promote it."
        if successors
        else "No other server accepts writes."
    )
    if foreign:
        advice += f" {cluster_members.join(foreign)} has no data, or that of another node."
    raise NoWriter(f"The primary {info.writer} {fault}. {advice}")


def review(info: NodeInfo) -> bool:
    """Ask all servers of a list again. Return True if another one is the writer now.

    Raises NoWriter.
    """
    before = _remembered(info)
    member = find_writer(info)
    return before is not None and before.member.address != member.address


def forget(info: NodeInfo) -> None:
    """Forget the writer of a list, after it refused a write: the next session asks all."""
    _writers.pop(_key(info), None)


def current(info: NodeInfo) -> Member | None:
    """Return the writer that this process uses, None for a single address or before the
    first connection.
    """
    writer = _remembered(info)
    return None if writer is None else writer.member


def why_none(info: NodeInfo) -> str:
    """Return why the last connection found no server to write to, "" if it found one.

    The text has addresses, so it is for administrators.
    """
    return _reasons.get(info.name, "")


def at_writer(info: NodeInfo) -> NodeInfo:
    """Return a node whose host is the server that it is written to.

    If no server accepts writes, it is the one that metadata recorded, without a record the
    first of the list.
    """
    if not addresses.is_list(info.host):
        return info
    member = current(info)
    if member is None and not info.writer:
        with suppress(NoWriter):
            member = find_writer(info)
    place = (
        member.address
        if member is not None
        else addresses.parse_addresses(info.writer or info.host, info.port)[0]
    )
    return replace(info, host=place.host, port=place.port)


def _connect_writer(info: NodeInfo, address: Address, read_timeout_s: int) -> MySqlSession:
    return _settle(open_at(info, address, read_timeout_s=read_timeout_s), info, address)


def _settle(
    session: MySqlSession, info: NodeInfo, address: Address | None = None
) -> MySqlSession:
    """Return the session if its server accepts writes, after the server has caught up.

    Otherwise close it and raise Unreachable.
    """
    try:
        member = read_member(session, address or _only_address(info))
        if member.fault:
            raise _no_writer(info, f"{member.address} {member.fault}.")
        if barrier := cluster_members.BARRIERS.get(member.kind):
            try:
                _wait_for_cluster(session, *barrier)
            except db_errors.Altered:
                raise
            except CatmqError as error:
                reason = Behind(_describe_wait(info, member, error))
                raise _no_writer(info, str(reason)) from reason
    except db_errors.Altered:  # a database that is to become a node has no tables yet
        session.close()
        session = open_at(info, address or _only_address(info))
    except BaseException as error:
        session.close()
        if isinstance(error, CatmqError) and not isinstance(error, db_errors.Unreachable):
            raise db_errors.Unreachable(f"Node {info.name}: {error.detail}") from error
        raise
    session.member = member
    return session


def _wait_for_cluster(session: MySqlSession, variable: str, value: str) -> None:
    """Wait until the session's server has applied what its cluster has committed.

    Raises SlowNode after CATCH_UP_S, and other `db_errors.*`.
    """
    shown = session.send(f"SHOW SESSION VARIABLES LIKE '{variable}'".encode(), statements=1)
    own_value = cluster_members.as_literal(str(shown[0].rows[0][1]))
    setting = f"SET SESSION {variable} = "
    session.send(f"{setting}{cluster_members.as_literal(value)}".encode(), statements=1)
    # Any read of a table waits. It is a string of its own, because the patience ends with
    # the first answer to a string.
    session.patience_s = CATCH_UP_S
    session.send(b"SELECT COUNT(*) FROM node_identity", statements=1)
    session.patience_s = None
    session.send(f"{setting}{own_value}".encode(), statements=1)


def _describe_wait(info: NodeInfo, member: Member, error: CatmqError) -> str:
    """Return why a member did not catch up, with what it still has to apply if it says so."""
    if not isinstance(error, db_errors.SlowNode):
        return f"{member.address} does not catch up with its cluster: {_reason(error)}."
    text = f"{member.address} does not catch up with its cluster within {CATCH_UP_S:g} s"
    with suppress(CatmqError):
        session = open_at(info, member.address, read_timeout_s=SURVEY_TIMEOUT_S)
        try:
            queue = read_member(session, member.address).figures.get("member_queue", 0.0)
        finally:
            session.close()
        text += f". It has {int(queue)} received transactions to apply"
    return f"{text}."


def _no_writer(info: NodeInfo, why: str) -> db_errors.Unreachable:
    """Log why no server can be used, and return the error for clients.

    Clients do not see addresses; administrators see the cause of the error.
    """
    _reasons[info.name] = why
    reason, logged_at = _logged_at.get(info.name, ("", 0.0))
    now = time.monotonic()
    if reason != why or now - logged_at >= LOG_EVERY_S:
        _logged_at[info.name] = why, now
        log.warning("Node %s cannot be written to: %s", info.name, why)
    error = db_errors.Unreachable(f"Node {info.name} has no server that accepts writes.")
    error.__cause__ = NoWriter(why)
    return error


def _reason(error: CatmqError) -> str:
    if isinstance(error, db_errors.Denied):  # with its remedy
        return error.detail.rstrip(".")
    cause = error.__cause__
    return str(cause.args[-1] if cause is not None and cause.args else error.detail).rstrip(
        "."
    )


def _only_address(info: NodeInfo) -> Address:
    try:
        return addresses.parse_addresses(info.host, info.port)[0]
    except ValueError:  # a host that was stored before addresses were checked
        return Address(info.host, info.port or addresses.DEFAULT_PORT)


def _remembered(info: NodeInfo) -> Writer | None:
    """Return the writer that was last chosen.

    Metadata moves the writer of servers without a cluster: there a choice holds only for the
    record of its time. The record of a cluster follows the choice.
    """
    writer = _writers.get(_key(info))
    if writer is None or writer.member.kind != ServerKind.SINGLE:
        return writer
    return writer if writer.recorded == info.writer else None


def _key(info: NodeInfo) -> str:
    return f"{info.host}|{info.port}|{info.database}|{info.identity}"
