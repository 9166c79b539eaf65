"""The state that the threads of a consumer share, under a single lock.

    application   takes messages, runs callbacks
    fetcher       fills the buffers of the queues
    membership    keeps the lease, adds queues and revokes them
    acquirer      acquires added queues
    committer     commits finished offsets, releases revoked queues

Each thread waits on `changed` for changes that the others make. No thread holds the lock
while it sends a request.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from itertools import repeat

from catmq_client.errors import CatmqError, HandlerFailed
from catmq_client.loops import BellCondition
from catmq_client.message import Message
from catmq_client.options import ConsumerOptions
from catmq_client.reading.clocks import lease_clock
from catmq_client.reading.owned import OwnedQueue
from catmq_client.reading.subscription_settings import DEFAULTS, Limits, Settings, limits
from catmq_client.telemetry.process_report import AtWork

log: logging.Logger = logging.getLogger("catmq.consumer")


class Changed(threading.Condition):
    """Condition that the threads of a consumer wait on.

    Each batch brings messages and makes room, which concerns a single thread each. That
    thread waits on a condition of its own with the same lock, so that the other threads are
    not woken hundreds of times a second. `notify_all` wakes all of them.
    """

    def __init__(self) -> None:
        # Reentrant: stop() may be called by a signal handler that interrupts the thread in
        # here.
        lock = threading.RLock()
        super().__init__(lock)
        # Coroutines of catmq_client.aio wait on it, too.
        self.messages: BellCondition = BellCondition(lock)
        self.room: threading.Condition = threading.Condition(lock)
        self.reports: threading.Condition = threading.Condition(lock)
        self.commits: threading.Condition = threading.Condition(lock)

    def notify_all(self) -> None:
        super().notify_all()
        for condition in (self.messages, self.room, self.reports, self.commits):
            condition.notify_all()


class GroupState:
    """State of a member of a group: its lease, its queues, and their buffered messages."""

    # Called under the lock when a queue can be read that the waiting pull does not include.
    on_readable: Callable[[], object] = staticmethod(lambda: None)
    # Called under the lock when handlers may begin that could not before.
    on_runnable: Callable[[], object] = staticmethod(lambda: None)
    # Called under the lock when settings changed.
    on_settings: Callable[[], object] = staticmethod(lambda: None)
    # Called under the lock with a queue, or a run of a share group, whose messages belong to
    # this member no longer, and with their offsets. None: all of the queue.
    on_withdrawn: Callable[[OwnedQueue, Collection[int] | None], object] = staticmethod(
        lambda owned, offsets: None
    )
    # Called when a broker did not answer a heartbeat: a pull may wait for the same broker.
    on_silent_broker: Callable[[], object] = staticmethod(lambda: None)

    # Number of threads of run().
    threads = 1

    def __init__(self, options: ConsumerOptions) -> None:
        self.options = options
        self.changed: Changed = Changed()
        self.consumer_id: str | None = None
        # Generations of the group: of the last applied assignment; the newest in any
        # answer; and the newest that was known when the last heartbeat was sent.
        self.generation: int = 0
        self.newest_generation: int = 0
        self.requested_generation: int = 0
        # When something changed that a pull may not know of, monotonic.
        self.changed_at: float = 0.0
        self.session_timeout_s: float = 15.0
        self.heartbeat_interval_s: float = 3.0
        self.queues: dict[int, OwnedQueue] = {}
        # Settings of the subscriptions by topic, and the limits that follow from all of
        # them.
        self.settings: dict[str, Settings] = {}
        self.limits: Limits = limits(options, ())
        self._rotation: deque[OwnedQueue] = deque()
        # (queue, epoch) of released grants. A late answer may still assign them; they are
        # not taken again.
        self.released: set[tuple[int, int]] = set()
        # The released grants whose release no broker has recorded for certain: this member
        # can still take these queues back.
        self.unrecorded_releases: dict[tuple[int, int], OwnedQueue] = {}
        # Pending calls of on_assigned (True) and on_revoked (False), for the application's
        # thread.
        self.events: deque[tuple[bool, OwnedQueue]] = deque()
        self.buffered: int = 0
        self.buffered_bytes: int = 0
        # How many messages are finished, and how many attempts have failed.
        self.finished: int = 0
        self.failed: int = 0
        # Since when no pull waits at the broker for lack of room, monotonic.
        self.full_since: float | None = None
        # Lease clock: until when handlers may begin, and the part of it that rests on
        # recorded heartbeats.
        self.lease_until: float = 0.0
        self.recorded_lease_until: float = 0.0
        # When the application took messages and did not come back; None while it waits in
        # here.
        self.away_since: float | None = None
        # run(): the handlers at work, by thread.
        self.handlers: dict[int, AtWork] = {}
        # Queues that were lost with uncommitted progress, until commit() has reported them.
        self.unannounced_losses: dict[int, OwnedQueue] = {}
        # The application has called run(), whose threads call a handler. Otherwise it takes
        # the messages itself, by poll() or in iteration.
        self.has_worker_threads = False
        # Topics without a retry topic: their failed messages are retried in place.
        self.no_retry_topics: set[str] = set()
        # A failed message that could not be stored, so that its queue has halted.
        self.failure: HandlerFailed | None = None
        # Ends the consumer. Raised in the application's thread, at each call.
        self.fatal: CatmqError | None = None
        # The application exceeded max_poll_interval_ms. Raised once; the next poll joins
        # again.
        self.poll_timeout: CatmqError | None = None
        # No more messages are handed out. Heartbeats and commits continue until `closed`.
        self.stopping = False
        self.closed = False
        self.heartbeat_wanted: bool = False
        # The committer waits for a message to be finished.
        self._finished_wanted: bool = False

    def silent_since(self) -> float | None:
        """Return since when the application has not polled, or its oldest handler is at
        work.
        """
        return (
            min([work.since for work in self.at_work()], default=None)
            if self.has_worker_threads
            else self.away_since
        )

    def at_work(self) -> list[AtWork]:
        """Return the messages at work: in run() each handler, else the first message taken
        by poll().
        """
        return (
            [*self.handlers.values()]
            if self.has_worker_threads
            else sorted(self._work_in_hand())[:1]
        )

    def _work_in_hand(self) -> Iterable[AtWork]:
        """Return the lowest unfinished message of each queue that the application has
        messages of.
        """
        since = self.away_since
        queues = self.queues.values() if since is not None else ()
        return [
            AtWork(since or 0.0, owned.queue, owned.committable())
            for owned in queues
            if owned.in_hand
        ]

    def want_heartbeat(self) -> None:
        with self.changed:
            self.heartbeat_wanted = True
            self.changed.notify_all()

    def note_generation(self, generation: int) -> None:
        """Note the generation in an answer.

        The membership sends a heartbeat for a new generation at once.
        """
        with self.changed:
            if generation > self.newest_generation:
                self.newest_generation = generation
                self.changed_at = time.monotonic()
                self.changed.notify_all()

    def is_heartbeat_due(self) -> bool:
        """Return True if a heartbeat is due now.

        A new generation causes a single heartbeat, even if it fails.
        """
        return self.heartbeat_wanted or self.newest_generation > max(
            self.generation, self.requested_generation
        )

    def is_unsettled(self, within_s: float) -> bool:
        """Return True if new queues are expected because of a change within the last
        `within_s`.
        """
        if time.monotonic() - self.changed_at > within_s:
            return False
        return self.newest_generation > self.generation or any(
            not owned.acquired and owned.revoked_until is None and not owned.failures
            for owned in self.queues.values()
        )

    def fail_with(self, error: CatmqError) -> None:
        with self.changed:
            self.fatal = self.fatal or error
            self.changed.notify_all()

    def wait(self, seconds: float, until: Callable[[], bool] | None = None) -> bool:
        """Wait for `until()`, for `seconds`, or for the close.

        Return False if the consumer is closed.
        """
        with self.changed:
            self.changed.wait_for(
                lambda: self.closed or (until is not None and until()), seconds
            )
            return not self.closed

    def wait_for_finished(self, seconds: float) -> None:
        """Wait until a message is finished, for `seconds`, or until something else changes.
        Called under the lock.
        """
        self._finished_wanted = True
        self.changed.commits.wait(seconds)
        self._finished_wanted = False

    def note_finished(self) -> None:
        """Wake the committer if it waits for a finished message. Called under the lock."""
        # A look at a flag, because each message comes by here.
        if self._finished_wanted:
            self._finished_wanted = False
            self.changed.commits.notify_all()

    def has_lease(self) -> bool:
        return lease_clock() < self.lease_until

    def extend_lease(self, until: float) -> None:
        """Note that a heartbeat was recorded: the lease lasts until `until`."""
        self.lease_until = self.recorded_lease_until = until
        limited_queues = [
            owned for owned in self.queues.values() if owned.begin_deadline < math.inf
        ]
        for owned in limited_queues:
            owned.begin_deadline = math.inf
        if limited_queues:
            log.info("heartbeats are recorded again: ordered subscriptions go on")
            self.on_runnable()

    def stop_ordered_at_lease_end(self) -> None:
        """Let no handler of an ordered subscription begin after the last recorded
        heartbeat's lease.

        Brokers have promised to expire no member meanwhile, but a broker that this member
        does not know may expire it. The nodes then fence its commits. Until it sees that,
        it would handle messages of a key at the same time as the new owner of the queue.
        """
        if self.options.on_coordinator_loss is not None:
            return
        newly_limited = [
            owned
            for owned in self.queues.values()
            if self.settings_of(owned).ordered and owned.begin_deadline == math.inf
        ]
        for owned in newly_limited:
            owned.begin_deadline = self.recorded_lease_until
        if newly_limited:
            log.warning(
                "heartbeats are not recorded: the ordered subscriptions of %s stop when "
                "the lease ends",
                ", ".join(sorted({owned.subscription for owned in newly_limited})),
            )

    def add(self, owned: OwnedQueue) -> None:
        self.queues[owned.queue] = owned
        self._rotation.append(owned)
        self.changed_at = time.monotonic()

    def lose(self, owned: OwnedQueue, *, notify: bool = True) -> None:
        """Own a queue no longer. Its unfinished messages cannot be committed any more."""
        # The queue may be owned again already, under a later epoch.
        if self.queues.get(owned.queue) is owned:
            del self.queues[owned.queue]
            self._rotation.remove(owned)
        self.evict(owned)
        owned.lost = True
        if owned.acquired and owned.committable() > owned.committed:
            self.unannounced_losses[owned.queue] = owned
        if (
            notify
            and owned.acquired
            and owned.revoked_until is None
            and self.options.on_revoked
        ):
            self.events.append((False, owned))
        next_grant, owned.next_grant = owned.next_grant, None
        if next_grant is not None:
            self.add(next_grant)
        self.on_withdrawn(owned, None)
        self.changed.notify_all()

    def lose_all(self) -> None:
        for owned in [*self.queues.values()]:
            owned.next_grant = None
            self.lose(owned)
        self.consumer_id = None
        self.generation = self.newest_generation = self.requested_generation = 0
        # Grants and generations of a membership mean nothing to the next membership.
        self.released.clear()
        self.unrecorded_releases.clear()
        self.changed.notify_all()

    def revoke(self, owned: OwnedQueue) -> None:
        """Begin to release a queue: nothing more of it is handed out."""
        if owned.revoked_until is not None:
            return
        owned.revoked_until = time.monotonic() + self.options.rebalance_timeout_ms / 1000
        self.evict(owned)
        if owned.acquired and self.options.on_revoked:
            owned.revoke_callback_due = True
            self.events.append((False, owned))
        self.changed.notify_all()

    def replace_grant(self, owned: OwnedQueue, next_grant: OwnedQueue) -> None:
        """Note that an owned queue was granted again under a later epoch.

        Its messages at work end and are committed first. The node accepts that only until
        the later epoch is acquired; afterwards all of them would be repeated.
        """
        owned.next_grant = next_grant
        if owned.acquired:
            self.revoke(owned)
        else:
            self.lose(owned)

    def reclaim(self, owned: OwnedQueue) -> None:
        """Keep a revoked queue, and continue at its lowest unfinished offset."""
        was_notified = (
            owned.revoked_until is not None
            and self.options.on_revoked
            and not owned.revoke_callback_due
        )
        owned.next_grant = None
        owned.revoked_until = None
        owned.revoke_callback_due = False
        self.seek(owned, owned.committable())
        if was_notified and self.options.on_assigned:
            # on_revoked was called for the queue, so on_assigned must be called again.
            self.events.append((True, owned))
        self.changed.notify_all()

    def is_idle(self, owned: OwnedQueue) -> bool:
        """Return True if no message of a revoked queue is at work any more."""
        unfinished = owned.at_work if self.has_worker_threads else owned.unfinished
        return (
            not unfinished and not owned.unstored_failures and not owned.revoke_callback_due
        )

    def next_callback(self) -> tuple[bool, OwnedQueue] | None:
        """Return the next callback that is due. on_revoked waits for the handlers of its
        queue.
        """
        blocked_queues: set[int] = set()
        for assigned, owned in self.events:
            is_overdue = (owned.revoked_until or 0.0) < time.monotonic()
            if owned.queue not in blocked_queues and (
                assigned or not owned.at_work or is_overdue
            ):
                return assigned, owned
            blocked_queues.add(owned.queue)
        return None

    def all_halted(self) -> bool:
        with self.changed:
            return bool(self.queues) and all(owned.halted for owned in self.queues.values())

    def release(self, owned: OwnedQueue) -> None:
        """Release a queue for good. The next heartbeat reports it."""
        self.released.add((owned.queue, owned.epoch))
        self.unrecorded_releases[owned.queue, owned.epoch] = owned
        self.lose(owned, notify=False)
        self.heartbeat_wanted = True

    def reclaim_all(self) -> None:
        """Keep the queues that were being handed over to other members.

        While metadata is unavailable, no broker can inform those members, so the queues
        would idle.
        """
        for owned in [*self.queues.values()]:
            if owned.revoked_until is not None:
                self.reclaim(owned)
        for queue_and_epoch, owned in self.unrecorded_releases.items():
            if owned.queue not in self.queues:
                self.released.discard(queue_and_epoch)
                self.add(owned.copy_unacquired())
        self.unrecorded_releases.clear()

    def set_stopped(self, owned: OwnedQueue, stopped: bool) -> None:
        if owned.stopped == stopped:
            return
        owned.stopped = stopped
        if stopped:
            self.evict(owned)
        else:
            self.on_runnable()
            self.on_readable()
        self.changed.notify_all()

    def settings_of(self, owned: OwnedQueue) -> Settings:
        return self.settings.get(owned.subscription, DEFAULTS)

    def apply_settings(self, settings: dict[str, Settings]) -> None:
        """Apply the settings in an answer.

        Messages that came by another filter are fetched again.
        """
        former = self.settings
        settings = {
            owned.subscription: former[owned.subscription]
            for owned in self.queues.values()
            if owned.subscription in former
        } | settings
        if settings == former:
            return
        self.settings = settings
        self.limits = limits(self.options, settings.values())
        for owned in self.queues.values():
            if owned.topic in former and not former[owned.topic].same_filter(
                self.settings_of(owned)
            ):
                self.evict(owned)
        self.on_settings()
        self.on_readable()
        self.changed.notify_all()

    def halt(self, owned: OwnedQueue, failure: HandlerFailed) -> None:
        """Hand out no more messages of a queue: continuing would lose a failed message."""
        owned.halted = True
        self.evict(owned)
        self.failure = self.failure or failure
        self.changed.notify_all()

    def seek(self, owned: OwnedQueue, offset: int) -> None:
        self.evict(owned)
        owned.seek(offset)
        self.changed.notify_all()

    def redeliver_failed(self, owned: OwnedQueue) -> None:
        """Have failed messages delivered again that cannot be stored for a retry.

        Here the queue continues at its lowest unfinished offset. A share group gives the
        failed messages back to its broker instead.
        """
        self.seek(owned, owned.committable())

    def evict(self, owned: OwnedQueue) -> None:
        """Drop the messages of a queue that were fetched and not handed out."""
        self.buffered -= len(owned.buffer)
        self.buffered_bytes -= sum(len(message.body) for message in owned.buffer)
        owned.evict()

    def count_unfinished(self) -> int:
        """run(): return how many messages are fetched and unfinished."""
        return self.buffered + sum(owned.in_hand for owned in self.queues.values())

    def fill(self, owned: OwnedQueue, messages: list[Message], next_offset: int) -> None:
        owned.buffer.extend(messages)
        owned.position = next_offset
        self.buffered += len(messages)
        self.buffered_bytes += sum([len(message.body) for message in messages])
        if messages:
            self.changed.messages.notify_all()

    def share_per_queue(self) -> int:
        """Return how many messages of a queue may be buffered, or at work, if others need
        room.
        """
        return max(16, self.limits.max_poll_records // max(1, len(self._rotation)))

    def is_stuck(self, owned: OwnedQueue) -> bool:
        """run(): return True if a queue's share is at work, so its buffer cannot be handed
        out.
        """
        return self.has_worker_threads and owned.window_load >= self.share_per_queue()

    def hand_out(self, limit: int) -> list[tuple[OwnedQueue, Message]]:
        """Hand out at most `limit` messages, of the queues in turn.

        Nothing without a lease.
        """
        taken: list[tuple[OwnedQueue, Message]] = []
        if not self.buffered or not self.has_lease():
            return taken
        max_at_work = self.share_per_queue() if self.has_worker_threads else 1 << 30
        queues_skipped = 0
        while queues_skipped < len(self._rotation) and len(taken) < limit:
            owned = self._rotation[0]
            # If only this queue has messages, no other queue waits for its turn.
            has_all_buffered = len(owned.buffer) == self.buffered
            turn = limit if has_all_buffered else owned.turn_left
            room = min(limit - len(taken), turn, max_at_work - owned.window_load)
            count = min(room, len(owned.buffer)) if owned.can_hand_out() else 0
            if count > 0:
                messages = owned.hand_out(count)
                if has_all_buffered and not owned.buffer:
                    self.buffered_bytes = 0
                else:
                    self.buffered_bytes -= sum([len(message.body) for message in messages])
                taken.extend(zip(repeat(owned), messages, strict=False))
                owned.turn_left = max(0, owned.turn_left - count)
            # A full round over all queues without a message ends the loop.
            queues_skipped = 0 if count > 0 else queues_skipped + 1
            if len(taken) < limit or not owned.turn_left:
                # The queue's turn is over: the next queue comes first. A turn that `limit`
                # has cut short continues at the next call.
                owned.turn_left = owned.TURN_MESSAGES
                self._rotation.rotate(-1)
        # The fetcher is woken when half of the bound is free, not for every message.
        half = self.limits.max_poll_records // 2
        buffered_before, self.buffered = self.buffered, self.buffered - len(taken)
        is_emptied = buffered_before > 0 == self.buffered
        if is_emptied or buffered_before > half >= self.buffered:
            self.changed.room.notify_all()
        return taken

    def undo_hand_out(self, taken: Iterable[tuple[OwnedQueue, Message]]) -> None:
        """Take back all messages: an exception kept the application from getting them."""
        with self.changed:
            for owned in self.queues.values():
                owned.undo_hand_out()
            self.recount(self.queues.values())
            self.on_readable()
            self.changed.notify_all()

    def recount(self, holders: Iterable[OwnedQueue]) -> None:
        """Count the buffers again: an exception may have interrupted a change of the
        counts.
        """
        buffers = [owned.buffer for owned in holders]
        self.buffered = sum(map(len, buffers))
        self.buffered_bytes = sum(
            len(message.body) for buffer in buffers for message in buffer
        )

    def return_unfinished(self, owned: OwnedQueue, offset: int) -> None:
        """Give back a message whose handler was cancelled.

        Here nothing is to be done: no commit passes it, so the next owner of the queue gets
        it again. A share group lets other members have it at once.
        """

    def finish(self, owned: OwnedQueue, offset: int, version: int) -> None:
        """run(): mark the message of a handler that returned as finished."""
        half = self.share_per_queue() // 2
        load_before = owned.window_load
        owned.finish(offset, version)
        self.finished += 1
        self.note_finished()
        if owned.lost:
            self.unannounced_losses[owned.queue] = owned
        if load_before > half >= owned.window_load:
            self.changed.notify_all()
        elif not owned.in_hand:
            # A queue without buffered messages may be pulled even when the buffer is full.
            self.changed.room.notify_all()
