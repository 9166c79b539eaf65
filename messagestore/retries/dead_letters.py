"""Dead letters: listed, counted by error, looked at, dropped, and forgotten after their days.

They lie in a table of the retry nodes, the newest first in every list. Lists go on without a node that is
away, and name it. Who may `manage` a group may see and drop its dead; `redrives` brings them back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from messagestore import sweeping
from messagestore.engine import db_errors
from messagestore.engine.messages import headers_of
from messagestore.engine.mysql_session import Session
from messagestore.engine.origins import Origin
from messagestore.pool.node import Node
from messagestore.produce import delayed_store
from messagestore.produce.store_retry import Write
from messagestore.tables import dead_letter_sql, failure_sql
from messagestore.tables.dead_letter_sql import DeadFilter, DeadRow, NewDead, Place
from messagestore.tables.failure_sql import StoredCopy, WaitingRow
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.cache.snapshot_types import NodeInfo
from metadata.db import access, audit
from metadata.db.transactions import transactional
from metadata.errors import Code, Invalid, NotFound
from metadata.grouping import grouped
from metadata.rules.groups.delivery import Delivery

T = TypeVar("T")
MAX_LIMIT = 1_000  # in a page, and ids in a request
SCAN = 10_000  # dead letters of a node that a page of one key looks at
CHUNK = 500  # rows in one transaction
MOST_CHUNKS = 200  # that a pass of `expire`, or a request to drop, deletes on a node
_END = Place(253_402_300_799_000, 1 << 62)  # behind every message: at the end of the year 9999


class DeadLetterWrite(Write[StoredCopy]):
    """A dead letter on its way into the table; the retry queue it is written for says whether it may."""

    def __init__(self, dead: NewDead) -> None:
        super().__init__(dead.batch_id, dead.batch_id, name=dead.batch_id.hex(), fresh=False)
        self._dead = dead

    def store(self, node: Node, queue: int, *, alone: bool) -> StoredCopy:
        with node.writing() as session:
            if not dead_letter_sql.insert_dead(
                session, queue=queue, node_epoch=node.info.epoch, dead=self._dead
            ):
                raise db_errors.Refused("The queue is closed or has another epoch.")
        return StoredCopy(dead=True, stored_at_ms=0)

    def find(self, node: Node) -> tuple[StoredCopy, None] | None:
        """Return what is stored, perhaps a copy that waits, by other settings."""
        with node.reading() as session:
            stored = failure_sql.find_copies(session, batches=[self.batch_id])
        return (stored[self.batch_id], None) if stored else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedMessage:
    """A message that failed, in a list. `error` is the last one; `size` of the body in bytes.

    `topic`, `queue`, `offset` say where it was sent.
    """

    topic: str
    queue: int
    offset: int
    key: str | None
    tag: str | None
    error: str
    first_failed_at_ms: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterInfo(FailedMessage):
    """A dead letter; `error_class` is the kind of its last error, `died_at_ms` is by its node's clock."""

    id: str
    trace_id: str | None
    attempts: int
    error_class: str
    died_at_ms: int


@dataclass(frozen=True, slots=True)
class DeadLetterDetail:
    """A dead letter with its headers and body."""

    about: DeadLetterInfo
    headers: dict[str, str] | None
    body: bytes


@dataclass(frozen=True, slots=True)
class DeadPage:
    """Some dead letters, the newest first; `next`: what to ask after. `away`: nodes that did not answer."""

    messages: tuple[DeadLetterInfo, ...]
    next: str | None
    away: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeadCount:
    """Number of a topic's dead letters that died of one kind of error."""

    topic: str
    error_class: str
    count: int
    first_at_ms: int
    last_at_ms: int


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts, the largest first; `away`: nodes that did not answer."""

    errors: tuple[DeadCount, ...]
    away: tuple[str, ...]


def dead_id(node_id: int, row: int) -> str:
    """The id of a dead letter.

    >>> dead_id(2, 17)
    'dead-2-17'
    """
    return f"dead-{node_id}-{row}"


def parse_dead_id(text: str) -> tuple[int, int]:
    """(node, row) of a dead letter's id. Raises Invalid.

    >>> parse_dead_id("dead-2-17")
    (2, 17)
    """
    parts = text.split("-")
    if len(parts) == 3 and parts[0] == "dead" and all(_is_number(part) for part in parts[1:]):
        return int(parts[1]), int(parts[2])
    raise Invalid.field("id", f"{text[:50]!r} is not the id of a dead letter, such as dead-2-17")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19


def page(
    *,
    group: str,
    actor: Actor,
    topic: str | None = None,
    error: str | None = None,
    key: str | None = None,
    after: str,
    limit: int,
) -> DeadPage:
    """The dead of a group, of one topic, kind of error or key, the newest first. Needs `manage` on the group.

    With a key a page looks at SCAN of each node; it may have few messages or none while `next` is set.

    Raises NotFound, Forbidden, Invalid; NodeUnavailable when no retry node answers.
    """
    kept = which(group=group, topic=topic, error=error, actor=actor)
    check_limit(limit)
    from_node, place = _parsed(after)
    found: list[tuple[int, DeadRow]] = []
    ends: list[tuple[int, int, int]] = []  # where the scans of nodes ended: (died_at_ms, node, id)

    def read(session: Session, info: NodeInfo) -> None:
        before, most = _before(place, from_node, info.id), limit + 1
        if key is None:
            rows = dead_letter_sql.list_dead(session, kept=kept, before=before, most=most)
        else:
            rows, end = dead_letter_sql.search_dead(
                session, kept=kept, key=key, before=before, scan=SCAN, most=most
            )
            if end is not None:
                ends.append((end.died_at_ms, info.id, end.id))
        found.extend((info.id, row) for row in rows)

    away = ask(sweeping.retry_nodes(), read)
    found.sort(key=_order, reverse=True)
    end = max(ends, default=None)  # older ones of other nodes come after what this node has not looked at
    seen = found if end is None else [one for one in found if _order(one) >= end]
    following = _next(seen, limit) or (None if end is None else "{}-{}-{}".format(*end))
    return DeadPage(tuple(as_message(*one) for one in seen[:limit]), following, away)


def find(*, group: str, topic: str, origin: str, pages: int, actor: Actor) -> DeadLetterInfo | None:
    """Return the newest dead letter whose origin begins so. Needs `manage` on the group.

    Looks at `pages` times SCAN of the topic's dead letters on each node. Raises as `page` does.
    """
    kept = which(group=group, topic=topic, error=None, actor=actor)
    dead_rows: list[tuple[int, DeadRow]] = []

    def search(session: Session, info: NodeInfo) -> None:
        before: Place | None = _END
        for _ in range(pages):
            if before is None:
                return
            rows, before = dead_letter_sql.search_dead(
                session, kept=kept, origin=origin, before=before, scan=SCAN, most=1
            )
            if rows:
                dead_rows.append((info.id, rows[0]))
                return

    ask(sweeping.retry_nodes(), search)
    return as_message(*max(dead_rows, key=_order)) if dead_rows else None


def _order(one: tuple[int, DeadRow]) -> tuple[int, int, int]:
    return one[1].died_at_ms, one[0], one[1].id


def ask(asked: Mapping[int, T], question: Callable[[Session, T], object]) -> tuple[str, ...]:
    """Ask retry nodes; return the names of the skipped ones. Raises NodeUnavailable if none answered."""
    skipped = sweeping.ask(
        asked, question, what="The retries and dead letters", prepare=delayed_store.prepare
    )
    sweeping.require_any(skipped, asked=asked, name="retry nodes")
    return tuple(skipped)


def check_limit(limit: int) -> None:
    """Raise Invalid unless a page may hold so many."""
    if not 1 <= limit <= MAX_LIMIT:
        raise Invalid.field("limit", f"must be 1 to {MAX_LIMIT}")


def _next(found: Sequence[tuple[int, DeadRow]], limit: int) -> str | None:
    if len(found) <= limit:
        return None
    node_id, row = found[limit - 1]
    return f"{row.died_at_ms}-{node_id}-{row.id}"


def _parsed(after: str) -> tuple[int, Place]:
    """The node and the place that a page begins behind."""
    if not after:
        return 1 << 62, _END
    parts = after.split("-")
    if len(parts) != 3 or not all(_is_number(part) for part in parts):
        raise Invalid.field("after", "must be `next` of the previous page")
    return int(parts[1]), Place(int(parts[0]), int(parts[2]))


def _before(place: Place, from_node: int, node_id: int) -> Place:
    """The place on a node behind which the list goes on; at equal times the higher node is first."""
    if node_id == from_node:
        return place
    return Place(place.died_at_ms, _END.id if node_id < from_node else 0)


def summary(*, group: str, actor: Actor, topic: str | None = None) -> Summary:
    """Count a group's dead by topic and error. Needs `manage` on the group. Raises as `page` does."""
    kept = which(group=group, topic=topic, error=None, actor=actor)
    counts: dict[tuple[int, str], DeadCount] = {}

    def count(session: Session, _: NodeInfo) -> None:
        for one in dead_letter_sql.summarize_dead(session, kept=kept):
            key = one.topic_id, one.error_class
            counts[key] = _added(counts.get(key), _topic_name(one.topic_id), one)

    away = ask(sweeping.retry_nodes(), count)
    return Summary(tuple(sorted(counts.values(), key=lambda one: (-one.count, one.error_class))), away)


def _added(before: DeadCount | None, topic: str, one: dead_letter_sql.ErrorCount) -> DeadCount:
    if before is None:
        return DeadCount(topic, one.error_class, one.messages, one.first_ms, one.last_ms)
    first, last = min(before.first_at_ms, one.first_ms), max(before.last_at_ms, one.last_ms)
    return DeadCount(topic, one.error_class, before.count + one.messages, first, last)


def show(*, group: str, message: str, actor: Actor) -> DeadLetterDetail:
    """A dead letter, whole. Needs `manage` on the group. Raises NotFound(message_not_found)."""
    kept = which(group=group, topic=None, error=None, actor=actor)
    node_id, row_id = parse_dead_id(message)
    rows: list[dead_letter_sql.DeadLetter] = []
    if node_id in snapshot.current().nodes:
        with delayed_store.prepared(node_id).reading() as session:
            rows = dead_letter_sql.select_dead(session, group_id=kept.group_id, ids_wanted=[row_id])
    if not rows:
        what = f"Group {group} has no dead letter {message}: it was redriven, deleted or has expired."
        raise NotFound(what, code=Code.MESSAGE_NOT_FOUND)
    (whole,) = rows
    return DeadLetterDetail(as_message(node_id, whole.row), headers_of(whole.headers), whole.body)


def drop(
    *,
    group: str,
    actor: Actor,
    ids: Sequence[str] | None = None,
    topic: str | None = None,
    error: str | None = None,
    everything: bool = False,
) -> int:
    """Delete dead letters for good, by id or all that match; return how many. Needs `manage` on the group.

    A bounded piece: of very many some may be left, and a repeat goes on. Raises as `page` does.
    """
    kept = which(group=group, topic=topic, error=error, actor=actor)
    check_choice(ids=ids, topic=topic, error=error, everything=everything)
    if ids is not None:
        count = sum(
            _drop_some(delayed_store.prepared(node), kept.group_id, rows)
            for node, rows in by_node(ids).items()
        )
    else:
        count = sum(_drop_all(delayed_store.prepared(node), kept) for node in sweeping.retry_nodes())
    _record_drop(group, actor, count, {"ids": ids, "topic": topic, "error": error})
    return count


@transactional
def _record_drop(group: str, actor: Actor, count: int, chosen: dict[str, object]) -> None:
    before = {name: value for name, value in chosen.items() if value is not None}
    after = {"dropped": count}
    audit.record(actor=actor, verb="drop", kind="dead", name=group, before=before, after=after)


def _drop_all(node: Node, kept: DeadFilter) -> int:
    count = 0
    with node.reading() as session:
        upto = dead_letter_sql.newest_dead(session)
    for _ in range(MOST_CHUNKS):
        with node.reading() as session:
            places = dead_letter_sql.dead_places(session, kept=kept, after=Place(0, 0), upto=upto, most=CHUNK)
        count += _drop_some(node, kept.group_id, [one.id for one in places])
        if len(places) < CHUNK:
            break
    return count


def _drop_some(node: Node, group_id: int, rows: Sequence[int]) -> int:
    with node.writing() as session:
        return dead_letter_sql.delete_dead(session, group_id=group_id, ids_wanted=rows)


def check_choice(
    *, ids: Sequence[str] | None, topic: str | None, error: str | None, everything: bool
) -> None:
    """Raise Invalid unless it is clear which dead letters are meant: some, those that match, or all."""
    if ids is not None and (topic is not None or error is not None or everything):
        raise Invalid.field("ids", "give only one: ids, or topic and error, or all")
    if ids is not None and not 1 <= len(ids) <= MAX_LIMIT:
        raise Invalid.field("ids", f"must be 1 to {MAX_LIMIT} ids")
    if ids is None and topic is None and error is None and not everything:
        raise Invalid.field("all", "give ids, or topic and error, or all=true")


def by_node(ids: Sequence[str]) -> dict[int, list[int]]:
    """The rows of dead letters, by node; rows of a node that is gone are left out. Raises Invalid."""
    nodes = grouped(parse_dead_id(text) for text in dict.fromkeys(ids))
    return {node_id: rows for node_id, rows in nodes.items() if node_id in snapshot.current().nodes}


def expire(*, chunk: int = CHUNK) -> int:
    """Delete the dead letters whose days are over, on every retry node; return how many. Bounded."""
    done: list[int] = []
    sweeping.each(
        sweeping.retry_nodes().values(),
        act=lambda info: done.extend(_expire(delayed_store.prepared(info.id), chunk)),
        name=lambda info: f"The expiry of dead letters on node {info.name}",
    )
    return sum(done)


def _expire(node: Node, chunk: int) -> Iterator[int]:
    with node.reading() as session:
        pairs = dead_letter_sql.dead_pairs(session)
    for group_id, topic_id in pairs:
        reading = snapshot.current().subscription(group_id, topic_id)
        days = (reading.delivery if reading is not None else Delivery()).dead_days
        for _ in range(MOST_CHUNKS):
            with node.writing() as session:
                gone = dead_letter_sql.delete_old_dead(
                    session, group_id=group_id, topic_id=topic_id, days=days, most=chunk
                )
            yield gone
            if gone < chunk:
                break


def which(*, group: str, topic: str | None, error: str | None, actor: Actor) -> DeadFilter:
    """Return the selection of dead letters. Needs `manage` on the group; raises Forbidden, NotFound."""
    access.require(actor, "manage", group, what="group")
    group_id = snapshot.find_group(group).id
    topic_id = None if topic is None else snapshot.find_topic(topic).id
    return DeadFilter(group_id, topic_id, error)


def as_message(node_id: int, row: DeadRow) -> DeadLetterInfo:
    """A row as people see it."""
    return DeadLetterInfo(
        id=dead_id(node_id, row.id),
        trace_id=row.trace_id,
        attempts=row.attempts,
        error_class=row.error_class,
        died_at_ms=row.died_at_ms,
        **of_failed(row) | {"error": row.error},
    )


def of_failed(row: DeadRow | WaitingRow) -> dict[str, Any]:
    """Return the fields of a FailedMessage: of the row, and of the origin in it."""
    origin = msgspec.structs.asdict(msgspec.json.decode(row.origin or "{}", type=Origin))
    return {**origin, "key": row.key, "tag": row.tag, "size": row.size}


def _topic_name(topic_id: int) -> str:
    topic = snapshot.current().topics.get(topic_id)
    return topic.name if topic is not None else f"~{topic_id}"
