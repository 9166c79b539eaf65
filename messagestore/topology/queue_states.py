"""The state of a queue (open or closed for sends) in its head row on the node.

A queue is closed on its node before metadata changes, because brokers may have an older
snapshot, and opened after it. The caller then calls `settle`; a sweep does it for callers
that died in between. All of them read metadata again after writing, so the head row and
metadata agree in the end, whatever order concurrent changes had.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from messagestore import sweeping
from messagestore.pool import node_pools
from messagestore.tables import queue_sql
from metadata.cache.snapshot_types import NodeInfo
from metadata.groups import subscribers


def set_heads(queues: Collection[int], *, state: str) -> None:
    """Open (`rw`) or close (`ro`, `retired`) queues on their nodes.

    No write can begin in a closed queue. Raises NodeUnavailable.
    """
    for node, node_queues in node_pools.group_by_node(sorted(queues)):
        # A repeat changes nothing, so a lost connection is not an unknown outcome.
        with node.reading() as session:
            for queue in node_queues:
                queue_sql.set_queue_state(session, queue=queue, state=state)


def settle(queues: Iterable[int]) -> None:
    """Set the head rows of queues to the state in metadata. Raises NodeUnavailable."""
    for queue in queues:
        applied = None
        # Metadata may change during the write, so read it again until it is unchanged.
        while (state := subscribers.head_state(queue)) not in (None, applied):
            set_heads([queue], state=str(state))
            applied = state


def settle_later(queues: Iterable[int]) -> None:
    """Settle queues now if possible; failures are logged and left to the sweep."""
    with sweeping.log_failure("Setting the state of queues"):
        settle(queues)


def sweep() -> int:
    """Correct head rows that differ from metadata, on all reachable nodes. Returns how
    many.
    """
    differing: list[int] = []

    def compare(info: NodeInfo) -> None:
        with node_pools.node(info.id).reading() as session:
            closed = queue_sql.read_closed(session)
        heads = subscribers.head_states(info.id)
        differing.extend(q for q, state in heads.items() if closed.get(q, "rw") != state)

    sweeping.run_each(
        sweeping.online_nodes().values(),
        act=compare,
        name=lambda info: f"Comparison of the queue states of node {info.name}",
    )
    return sweeping.run_each(
        differing,
        act=lambda queue: settle([queue]),
        name=lambda queue: f"Setting the state of queue {queue}",
    )
