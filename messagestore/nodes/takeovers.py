"""Promotions that follow the servers: another server of a node's list accepts writes, and
the recorded primary does not.

An orchestrator, or a person, made a replica writable. That decides which server the node
goes on with, but not which offsets the former primary has given out. So the node moves by
the same promotion as with `manage.py promote_node`: the former primary is fenced, every live
worker confirms, and what the replica lacks is declared as a gap.

Members of a cluster need none of this: what they acknowledged is on all of them (see
messagestore/pool/writers.py).
"""

from __future__ import annotations

import logging

from messagestore.nodes import promotion
from messagestore.pool import writers
from messagestore.pool.writers import Survey
from metadata.actors import job
from metadata.cache import snapshot
from metadata.cache.snapshot_types import NodeInfo
from metadata.errors import CatmqError
from metadata.monitoring import alarms
from metadata.rules.addresses import Address, is_list
from metadata.rules.alarm_rules import AlarmKind
from metadata.rules.alarm_texts import alarm_text, error_text
from metadata.rules.cluster_members import Member, ServerKind
from metadata.rules.nodes import NodeState

log = logging.getLogger(__name__)


class Takeovers:
    """Watches the nodes on a primary and its replicas. One process runs it at a time."""

    def __init__(self) -> None:
        # The successor of each node in the last pass. Two passes in a row have to agree, so
        # that a primary that is only restarted is not replaced.
        self._successors: dict[int, Address] = {}
        # Nodes that a failed promotion has left offline; others were set offline by a person.
        self._begun: set[int] = set()

    def run_once(self) -> None:
        """Promote the successor of every primary that accepts no writes. Raises
        MetadataUnavailable.
        """
        for node_id, info in snapshot.current().nodes.items():
            is_watched = info.state != NodeState.OFFLINE or node_id in self._begun
            if not info.writer or not is_list(info.host) or not is_watched:
                continue
            successor = find_successor(info, writers.survey(info))
            former = self._successors.pop(node_id, None)
            if successor is None:
                continue
            if former != successor.address:
                self._successors[node_id] = successor.address
                continue
            self._promote(info, successor.address)

    def _promote(self, info: NodeInfo, place: Address) -> None:
        """Promote a server, and raise an alarm with the result."""
        values = {"before": info.writer, "after": str(place)}
        log.warning(
            "Node %s: %s accepts writes, %s does not", info.name, place, info.writer
        )
        try:
            outcome = promotion.promote(
                name=info.name,
                host=place.host,
                port=place.port,
                say=lambda text: log.warning("Node %s: %s", info.name, text),
                actor=job("takeovers"),
            )
        except CatmqError as error:
            # Repeated in the pass after next; the node is offline until then, or untouched.
            snapshot.refresh()
            current = snapshot.current().nodes.get(info.id, info)
            if current.epoch > info.epoch:
                self._begun.add(info.id)
            detail = alarm_text("not_promoted", **values, why=error_text(error.detail))
            log.error("Node %s: %s", info.name, detail)
        else:
            self._begun.discard(info.id)
            detail = alarm_text(
                "promoted", **values, gaps=outcome.gaps, messages=outcome.messages
            )
        alarms.raise_alarm(kind=AlarmKind.NODE_MOVED, name=info.name, detail=detail)


def find_successor(info: NodeInfo, found: Survey) -> Member | None:
    """Return the only server that accepts writes with the node's data, if the recorded
    primary does not; else None.
    """
    if any(member.kind != ServerKind.SINGLE for member in found.members):
        return None
    writable = [
        m
        for m in found.members
        if not m.fault and m.identity and m.identity == info.identity
    ]
    if len(writable) != 1 or str(writable[0].address) == info.writer:
        return None
    return writable[0]
