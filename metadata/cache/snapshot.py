"""The immutable snapshot of the metadata in a broker process, and the ways to look things
up in it.

Sends and pulls decide by the snapshot alone, so they go on while the metadata database is
away. A worker loop asks every 200 ms for the number of the last change, and confirm() wakes
another one, which calls refresh(), if the snapshot has not got it. A refresh reads inside
one repeatable-read transaction of the alias `snapshot` (at READ COMMITTED 74 of 500
snapshots were torn): first the change counter, then the rows named by the change log above
the number it has. Everything is loaded when the incarnation differs, the number went back,
the log does not reach back far enough, or five minutes have passed.

Threads that want a refresh at once share it: one loads, the others wait for a load that
began after they asked. Nobody waits longer than the metadata time limit, and after a failed
load nobody tries again for a moment, so a database that is away does not eat the threads.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TypeVar

from django.db import DatabaseError, InterfaceError, connections, transaction

from metadata.cache import loading
from metadata.cache.snapshot_types import (
    GroupInfo,
    KeyInfo,
    NodeInfo,
    QueueInfo,
    Snapshot,
    TopicInfo,
    build_snapshot,
)
from metadata.config import config
from metadata.db.contact import SILENT_S, contact
from metadata.db.rows import no_group, no_node, no_topic
from metadata.errors import Code, MetadataUnavailable, NotFound
from metadata.limits.bulkhead import bulkhead

T = TypeVar("T")
log = logging.getLogger(__name__)

ALIAS = "snapshot"
FULL_EVERY_S = 300.0
MISS_EVERY_S = 0.05  # lookups that miss reload no more often than this
PAUSE_AFTER_FAILURE_S = 1.0


class _Holder:
    """The snapshot of this process and the single flight that renews it."""

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None
        self.turn = threading.Condition()
        self.begun = 0  # loads begun so far
        self.ended = 0  # the last load that ended
        self.loading = False
        self.began_at = float("-inf")
        self.failed_at = float("-inf")
        self.failed = False
        self.confirmed_at = float("-inf")
        self.news = threading.Event()  # there is something to load

    def renew(self) -> bool:
        """One load that began after this call, run here or by another thread; whether the
        snapshot changed.

        Raises MetadataUnavailable; the old snapshot stays.
        """
        limit_s = 2 * config.metadata_timeout_ms / 1000
        before = self.snapshot
        with self.turn:
            wanted = self.begun + 1
            while self.loading and self.ended < wanted:
                if not self.turn.wait(limit_s):
                    raise MetadataUnavailable(
                        "The metadata database is slow to answer.", retry_after_ms=1000
                    )
            if self.ended >= wanted:
                self._raise_if_failed()
                return _changed(before, self.snapshot)
            self.begun += 1
            self.loading, self.began_at = True, time.monotonic()
        return self._load()

    def _load(self) -> bool:
        before, failure = self.snapshot, None
        try:
            self.snapshot = _loaded(before)
            contact.heard()
        except (DatabaseError, InterfaceError) as error:
            failure = error
        finally:
            with self.turn:
                self.loading, self.ended = False, self.begun
                self.failed = failure is not None
                self.failed_at = time.monotonic() if failure else self.failed_at
                self.turn.notify_all()
        if failure is not None:
            connections[ALIAS].close()  # broken connections are not mended by waiting
            raise MetadataUnavailable(
                "The metadata database did not answer.", retry_after_ms=1000
            ) from failure
        return _changed(before, self.snapshot)

    def _raise_if_failed(self) -> None:
        if self.failed:
            raise MetadataUnavailable(
                "The metadata database did not answer.", retry_after_ms=1000
            )

    def renew_after_miss(self) -> None:
        """A load for a lookup that missed: not more often than every 50 ms, and none just
        after a failure, or while the database is silent: who asks for what nobody knows
        would hold a thread for seconds."""
        if bulkhead.watched and contact.silent_s() > SILENT_S:
            raise MetadataUnavailable(
                "The metadata database did not answer.", retry_after_ms=1000
            )
        if self.failed and time.monotonic() - self.failed_at < PAUSE_AFTER_FAILURE_S:
            self._raise_if_failed()
        asked = self.begun
        pause_s = self.began_at + MISS_EVERY_S - time.monotonic()
        if pause_s > 0:
            with self.turn:
                self.turn.wait_for(lambda: self.begun > asked, pause_s)
            if self.ended > asked:
                return
        self.renew()


_holder = _Holder()


def _changed(before: Snapshot | None, after: Snapshot | None) -> bool:
    return after is not None and (before is None or before.version != after.version)


def current() -> Snapshot:
    """The snapshot; loaded at first use. Raises MetadataUnavailable only if there never was
    one.
    """
    snapshot = _holder.snapshot
    if snapshot is None:
        _holder.renew()
        snapshot = _holder.snapshot
        if snapshot is None:
            raise MetadataUnavailable(
                "The metadata is not loaded yet. Try again.", retry_after_ms=1000
            )
    return snapshot


def refresh() -> bool:
    """Bring the snapshot up to date; whether it changed. Keeps the old one while the
    database is away.
    """
    was_failed = _holder.failed
    try:
        return _holder.renew()
    except MetadataUnavailable as error:
        if not was_failed:
            log.warning(
                "The metadata snapshot could not be refreshed: %s",
                error.__cause__ or error.detail,
            )
        return False


def confirm(version: tuple[str, int], *, at: float) -> None:
    """Take note of the database's version at a time.monotonic(): the snapshot was current
    then, or is to be loaded anew."""
    holder = _holder
    if (
        holder.snapshot is not None
        and holder.snapshot.version == version
        and not holder.failed
    ):
        holder.confirmed_at = at
    else:
        holder.news.set()


def await_news(seconds: float) -> None:
    """Wait until there is something to load, but no longer than so many seconds."""
    if _holder.snapshot is not None:
        _holder.news.wait(seconds)
    _holder.news.clear()


def wake() -> None:
    """End the wait that the loop is in: it is to stop."""
    _holder.news.set()


def evict() -> None:
    """Drop the snapshot, so that the next use loads it anew (another database, a fork)."""
    global _holder
    _holder = _Holder()


def age_s() -> float:
    """Seconds since the snapshot was last known to be current; infinite without one."""
    snapshot = _holder.snapshot
    if snapshot is None:
        return float("inf")
    return time.monotonic() - max(snapshot.loaded_at, _holder.confirmed_at)


def _loaded(old: Snapshot | None) -> Snapshot:
    """The newest snapshot, made from `old` and the change log where that suffices."""
    now = time.monotonic()
    if (
        old is not None
        and now - old.full_at <= FULL_EVERY_S
        and loading.read_version(ALIAS) == old.version
    ):
        return replace(old, loaded_at=now)  # nearly always: in one statement
    with transaction.atomic(using=ALIAS):
        version = loading.read_version(ALIAS)
        if old is None or version[0] != old.version[0] or version[1] < old.version[1]:
            return _full(version, now)
        if now - old.full_at > FULL_EVERY_S:
            return _full(version, now)
        if version == old.version:
            return replace(old, loaded_at=now)
        changes = loading.read_changes(ALIAS, above=old.version[1], upto=version[1])
        if changes is None:
            return _full(version, now)
        content = loading.load_changed(ALIAS, old, changes)
        return build_snapshot(version=version, at=now, full_at=old.full_at, content=content)


def _full(version: tuple[str, int], now: float) -> Snapshot:
    return build_snapshot(
        version=version, at=now, full_at=now, content=loading.load_all(ALIAS)
    )


def _find(look: Callable[[Snapshot], T | None]) -> T | None:
    """Return what `look` finds now or after one refresh."""
    found = look(current())
    if found is None:
        _holder.renew_after_miss()
        found = look(current())
    return found


def origin_of(name: str) -> tuple[str, str] | None:
    """Group and topic whose failed messages the topic called `name` holds; None if it is no
    failure topic.
    """
    known = current()
    topic = known.topic(name)
    if topic is None or topic.failure_of is None or topic.failure_group is None:
        return None
    group, origin = (
        known.groups.get(topic.failure_group),
        known.topics.get(topic.failure_of),
    )
    return (group.name if group else "", origin.name if origin else "")


def find_topic(name: str) -> TopicInfo:
    """The ready topic called `name`; raises NotFound(topic_not_found)."""

    def look(snapshot: Snapshot) -> TopicInfo | None:
        topic = snapshot.topic(name)
        return topic if topic is not None and topic.state == "ready" else None

    topic = _find(look)
    if topic is None:
        raise no_topic(name)
    return topic


def find_group(name: str) -> GroupInfo:
    """The group called `name`; raises NotFound(group_not_found)."""
    group = _find(lambda snapshot: snapshot.group(name))
    if group is None:
        raise no_group(name)
    return group


def find_node(name: str) -> NodeInfo:
    """The node called `name`; raises NotFound(node_not_found)."""
    node = _find(lambda snapshot: snapshot.node(name))
    if node is None:
        raise no_node(name)
    return node


def node_by_id(node_id: int) -> NodeInfo:
    """The node with this id; raises NotFound(node_not_found)."""
    found = _find(lambda snapshot: snapshot.nodes.get(node_id))
    if found is None:
        raise NotFound(f"No node has the id {node_id}.", code=Code.NODE_NOT_FOUND)
    return found


def find_queue(queue: int) -> QueueInfo:
    """The queue with this id; raises NotFound(queue_not_found)."""
    found = _find(lambda snapshot: snapshot.queues.get(queue))
    if found is None:
        raise NotFound(f"Queue {queue} does not exist.", code=Code.QUEUE_NOT_FOUND)
    return found


def find_queues(queues: Collection[int]) -> tuple[dict[int, QueueInfo], bool]:
    """Those of the queues that exist, after at most one refresh, and whether the others
    certainly do not.
    """
    known = current().queues
    if all(queue in known for queue in queues):
        return {queue: known[queue] for queue in queues}, True
    certain = True
    try:
        _holder.renew_after_miss()
    except MetadataUnavailable:
        certain = False
    known = current().queues
    return {queue: known[queue] for queue in queues if queue in known}, certain


def find_key(digest: str) -> KeyInfo | None:
    return _find(lambda snapshot: snapshot.key(digest))
