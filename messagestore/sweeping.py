"""Sweeps: the same act for many items or nodes, of which a bad one stops none of the rest."""

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


class Progress(NamedTuple):
    """Progress of a long run: `done` of `total`, 0 where nobody knows the total."""

    what: str
    done: int
    total: int


class OnNode(Protocol):
    """Anything that lies on one node."""

    @property
    def node_id(self) -> int: ...


T = TypeVar("T")
Lying = TypeVar("Lying", bound=OnNode)
log = logging.getLogger(__name__)


def each(
    items: Iterable[T], *, act: Callable[[T], object], name: Callable[[T], str]
) -> int:
    """Run `act` for every item; return for how many it was done: not those where it answers
    False, or raises.

    What it raises is logged under the item's name, what nobody expected with its traceback:
    a sweep comes again and again, and would meet the same item first each time.
    """
    done = 0
    for one in items:
        try:
            done += act(one) is not False
        except CatmqError as error:
            log.warning("%s failed, will retry: %s", name(one), error.detail)
        except Exception:
            log.exception("%s failed", name(one))
    return done


@contextmanager
def later(what: str) -> Iterator[None]:
    """Log a failure of what is not urgent: a sweep does it later."""
    try:
        yield
    except CatmqError as error:
        log.warning("%s failed, will retry: %s", what, error.detail)


def ask(
    asked: Mapping[int, T],
    question: Callable[[Session, T], object],
    *,
    what: str,
    prepare: Callable[[Node], object] | None = None,
    level: int = logging.WARNING,
) -> dict[str, str]:
    """Ask each node, {id: what it is asked about}, on a connection that only reads; return
    the skipped ones.

    A node that does not answer is skipped and logged: {name: why}. `prepare` gets a node
    ready first.
    """
    skipped = {}
    for node_id, about in asked.items():
        try:
            node = node_pools.node(node_id)
            if prepare is not None:
                prepare(node)
            with node.reading() as session:
                question(session, about)
        except (CatmqError, OSError) as error:
            info = snapshot.current().nodes.get(node_id)
            name = info.name if info is not None else str(node_id)
            skipped[name] = error.detail if isinstance(error, CatmqError) else str(error)
            log.log(
                level, "%s could not be read from node %s: %s", what, name, skipped[name]
            )
    return skipped


def require_any(
    skipped: Mapping[str, str], *, asked: Mapping[int, object], name: str = "nodes"
) -> None:
    """Raise NodeUnavailable if every node that was asked was skipped."""
    if skipped and len(skipped) == len(asked):
        raise NodeUnavailable(
            f"No answer from {name} {', '.join(skipped)}.", retry_after_ms=1000
        )


def online() -> dict[int, NodeInfo]:
    """The nodes that ought to answer, by id."""
    return {node_id: info for node_id, info in _nodes() if info.state != "offline"}


def retry_nodes() -> dict[int, NodeInfo]:
    """The nodes that hold retries and dead letters, by id."""
    return {node_id: info for node_id, info in _nodes() if info.kind == "failure"}


def _nodes() -> list[tuple[int, NodeInfo]]:
    return sorted(snapshot.current().nodes.items())


def by_node(rows: Iterable[Lying]) -> dict[int, list[Lying]]:
    """Group rows by the id of the node that they lie on."""
    return grouped((row.node_id, row) for row in rows)


def queues_by_node(queues: Iterable[int]) -> dict[int, list[int]]:
    """Ids of queues, by the id of their node. Raises NotFound (queue_not_found)."""
    return grouped((snapshot.find_queue(queue).node_id, queue) for queue in queues)
