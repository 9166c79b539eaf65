"""Run one action for many items or nodes: a failure is logged, and the rest continue."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, Protocol, TypeVar

from messagestore.engine.mysql_session import Session
from messagestore.pool import node_pools
from messagestore.pool.node import Node
from metadata.cache import snapshot
from metadata.cache.snapshot_types import NodeInfo
from metadata.errors import CatmqError, NodeUnavailable
from metadata.grouping import grouped
from metadata.rules.nodes import NodeKind, NodeState


class Progress(NamedTuple):
    """Progress of a long run: `done` of `total`, which is 0 if it is unknown."""

    what: str
    done: int
    total: int


class OnNode(Protocol):
    """A row that belongs to one node."""

    @property
    def node_id(self) -> int: ...


T = TypeVar("T")
RowOnNode = TypeVar("RowOnNode", bound=OnNode)
log = logging.getLogger(__name__)


def run_each(
    items: Iterable[T], *, act: Callable[[T], object], name: Callable[[T], str]
) -> int:
    """Run `act` for every item and return for how many it succeeded.

    An item counts unless `act` returns False or raises. Errors are logged under the item's
    name, unexpected ones with a traceback.
    """
    done = 0
    for item in items:
        try:
            # Continue after an error: the next sweep starts with the same item, so a bad
            # one would keep the others from ever being reached.
            done += act(item) is not False
        except CatmqError as error:
            log.warning("%s failed, will retry: %s", name(item), error.detail)
        except Exception:
            log.exception("%s failed", name(item))
    return done


@contextmanager
def log_failure(subject: str) -> Iterator[None]:
    """Log a CatmqError of work that a later sweep repeats, and suppress it."""
    try:
        yield
    except CatmqError as error:
        log.warning("%s failed, will retry: %s", subject, error.detail)


def query_nodes(
    arguments: Mapping[int, T],
    query: Callable[[Session, T], object],
    *,
    subject: str,
    prepare: Callable[[Node], object] | None = None,
    level: int = logging.WARNING,
) -> dict[str, str]:
    """Run a read-only query on each node and return the nodes that were skipped.

    `arguments` holds the second argument of `query` by node id. `prepare` is called with
    the node before its query. A node that fails is logged and returned as {node name: error
    text}; `subject` says in the log what was to be read.
    """
    skipped = {}
    for node_id, argument in arguments.items():
        try:
            node = node_pools.node(node_id)
            if prepare is not None:
                prepare(node)
            with node.reading() as session:
                query(session, argument)
        except (CatmqError, OSError) as error:
            info = snapshot.current().nodes.get(node_id)
            name = info.name if info is not None else str(node_id)
            skipped[name] = error.detail if isinstance(error, CatmqError) else str(error)
            log.log(
                level, "%s could not be read from node %s: %s", subject, name, skipped[name]
            )
    return skipped


def require_answer(
    skipped: Mapping[str, str], *, nodes: Mapping[int, object], name: str = "nodes"
) -> None:
    """Raise NodeUnavailable if every queried node was skipped."""
    if skipped and len(skipped) == len(nodes):
        raise NodeUnavailable(
            f"No answer from {name} {', '.join(skipped)}.", retry_after_ms=1000
        )


def online_nodes() -> dict[int, NodeInfo]:
    """Return the nodes that are not set offline, by id."""
    return {node_id: info for node_id, info in _nodes() if info.state != NodeState.OFFLINE}


def retry_nodes() -> dict[int, NodeInfo]:
    """Return the nodes that hold retries and dead letters, by id."""
    return {node_id: info for node_id, info in _nodes() if info.kind == NodeKind.FAILURE}


def _nodes() -> list[tuple[int, NodeInfo]]:
    return sorted(snapshot.current().nodes.items())


def group_by_node(rows: Iterable[RowOnNode]) -> dict[int, list[RowOnNode]]:
    """Group rows by the id of their node."""
    return grouped((row.node_id, row) for row in rows)


def queues_by_node(queues: Iterable[int]) -> dict[int, list[int]]:
    """Group queue ids by the id of their node. Raises NotFound (queue_not_found)."""
    return grouped((snapshot.find_queue(queue).node_id, queue) for queue in queues)
