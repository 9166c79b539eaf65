"""Sweeps: the same act for many items or nodes, of which a bad one stops none of the rest."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, Protocol, TypeVar

from messagestore.engine import db_errors
from messagestore.engine.mysql_session import Session
from messagestore.pool import node_pools, session_pool
from messagestore.pool.node import Node
from metadata.cache import snapshot
from metadata.cache.snapshot import NodeInfo
from metadata.errors import CatmqError, NodeUnavailable


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


def each(items: Iterable[T], *, act: Callable[[T], object], name: Callable[[T], str]) -> int:
    """Run `act` for every item; return for how many it was done: not those where it answers False, or raises.

    What it raises is logged under the item's name, what nobody expected with its traceback: a sweep comes
    again and again, and would meet the same item first each time.
    """
    done = 0
    for one in items:
        try:
            done += act(one) is not False
        except CatmqError as error:
            log.warning("%s is left for the next sweep: %s", name(one), error.detail)
        except Exception:
            log.exception("%s cannot be swept", name(one))
    return done


@contextmanager
def later(what: str) -> Iterator[None]:
    """Log a failure of what is not urgent: a sweep does it later."""
    try:
        yield
    except CatmqError as error:
        log.warning("%s later: %s", what, error.detail)


def ask(
    asked: Mapping[int, T],
    question: Callable[[Session, T], object],
    *,
    what: str,
    prepare: Callable[[Node], object] | None = None,
    level: int = logging.WARNING,
) -> dict[str, str]:
    """Ask each node, {id: what it is asked about}, on a connection that only reads; return the skipped ones.

    A node that does not answer is skipped and logged: {name: why}. `prepare` gets a node ready first.
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
            log.log(level, "%s of node %s is not known: %s", what, name, skipped[name])
    return skipped


def require_any(skipped: Mapping[str, str], *, asked: Mapping[int, object], name: str = "nodes") -> None:
    """Raise NodeUnavailable if every node that was asked was skipped."""
    if skipped and len(skipped) == len(asked):
        raise NodeUnavailable(f"The {name} do not answer: {', '.join(skipped)}.", retry_after_ms=1000)


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
    nodes: dict[int, list[Lying]] = {}
    for row in rows:
        nodes.setdefault(row.node_id, []).append(row)
    return nodes


def queues_by_node(queues: Iterable[int]) -> dict[int, list[int]]:
    """Ids of queues, by the id of their node. Raises NotFound (queue_not_found)."""
    nodes: dict[int, list[int]] = {}
    for queue in queues:
        nodes.setdefault(snapshot.find_queue(queue).node_id, []).append(queue)
    return nodes


@contextmanager
def direct(info: NodeInfo) -> Iterator[Session]:
    """A session beside the pool, which lends none of a node that is offline. Raises NodeUnavailable."""
    session = session_pool.connect(info)
    try:
        yield session
    except db_errors.Ambiguous as error:
        raise NodeUnavailable(error.detail) from error
    finally:
        session.close()
