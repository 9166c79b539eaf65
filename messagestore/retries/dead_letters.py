"""Dead letters: lists, counts by error, details, deletion on request, and expiry.

Dead letters are rows of `dead_message` on the retry nodes: those of a group may be on any of
them. Every list is merged from all retry nodes, and has the newest first. A list leaves out a
node that does not answer, and names it in `away`. A user with the right `manage` on a group may
see and delete its dead letters; redrives.py sends them again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct, json, structs

from messagestore import sweeping
from messagestore.engine import db_errors
from messagestore.engine.messages import parse_headers
from messagestore.engine.mysql_session import Session
from messagestore.engine.origins import Origin
from messagestore.pool.node import Node
from messagestore.produce import delayed_store
from messagestore.produce.store_retry import Write
from messagestore.tables import dead_letter_sql, failure_sql
from messagestore.tables.dead_letter_sql import DeadFilter, DeadPosition, DeadRow, NewDead
from messagestore.tables.failure_sql import StoredCopy, WaitingRow
from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.cache.snapshot_types import NodeInfo
from metadata.db import access, audit
from metadata.db.transactions import transactional
from metadata.errors import Code, Invalid, NotFound
from metadata.grouping import grouped
from metadata.rules.audit_verbs import Verb
from metadata.rules.groups.delivery import Delivery
from metadata.rules.rights import Right
from metadata.rules.wire import Number

T = TypeVar("T")
MAX_LIMIT = 1_000  # dead letters in a page, and ids in a request
# Dead letters that a search reads on each node for a page: those of a key, or all that its
# filters select where the node has no index of keys, or an origin is searched for.
SCAN = 10_000
CHUNK = 500  # rows in a transaction
# Limit on the transactions with which drop() deletes on a node, and with which a pass of
# expire() deletes the dead letters of a subscription on a node.
MOST_CHUNKS = 200
# The position above all dead letters: the last ms of the year 9999.
_END = DeadPosition(253_402_300_799_000, 1 << 62)


class DeadLetterWrite(Write[StoredCopy]):
    """A write of a dead letter to its table, retried like a send. The head row of its retry
    queue fences it: a closed queue, or a node with another epoch, refuses.
    """

    def __init__(self, dead: NewDead) -> None:
        # A write has a batch id and a digest of its messages, which tells a repeat from another
        # batch under the same id. The id of a dead letter is derived from the failed message,
        # so it serves as the digest as well. `fresh=False`: an earlier report of the same
        # failure may have stored it.
        super().__init__(
            dead.batch_id, dead.batch_id, name=dead.batch_id.hex(), fresh=False
        )
        self._dead = dead

    def store(self, node: Node, queue: int, *, alone: bool) -> StoredCopy:
        # `alone` has no effect: each dead letter is written in a transaction of its own.
        with node.writing() as session:
            if not dead_letter_sql.insert_dead(
                session, queue=queue, node_epoch=node.info.epoch, dead=self._dead
            ):
                raise db_errors.Refused("The queue is closed or has another epoch.")
        return StoredCopy(dead=True, stored_at_ms=0)

    def find(self, node: Node) -> tuple[StoredCopy, None] | None:
        """Return the stored copy, or None. The copy may be a retry instead: an earlier report was
        handled under other settings.

        The None beside it are heads that must be durable before the answer: None means
        everything that was visible on the node (Write.find).
        """
        with node.reading() as session:
            stored = failure_sql.find_copies(session, batches=[self.batch_id])
        return (stored[self.batch_id], None) if stored else None


class FailedMessage(Struct, frozen=True, kw_only=True):
    """A failed message in a list.

    `topic`, `queue` and `offset` name the message that was sent first. `error` is the error
    of its last failure. `size` is the size of the body in bytes.
    """

    topic: str
    queue: Number
    offset: Number
    key: str | None
    tag: str | None
    error: str
    first_failed_at_ms: Number
    size: Number


class DeadLetterInfo(FailedMessage, frozen=True, kw_only=True):
    """A dead letter; `topic`, `queue` and `offset` are those of the original message."""

    id: str
    trace_id: str | None
    attempts: Annotated[Number, Meta(description="number of failures")]
    # Declared again, so that the schema describes it.
    error: Annotated[str, Meta(description="the last error")]
    error_class: Annotated[
        str,
        Meta(description="kind of its last error, the text before the first colon"),
    ]
    died_at_ms: Number  # by the clock of its node


class DeadLetterDetail(Struct, frozen=True):
    """A dead letter with its headers and body."""

    about: DeadLetterInfo
    headers: dict[str, str] | None
    body: bytes


class DeadPage(Struct, frozen=True):
    """Dead letters, newest first. `next`: `after` of the next page. `away`: nodes that did
    not answer.
    """

    messages: tuple[DeadLetterInfo, ...]
    next: str | None
    away: tuple[str, ...]


class DeadCount(Struct, frozen=True):
    """Number of a topic's dead letters with one kind of error."""

    topic: str
    error_class: str
    count: Number
    first_at_ms: Number
    last_at_ms: Number


class Summary(Struct, frozen=True):
    """Counts by topic and kind of error, the largest first."""

    count: Number
    errors: tuple[DeadCount, ...]
    away: tuple[str, ...]


def dead_id(node_id: int, row: int) -> str:
    """Return the id of a dead letter.

    >>> dead_id(2, 17)
    'dead-2-17'
    """
    return f"dead-{node_id}-{row}"


def parse_dead_id(text: str) -> tuple[int, int]:
    """Return the node and the row that the id of a dead letter names. Raises Invalid.

    >>> parse_dead_id("dead-2-17")
    (2, 17)
    """
    prefix, *numbers = text.split("-")
    if prefix == "dead" and len(numbers) == 2 and all(map(_is_number, numbers)):
        return int(numbers[0]), int(numbers[1])
    raise Invalid.field(
        "id", f"{text[:50]!r} is not the id of a dead letter, such as dead-2-17"
    )


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
    """Return a page of a group's dead letters, the newest first. Needs `manage` on the
    group.

    `topic`, `error` (a class of errors) and `key` restrict the list. `after` is `next` of the
    previous page, '' for the first. With a key, a page reads at most SCAN dead letters of each
    node, so it may be short although `next` is set.

    Raises NotFound, Forbidden, Invalid, and NodeUnavailable if no retry node answers.
    """
    selection = build_filter(group=group, topic=topic, error=error, actor=actor)
    check_limit(limit)
    # The last entry of the previous page: its node, and its position there.
    last_node, last_position = _parse_after(after)
    entries: list[tuple[int, DeadRow]] = []
    # (died_at_ms, node, id) where the scan of a node ended, if older dead letters are left there
    scan_ends: list[tuple[int, int, int]] = []

    def read(session: Session, info: NodeInfo) -> None:
        # The order of all pages is (time, node id, row id), the highest first. The node of the
        # last entry continues below that entry. The dead letters of the same ms on other nodes:
        # - node with a lower id: all come after the last entry, so none is left out;
        # - node with a higher id: all came before it, so no row id is below the bound 0.
        before = last_position
        if info.id != last_node:
            below_id = _END.id if info.id < last_node else 0
            before = DeadPosition(last_position.died_at_ms, below_id)
        if key is None:
            rows = dead_letter_sql.list_dead(
                session, selection=selection, before=before, most=limit + 1
            )
        else:
            rows, end = dead_letter_sql.search_dead(
                session,
                selection=selection,
                key=key,
                before=before,
                scan=SCAN,
                most=limit + 1,
            )
            if end is not None:
                scan_ends.append((end.died_at_ms, info.id, end.id))
        entries.extend((info.id, row) for row in rows)

    nodes_away = query_retry_nodes(sweeping.retry_nodes(), read)
    entries.sort(key=_sort_key, reverse=True)
    # A node whose scan ended early may have older matches that were not read yet. Entries down to
    # the newest of these ends (`max`: the earliest in the list) are complete. Older entries
    # of other nodes could belong after matches that are still unread, so they are left to the
    # next page.
    end = max(scan_ends, default=None)
    complete = (
        entries if end is None else [entry for entry in entries if _sort_key(entry) >= end]
    )
    # The next page begins after the last entry of this page, or where the scan ended.
    page_end = _sort_key(complete[limit - 1]) if len(complete) > limit else end
    next_after = None if page_end is None else "{}-{}-{}".format(*page_end)
    return DeadPage(
        tuple(build_info(*entry) for entry in complete[:limit]), next_after, nodes_away
    )


def find(
    *, group: str, topic: str, origin: str, pages: int, actor: Actor
) -> DeadLetterInfo | None:
    """Return the newest dead letter whose stored origin begins with `origin`, or None.

    Needs `manage` on the group. Reads at most `pages` times SCAN of the topic's dead
    letters on each node. Raises the same errors as `page`.
    """
    selection = build_filter(group=group, topic=topic, error=None, actor=actor)
    dead_rows: list[tuple[int, DeadRow]] = []

    def search(session: Session, info: NodeInfo) -> None:
        before: DeadPosition | None = _END
        for _ in range(pages):
            if before is None:
                return
            rows, before = dead_letter_sql.search_dead(
                session,
                selection=selection,
                origin=origin,
                before=before,
                scan=SCAN,
                most=1,
            )
            if rows:
                dead_rows.append((info.id, rows[0]))
                return

    query_retry_nodes(sweeping.retry_nodes(), search)
    return build_info(*max(dead_rows, key=_sort_key)) if dead_rows else None


def _sort_key(entry: tuple[int, DeadRow]) -> tuple[int, int, int]:
    """Return the sort key of a dead letter: its time, then its node, then its row."""
    return entry[1].died_at_ms, entry[0], entry[1].id


def query_retry_nodes(
    nodes: Mapping[int, T], question: Callable[[Session, T], object]
) -> tuple[str, ...]:
    """Run a query on each retry node. Return the names of the nodes that did not answer.

    `nodes`: {node id: second argument of `question`}. The query is called with a session of
    the node, and collects its result itself. Raises NodeUnavailable if no node answered.
    """
    skipped = sweeping.query_nodes(
        nodes,
        question,
        subject="The retries and dead letters",
        prepare=delayed_store.prepare,
    )
    sweeping.require_answer(skipped, nodes=nodes, name="retry nodes")
    return tuple(skipped)


def check_limit(limit: int) -> None:
    """Raise Invalid if a page must not hold `limit` entries."""
    if not 1 <= limit <= MAX_LIMIT:
        raise Invalid.field("limit", f"must be 1 to {MAX_LIMIT}")


def _parse_after(after: str) -> tuple[int, DeadPosition]:
    """Return the node id and the position of the last entry before the page. Raises Invalid."""
    if not after:
        return 1 << 62, _END
    numbers = after.split("-")
    if len(numbers) != 3 or not all(map(_is_number, numbers)):
        raise Invalid.field("after", "must be `next` of the previous page")
    died_at_ms, node_id, row_id = map(int, numbers)
    return node_id, DeadPosition(died_at_ms, row_id)


def summary(*, group: str, actor: Actor, topic: str | None = None) -> Summary:
    """Count a group's dead letters by topic and class of error. Needs `manage` on the
    group.

    Raises the same errors as `page`.
    """
    selection = build_filter(group=group, topic=topic, error=None, actor=actor)
    counts: dict[tuple[int, str], DeadCount] = {}

    def count(session: Session, _: NodeInfo) -> None:
        for row in dead_letter_sql.summarize_dead(session, selection=selection):
            topic_info = snapshot.current().topics.get(row.topic_id)
            total = DeadCount(
                topic_info.name if topic_info is not None else f"~{row.topic_id}",
                row.error_class,
                row.messages,
                row.first_ms,
                row.last_ms,
            )
            key = row.topic_id, row.error_class
            if key in counts:
                # Another node has dead letters of this topic and class, too.
                former = counts[key]
                total = structs.replace(
                    total,
                    count=former.count + total.count,
                    first_at_ms=min(former.first_at_ms, total.first_at_ms),
                    last_at_ms=max(former.last_at_ms, total.last_at_ms),
                )
            counts[key] = total

    nodes_away = query_retry_nodes(sweeping.retry_nodes(), count)
    errors = sorted(counts.values(), key=lambda c: (-c.count, c.error_class))
    return Summary(sum(error.count for error in errors), tuple(errors), nodes_away)


def show(*, group: str, message: str, actor: Actor) -> DeadLetterDetail:
    """Return a dead letter with headers and body. Needs `manage` on the group.

    Raises NotFound (message_not_found) if it does not exist or belongs to another group.
    """
    selection = build_filter(group=group, topic=None, error=None, actor=actor)
    node_id, row_id = parse_dead_id(message)
    rows: list[dead_letter_sql.DeadLetter] = []
    if node_id in snapshot.current().nodes:
        with delayed_store.prepared(node_id).reading() as session:
            rows = dead_letter_sql.select_dead(
                session, group_id=selection.group_id, ids_wanted=[row_id]
            )
    if not rows:
        cause = (
            f"Group {group} has no dead letter {message}: it was redriven, deleted or "
            "has expired."
        )
        raise NotFound(cause, code=Code.MESSAGE_NOT_FOUND)
    (dead_letter,) = rows
    return DeadLetterDetail(
        build_info(node_id, dead_letter.row),
        parse_headers(dead_letter.headers),
        dead_letter.body,
    )


def drop(
    *,
    group: str,
    actor: Actor,
    ids: Sequence[str] | None = None,
    topic: str | None = None,
    error: str | None = None,
    everything: bool = False,
) -> int:
    """Delete dead letters, by id or all that match, and return their number.

    Needs `manage` on the group. At most MOST_CHUNKS * CHUNK dead letters of each node are
    deleted; a repeat deletes more. Raises the same errors as `page`.
    """
    selection = build_filter(group=group, topic=topic, error=error, actor=actor)
    check_choice(ids=ids, topic=topic, error=error, everything=everything)
    count = 0
    if ids is not None:
        for node_id, rows in rows_by_node(ids).items():
            count += _drop_rows(node_id, selection.group_id, rows)
    else:
        for node_id in sweeping.retry_nodes():
            node = delayed_store.prepared(node_id)
            # Dead letters that arrive after the request do not belong to it.
            with node.reading() as session:
                upto = dead_letter_sql.read_newest_dead_id(session)
            for _ in range(MOST_CHUNKS):
                with node.reading() as session:
                    positions = dead_letter_sql.list_dead_positions(
                        session,
                        selection=selection,
                        after=DeadPosition(0, 0),
                        upto=upto,
                        most=CHUNK,
                    )
                rows = [position.id for position in positions]
                count += _drop_rows(node_id, selection.group_id, rows)
                if len(rows) < CHUNK:
                    break
    criteria = {"ids": ids, "topic": topic, "error": error}
    transactional(audit.record)(
        actor=actor,
        verb=Verb.DROP,
        kind="dead",
        name=group,
        before={name: value for name, value in criteria.items() if value is not None},
        after={"dropped": count},
    )
    return count


def _drop_rows(node_id: int, group_id: int, rows: Sequence[int]) -> int:
    with delayed_store.prepared(node_id).writing() as session:
        return dead_letter_sql.delete_dead(session, group_id=group_id, ids_wanted=rows)


def check_choice(
    *, ids: Sequence[str] | None, topic: str | None, error: str | None, everything: bool
) -> None:
    """Raise Invalid unless there is exactly 1 choice: ids, or topic and error, or everything.

    A request without a choice must never mean everything.
    """
    if ids is not None and (topic is not None or error is not None or everything):
        raise Invalid.field("ids", "give only one: ids, or topic and error, or all")
    if ids is not None and not 1 <= len(ids) <= MAX_LIMIT:
        raise Invalid.field("ids", f"must be 1 to {MAX_LIMIT} ids")
    if ids is None and topic is None and error is None and not everything:
        raise Invalid.field("all", "give ids, or topic and error, or all=true")


def rows_by_node(ids: Sequence[str]) -> dict[int, list[int]]:
    """Return the rows that ids of dead letters name, by node. Raises Invalid.

    Rows of nodes that no longer exist are left out.
    """
    nodes = grouped(parse_dead_id(text) for text in dict.fromkeys(ids))
    return {
        node_id: rows
        for node_id, rows in nodes.items()
        if node_id in snapshot.current().nodes
    }


def expire(*, chunk: int = CHUNK) -> int:
    """Delete expired dead letters on every retry node, and return their number.

    A pass is bounded by MOST_CHUNKS transactions for each subscription of a node.
    """
    counts: list[int] = []

    def expire_on_node(info: NodeInfo) -> None:
        node = delayed_store.prepared(info.id)
        with node.reading() as session:
            pairs = dead_letter_sql.list_dead_pairs(session)
        for group_id, topic_id in pairs:
            subscription = snapshot.current().subscription(group_id, topic_id)
            # The default number of days applies to a subscription that no longer exists.
            delivery = subscription.delivery if subscription is not None else Delivery()
            for _ in range(MOST_CHUNKS):
                with node.writing() as session:
                    deleted = dead_letter_sql.delete_old_dead(
                        session,
                        group_id=group_id,
                        topic_id=topic_id,
                        days=delivery.dead_days,
                        most=chunk,
                    )
                counts.append(deleted)
                if deleted < chunk:
                    break

    sweeping.run_each(
        sweeping.retry_nodes().values(),
        act=expire_on_node,
        name=lambda info: f"The expiry of dead letters on node {info.name}",
    )
    return sum(counts)


def build_filter(
    *, group: str, topic: str | None, error: str | None, actor: Actor
) -> DeadFilter:
    """Return the filter for a group's dead letters. Needs `manage` on the group.

    Raises Forbidden, NotFound.
    """
    access.require(actor, Right.MANAGE, group, what="group")
    group_id = snapshot.find_group(group).id
    topic_id = None if topic is None else snapshot.find_topic(topic).id
    return DeadFilter(group_id, topic_id, error)


def build_info(node_id: int, row: DeadRow) -> DeadLetterInfo:
    """Return a row of `dead_message` on a node as a dead letter of a list."""
    # The last error of a dead letter has a column of its own, so it replaces that of the origin.
    return DeadLetterInfo(
        id=dead_id(node_id, row.id),
        trace_id=row.trace_id,
        attempts=row.attempts,
        error_class=row.error_class,
        died_at_ms=row.died_at_ms,
        **failed_message_fields(row) | {"error": row.error},
    )


def failed_message_fields(row: DeadRow | WaitingRow) -> dict[str, Any]:
    """Return the fields of a FailedMessage, from a row and the origin that is stored in it."""
    origin = structs.asdict(json.decode(row.origin or "{}", type=Origin))
    return {**origin, "key": row.key, "tag": row.tag, "size": row.size}
