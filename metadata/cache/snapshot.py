"""The immutable snapshot of the metadata in a broker process, and its look-ups.

Sends and pulls use the snapshot alone, so they continue while the metadata database is
unavailable. Two loops of each worker keep it current (catmq_site.background.metadata_loops):

* One reads the change counter, the number of the last change, every 200 ms and calls
  confirm(), which wakes the other loop if the snapshot is older.
* The other waits in await_news() and then calls refresh().

A refresh reads in a repeatable-read transaction of the connection `snapshot`, so that counter
and rows belong together. (READ COMMITTED gave mixed snapshots: 74 of 500 in a test.) It reads
the change counter first, then the rows that the change log names above the snapshot's number.
It loads everything if the database has another incarnation or a lower number (it was
restored; but of several servers, see FORMER_S), if the log does not reach back far enough, or
if the last full load is five minutes old.

Threads that need a refresh at the same time share it: the first loads, the others wait for
a load that began after their call. The wait is limited, and for a second after a failed load
a look-up that misses does not try again. So an unavailable database cannot hold up all
threads.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TypeVar

from django.db import (
    DatabaseError,
    InterfaceError,
    OperationalError,
    connections,
    transaction,
)

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
from metadata.rules.addresses import is_list
from metadata.rules.topics.states import TopicState

T = TypeVar("T")
log = logging.getLogger(__name__)

ALIAS = "snapshot"
# A change that was made without record_change() reaches brokers at the next full load.
FULL_EVERY_S = 300.0
MISS_EVERY_S = 0.05  # minimum pause between two loads for look-ups that missed
PAUSE_AFTER_FAILURE_S = 1.0
# Of several servers of the metadata database, a former writer answers reads until connections
# to it end, and has fewer changes. So a lower number counts only when it lasts for longer.
FORMER_S = 20.0


class _Holder:
    """The snapshot of this process. Only a single thread renews it at any time.

    Loads are numbered from 1 in the order in which they begin.
    """

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None
        self.turn = threading.Condition()  # notified when a load ends
        self.last_begun = 0  # number of the last load that began
        self.last_ended = 0  # number of the last load that ended
        self.loading = False
        # Times are of time.monotonic().
        self.lower_since: float | None = None  # when a load first had a lower number
        self.began_at = float("-inf")  # begin of the last load
        self.failed_at = float("-inf")  # end of the last load that failed
        self.failed = False  # the last load failed
        self.confirmed_at = float("-inf")  # when confirm() last found the snapshot current
        self.news = threading.Event()  # set when there is a change to load

    def renew(self) -> bool:
        """Wait for a load that began after this call, run here or by another thread. Return
        True if the snapshot changed.

        Raises MetadataUnavailable. The old snapshot stays then.
        """
        # A thread may have to wait for the rest of the load that is under way, and then for the
        # next load, which has the full limit of a metadata call.
        limit_s = 2 * config.metadata_timeout_ms / 1000
        before = self.snapshot
        with self.turn:
            # A load that is under way may have read before the caller's change. The next load
            # has certainly read after it. So this call returns after the load with the number
            # `needed`, or a later one.
            needed = self.last_begun + 1
            while self.loading and self.last_ended < needed:
                if not self.turn.wait(limit_s):
                    raise MetadataUnavailable(
                        "The metadata database is slow to answer.", retry_after_ms=1000
                    )
            # Another thread has run a load that is new enough, or else this thread runs it.
            if self.last_ended >= needed:
                if self.failed:
                    raise MetadataUnavailable.no_answer()
                return _changed(before, self.snapshot)
            self.last_begun += 1
            self.loading, self.began_at = True, time.monotonic()
        return self._load()

    def _load(self) -> bool:
        before, failure = self.snapshot, None
        try:
            loaded = _load_newest(before)
            self._check_is_no_former_writer(before, loaded)
            self.snapshot = loaded
            contact.heard()
        except (DatabaseError, InterfaceError) as error:
            failure = error
        finally:
            # In any case, or all other threads would wait for this load until their limit.
            with self.turn:
                self.loading, self.last_ended = False, self.last_begun
                self.failed = failure is not None
                self.failed_at = time.monotonic() if failure else self.failed_at
                self.turn.notify_all()
        if failure is not None:
            # Closed, because a broken connection would fail again at every load.
            connections[ALIAS].close()
            raise MetadataUnavailable.no_answer() from failure
        return _changed(before, self.snapshot)

    def _check_is_no_former_writer(self, before: Snapshot | None, loaded: Snapshot) -> None:
        """Raise OperationalError for a lower number than before, if another server may be
        the writer.
        """
        is_lower = (
            before is not None
            and before.version[0] == loaded.version[0]
            and before.version[1] > loaded.version[1]
        )
        if not is_lower or not is_list(connections[ALIAS].settings_dict["HOST"]):
            self.lower_since = None
            return
        now = time.monotonic()
        if self.lower_since is None:
            self.lower_since = now
        if now - self.lower_since < FORMER_S:
            raise OperationalError("The server has fewer changes than another one had.")

    def renew_after_miss(self) -> None:
        """Load for a look-up that missed, at most every 50 ms.

        Returns once a load that began after this call has ended, whichever thread ran it.
        Raises MetadataUnavailable without a load shortly after a failure, and while the
        database is silent. Else requests for unknown names would each hold a thread for
        seconds.
        """
        failed_lately = time.monotonic() - self.failed_at < PAUSE_AFTER_FAILURE_S
        is_silent = bulkhead.watched and contact.silent_s() > SILENT_S
        if is_silent or (self.failed and failed_lately):
            raise MetadataUnavailable.no_answer()
        begun_before = self.last_begun
        pause_s = self.began_at + MISS_EVERY_S - time.monotonic()
        # Many look-ups that miss at the same time share the next load.
        if pause_s > 0:
            with self.turn:
                self.turn.wait_for(lambda: self.last_begun > begun_before, pause_s)
            if self.last_ended > begun_before:
                # A load that failed has not shown that the name is unknown.
                if self.failed:
                    raise MetadataUnavailable.no_answer()
                return
        self.renew()


_holder = _Holder()


def _changed(before: Snapshot | None, after: Snapshot | None) -> bool:
    return after is not None and (before is None or before.version != after.version)


def current() -> Snapshot:
    """Return the snapshot, which is loaded at first use. Raises MetadataUnavailable only if
    it was never loaded.
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
    """Bring the snapshot up to date. Return True if it changed.

    Keeps the old snapshot and returns False while the database is unavailable.
    """
    # Only the first failure of an outage is logged: the loop tries again all the time.
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
    """Compare the snapshot with the version of the metadata in the database.

    `at` is the time.monotonic() before `version` was read. If the versions are the same, the
    snapshot was current at that time. Otherwise wake the loop that waits in await_news().
    """
    holder = _holder
    # After a failed load the loop tries again, even if nothing has changed.
    if (
        holder.snapshot is not None
        and holder.snapshot.version == version
        and not holder.failed
    ):
        holder.confirmed_at = at
    else:
        holder.news.set()


def await_news(seconds: float) -> None:
    """Wait until there is a change to load, at most `seconds`."""
    # Without a snapshot the loop must load at once.
    if _holder.snapshot is not None:
        _holder.news.wait(seconds)
    _holder.news.clear()


def wake() -> None:
    """End the wait of the loop in await_news(), so that it can stop."""
    _holder.news.set()


def evict() -> None:
    """Drop the snapshot, so that the next use loads it: after a fork, or for another
    database.
    """
    global _holder
    _holder = _Holder()


def age_s() -> float:
    """Return the seconds since the snapshot was last known to be current, infinity if it
    was never loaded.
    """
    snapshot = _holder.snapshot
    if snapshot is None:
        return float("inf")
    # A load or a confirmation proves that the snapshot was current when it began.
    return time.monotonic() - max(snapshot.loaded_at, _holder.confirmed_at)


def _load_newest(old: Snapshot | None) -> Snapshot:
    """Return a current snapshot, made from `old` and the change log if that is possible."""
    now = time.monotonic()
    if (
        old is not None
        and now - old.full_at <= FULL_EVERY_S
        and loading.read_version(ALIAS) == old.version
    ):
        # Nearly always nothing has changed. Without a transaction that takes one statement.
        return replace(old, loaded_at=now)
    # The version is read again in the transaction, so that counter and rows belong together.
    with transaction.atomic(using=ALIAS):
        version = loading.read_version(ALIAS)
        if (
            old is not None
            and now - old.full_at <= FULL_EVERY_S
            and version[0] == old.version[0]
            and version[1] >= old.version[1]
        ):
            if version == old.version:
                return replace(old, loaded_at=now)
            changes = loading.read_changes(ALIAS, above=old.version[1], upto=version[1])
            if changes is not None:
                content = loading.load_changed(ALIAS, old, changes)
                return build_snapshot(
                    version=version, at=now, full_at=old.full_at, content=content
                )
        content = loading.load_all(ALIAS)
        return build_snapshot(version=version, at=now, full_at=now, content=content)


def _find(look_up: Callable[[Snapshot], T | None]) -> T | None:
    """Return the result of `look_up`, after a refresh if it is None at first."""
    result = look_up(current())
    if result is None:
        # The object may have been created on another broker a moment ago.
        _holder.renew_after_miss()
        result = look_up(current())
    return result


def origin_of(name: str) -> tuple[str, str] | None:
    """Return the names of the group and topic whose failed messages the topic called `name`
    holds. None if it is no failure topic.
    """
    snapshot = current()
    topic = snapshot.topic(name)
    if topic is None or topic.failure_of is None or topic.failure_group is None:
        return None
    group, origin = (
        snapshot.groups.get(topic.failure_group),
        snapshot.topics.get(topic.failure_of),
    )
    return (group.name if group else "", origin.name if origin else "")


def find_topic(name: str) -> TopicInfo:
    """Return the ready topic called `name`. Raises NotFound(topic_not_found)."""

    def find_ready(snapshot: Snapshot) -> TopicInfo | None:
        topic = snapshot.topic(name)
        return topic if topic is not None and topic.state == TopicState.READY else None

    topic = _find(find_ready)
    if topic is None:
        raise no_topic(name)
    return topic


def find_group(name: str) -> GroupInfo:
    """Return the group called `name`. Raises NotFound(group_not_found)."""
    group = _find(lambda snapshot: snapshot.group(name))
    if group is None:
        raise no_group(name)
    return group


def find_node(name: str) -> NodeInfo:
    """Return the node called `name`. Raises NotFound(node_not_found)."""
    node = _find(lambda snapshot: snapshot.node(name))
    if node is None:
        raise no_node(name)
    return node


def node_by_id(node_id: int) -> NodeInfo:
    """Return the node with this id. Raises NotFound(node_not_found)."""
    node = _find(lambda snapshot: snapshot.nodes.get(node_id))
    if node is None:
        raise NotFound(f"No node has the id {node_id}.", code=Code.NODE_NOT_FOUND)
    return node


def find_queue(queue: int) -> QueueInfo:
    """Return the queue with this id. Raises NotFound(queue_not_found)."""
    info = _find(lambda snapshot: snapshot.queues.get(queue))
    if info is None:
        raise NotFound(f"Queue {queue} does not exist.", code=Code.QUEUE_NOT_FOUND)
    return info


def find_queues(queues: Collection[int]) -> tuple[dict[int, QueueInfo], bool]:
    """Return the queues that exist, by id, after at most a single refresh. The second value is
    False if the others may exist, because the refresh failed.
    """
    infos = current().queues
    if all(queue in infos for queue in queues):
        return {queue: infos[queue] for queue in queues}, True
    # A refresh for all queues together, not for each.
    certain = True
    try:
        _holder.renew_after_miss()
    except MetadataUnavailable:
        certain = False
    infos = current().queues
    return {queue: infos[queue] for queue in queues if queue in infos}, certain


def find_key(digest: str) -> KeyInfo | None:
    """Return the API key with this digest, None if there is none."""
    return _find(lambda snapshot: snapshot.key(digest))
