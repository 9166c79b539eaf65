"""Rights that promoting or adopting a server needs, checked before anything is changed."""

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
    """Return True if a server copies another server, None if the account may not see that."""
    return (
        promotion_sql.read_replication(session).threads > 0
        if promotion_sql.can_see_all_threads(session)
        else None
    )


def require(session: Session, *, target: NodeInfo, verb: str) -> str:
    """Raise Invalid (node_refused) if the account lacks a right to make the server a
    primary.

    Returns what could not be checked, '' if nothing. An account that cannot see replication
    may not promote. For `adopt` the server at the node's own address is taken for a
    primary.
    """
    if not isinstance(session, MySqlSession):
        return ""
    is_copying = copies(session)
    missing: list[Grant] = []
    # Promoting a server that still copies would let the old primary overwrite it.
    if is_copying is None and verb == "promote":
        missing.append(_SEE)
    stop_right = _STOP.named(session.flavour)
    if is_copying and not promotion_sql.may_stop_replicating(session, right=stop_right):
        missing.append(_STOP)
    if node_sql.read_server_facts(session).read_only and not promotion_sql.may_allow_writes(
        session
    ):
        missing.append(_WRITE)
    if missing:
        user, host = node_sql.read_account(session)
        names = ", ".join(grant.named(session.flavour) for grant in missing)
        grants = grant_statements(
            missing,
            flavour=session.flavour,
            database=target.database,
            username=user,
            host=host,
        )
        raise Invalid(
            f"The account may not make {target.host}:{target.port or 3306} a primary: it lacks "
            f"{names}. Run "
            f"{' '.join(grants)} {_MANAGED[verb].format(target.name)} Nothing was changed.",
            code=Code.NODE_REFUSED,
        )
    return (
        "the account lacks PROCESS: whether the server copies another one is not known"
        * (is_copying is None)
    )
