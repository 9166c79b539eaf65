"""State of a queue, which takes messages or not, in its head row on the node: made equal to
metadata.

A queue is closed on its node before metadata says so, because brokers may hold an older
snapshot, and opened after. Whoever did either calls `settle`, and a sweep does for those
who died in between; as everybody looks at metadata again after writing, the head and
metadata agree in the end, whatever crossed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from messagestore import sweeping
from messagestore.pool import node_pools
from messagestore.tables import queue_sql
from metadata.cache import snapshot
from metadata.groups import subscribers


def set_heads(queues: Collection[int], *, state: str) -> None:
    """Open (`rw`) or close (`ro`, `retired`) queues on their nodes; no write can begin in a
    closed one.

    Raises NodeUnavailable.
    """
    for node, mine in node_pools.group_by_node(sorted(queues)):
        with node.reading() as session:  # harmless to repeat, so nothing is in doubt
            for queue in mine:
                queue_sql.set_queue_state(session, queue=queue, state=state)


def settle(queues: Iterable[int]) -> None:
    """Make the heads of queues say what metadata says. Raises NodeUnavailable."""
    for queue in queues:
        applied = None
        while (wanted := subscribers.head_state(queue)) not in (None, applied):
            set_heads([queue], state=str(wanted))
            applied = wanted


def settle_later(queues: Iterable[int]) -> None:
    """The same, as far as it can be done now: the sweep does the rest."""
    with sweeping.log_failure("Setting the state of queues"):
        settle(queues)


def sweep() -> int:
    """Mend heads that contradict metadata, on every node that answers; return how many."""
    wrong: list[int] = []
    sweeping.run_each(
        [info for info in snapshot.current().nodes.values() if info.state != "offline"],
        act=lambda info: wrong.extend(_contradicting(info.id)),
        name=lambda info: f"Comparison of the queue states of node {info.name}",
    )
    return sweeping.run_each(
        wrong,
        act=lambda queue: settle([queue]),
        name=lambda queue: f"Setting the state of queue {queue}",
    )


def _contradicting(node_id: int) -> list[int]:
    """The queues of a node whose heads do not say what metadata says."""
    with node_pools.node(node_id).reading() as session:
        closed = queue_sql.read_closed(session)
    heads = subscribers.head_states(node_id)
    return [queue for queue, state in heads.items() if closed.get(queue, "rw") != state]
