"""Rights that make a server a primary, asked for before anything is changed."""

from __future__ import annotations

from messagestore.engine.mysql_session import MySqlSession, Session
from messagestore.tables import node_sql, promotion_sql
from metadata.cache.snapshot_types import NodeInfo
from metadata.errors import Code, Invalid
from metadata.rules.grants import PROMOTION, Grant, grant_statements

_SEE, _STOP, _WRITE = PROMOTION
_MANAGED = {
    "promote": (
        "On a managed server, promote the replica with the provider's tools, then repeat "
        "this. If the "
        "provider's failover keeps the address, run manage.py adopt_restored_node {0} afterwards."
    ),
    "adopt": (
        "On a managed server, end replication and read_only with the provider's tools, then repeat "
        "manage.py adopt_restored_node {0}."
    ),
}


def copies(session: Session) -> bool | None:
    """Return whether a server copies another one; None if the account may not see that."""
    return (
        promotion_sql.read_replication(session).threads > 0
        if promotion_sql.can_see_all_threads(session)
        else None
    )


def require(session: Session, *, target: NodeInfo, verb: str) -> str:
    """Raise Invalid (node_refused) if the account may not make a server a primary that is
    none yet.

    Returns what could not be found out, '' if nothing. An account that cannot see
    replication is refused to promote; for `adopt`, the server at the node's own address is
    taken for a primary.
    """
    if not isinstance(session, MySqlSession):
        return ""
    copying = copies(session)
    lacking: list[Grant] = []
    if copying is None and verb == "promote":
        lacking.append(_SEE)
    stopping = _STOP.named(session.flavour)
    if copying and not promotion_sql.may_stop_replicating(session, right=stopping):
        lacking.append(_STOP)
    if node_sql.read_server_facts(session).read_only and not promotion_sql.may_allow_writes(
        session
    ):
        lacking.append(_WRITE)
    if lacking:
        raise Invalid(_said(session, lacking, target, verb), code=Code.NODE_REFUSED)
    return (
        "the account lacks PROCESS: whether the server copies another one is not known"
        * (copying is None)
    )


def _said(session: MySqlSession, lacking: list[Grant], target: NodeInfo, verb: str) -> str:
    user, host = node_sql.read_account(session)
    names = ", ".join(one.named(session.flavour) for one in lacking)
    grants = grant_statements(
        lacking, flavour=session.flavour, database=target.database, username=user, host=host
    )
    return (
        f"The account may not make {target.host}:{target.port or 3306} a primary: it lacks "
        f"{names}. Run "
        f"{' '.join(grants)} {_MANAGED[verb].format(target.name)} Nothing was changed."
    )
