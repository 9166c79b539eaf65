"""State that the threads of a consumer share, under one lock.

The application's thread takes messages, the fetcher brings them, the membership keeps the
lease and changes what is owned, the acquirer takes hold of it, the committer stores
progress and releases revoked queues. Each waits on `changed` for what the others do; none
holds the lock while it speaks to a broker.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import repeat

from catmq_client.errors import CatmqError, HandlerFailed
from catmq_client.message import Message
from catmq_client.options import ConsumerOptions
from catmq_client.reading.clocks import lease_clock
from catmq_client.reading.owned import OwnedQueue
from catmq_client.reading.subscription_settings import DEFAULTS, Settings, limits
from catmq_client.telemetry.process_report import AtWork

log = logging.getLogger("catmq.consumer")


class Changed(threading.Condition):
    """Condition that the threads of a consumer wait on.

    With every batch messages come and room for more does, which concerns one thread each:
    it waits at a side door of its own, so that the others are not woken hundreds of times a
    second.
    `notify_all` opens them all.
    """

    def __init__(self) -> None:
        # Reentrant: stop() may be called by a signal handler that interrupts us in here.
        lock = threading.RLock()
        super().__init__(lock)
        self.messages = threading.Condition(lock)
        self.room = threading.Condition(lock)
        self.reports = threading.Condition(lock)

    def notify_all(self) -> None:
        super().notify_all()
        self.messages.notify_all()
        self.room.notify_all()
        self.reports.notify_all()


class GroupState:
    # Called under the lock when a queue can be read that a waiting pull knows nothing of.
    on_gain: Callable[[], object] = staticmethod(lambda: None)
    # Called under the lock when a stopped queue was started.
    on_start: Callable[[], object] = staticmethod(lambda: None)
    # Called under the lock when settings changed.
    on_settings: Callable[[], object] = staticmethod(lambda: None)
    # Called when a broker did not answer: others may wait for it, too.
    on_silent_broker: Callable[[], object] = staticmethod(lambda: None)

    # The threads of run().
    threads = 1

    def __init__(self, options: ConsumerOptions) -> None:
        self.options = options
        self.changed = Changed()
        self.consumer_id: str | None = None
        # The group's: that of the last heartbeat's answer, the highest of all answers, and
        # the highest
        # that was known when the last heartbeat was sent.
        self.generation = self.heard = self.asked_about = 0
        # When something changed that the next pull may not know of yet, monotonic.
        self.changed_at = 0.0
        self.session_timeout_s = 15.0
        self.heartbeat_interval_s = 3.0
        self.queues: dict[int, OwnedQueue] = {}
        # What operators set, by topic, and what follows from it for all of them.
        self.settings: dict[str, Settings] = {}
        self.limits = limits(options, ())
        self._rotation: deque[OwnedQueue] = deque()
        # (queue, epoch) that we gave up: whatever an answer says, they never come back.
        self.released: set[tuple[int, int]] = set()
        # Those of them of which no broker knows yet, for certain.
        self.unconfirmed: dict[tuple[int, int], OwnedQueue] = {}
        # on_assigned and on_revoked calls that the application's thread has still to make.
        self.events: deque[tuple[bool, OwnedQueue]] = deque()
        self.buffered = 0
        self.buffered_bytes = 0
        # How many messages the application was done with, and how many of its attempts
        # failed.
        self.finished = self.failed = 0
        # Since when no pull waits at the broker, because there is no room for what it would
        # bring, monotonic.
        self.full_since: float | None = None
        # Lease clock: until when handlers may begin, and the part of it that recorded
        # heartbeats
        # give.
        self.lease_until = self.recorded_until = 0.0
        # When the application took messages and did not come back; None while it waits in
        # here.
        self.away_since: float | None = None
        # run(): the handlers at work, by thread.
        self.handlers: dict[int, AtWork] = {}
        # Queues lost with progress that was not committed, until a commit() has told of
        # them.
        self.unreported: dict[int, OwnedQueue] = {}
        self.in_run = False
        # Topics whose failed messages can be stored nowhere: they are tried in place.
        self.in_place: set[str] = set()
        # A failed message that no broker would take: its queue stands still.
        self.failure: HandlerFailed | None = None
        # Ends the consumer: raised in the application's thread, each time it comes.
        self.fatal: CatmqError | None = None
        # Raised once; the consumer rejoins at the next poll.
        self.silence: CatmqError | None = None
        # No more messages are given out; heartbeats and commits go on until `closed`.
        self.stopping = False
        self.closed = False
        self.heartbeat_wanted = False

    def silent_since(self) -> float | None:
        """Return since when the application has not come back, or its oldest handler is at
        work.
        """
        return (
            min([one.since for one in self.at_work()], default=None)
            if self.in_run
            else self.away_since
        )

    def at_work(self) -> list[AtWork]:
        """Return what the application is at work on: in run() each handler, else the first
        message it has.
        """
        return [*self.handlers.values()] if self.in_run else sorted(self._in_hand())[:1]

    def _in_hand(self) -> Iterable[AtWork]:
        since = self.away_since
        mine = self.queues.values() if since is not None else ()
        return [
            AtWork(since or 0.0, one.queue, one.committable())
            for one in mine
            if one.in_hand
        ]

    def want_heartbeat(self) -> None:
        with self.changed:
            self.heartbeat_wanted = True
            self.changed.notify_all()

    def hear(self, generation: int) -> None:
        """Note the generation in an answer; a new one makes the membership send a heartbeat
        at once.
        """
        with self.changed:
            if generation > self.heard:
                self.heard = generation
                self.changed_at = time.monotonic()
                self.changed.notify_all()

    def is_heartbeat_due(self) -> bool:
        """Return True if a heartbeat must go out now; news calls for one only, whatever
        becomes of it.
        """
        return self.heartbeat_wanted or self.heard > max(self.generation, self.asked_about)

    def is_unsettled(self, within_s: float) -> bool:
        """Return True if, since a moment ago, queues may come that the next pull would not
        know of.
        """
        if time.monotonic() - self.changed_at > within_s:
            return False
        coming = (
            o for o in self.queues.values() if not o.acquired and o.revoked_until is None
        )
        return self.heard > self.generation or any(not owned.failures for owned in coming)

    def fail_with(self, error: CatmqError) -> None:
        with self.changed:
            self.fatal = self.fatal or error
            self.changed.notify_all()

    def wait(self, seconds: float, until: Callable[[], bool] | None = None) -> bool:
        """Wait for `until()`, a stop or the time; return True if the consumer goes on."""
        with self.changed:
            self.changed.wait_for(
                lambda: self.closed or (until is not None and until()), seconds
            )
            return not self.closed

    def has_lease(self) -> bool:
        """Return True if the lease lasts, so that a handler may start now."""
        return lease_clock() < self.lease_until

    def recorded(self, until: float) -> None:
        """A heartbeat was recorded, which gives a lease until then."""
        self.lease_until = self.recorded_until = until
        held = [owned for owned in self.queues.values() if owned.begins_until < math.inf]
        for owned in held:
            owned.begins_until = math.inf
        if held:
            log.info("heartbeats are recorded again: ordered subscriptions go on")
            self.on_start()

    def hold_ordered(self) -> None:
        """Let nothing of ordered subscriptions begin after the lease of the last recorded
        heartbeat.

        Brokers promised to expire nobody meanwhile, but one that this member does not know
        may do so. The nodes then refuse its commits. Until it hears that, it would handle
        messages of a key at the same time as the new owner of its queue.
        """
        if self.options.on_coordinator_loss is not None:
            return
        ordered = [
            owned for owned in self.queues.values() if self.settings_of(owned).ordered
        ]
        new = [owned for owned in ordered if owned.begins_until == math.inf]
        for owned in new:
            owned.begins_until = self.recorded_until
        if new:
            topics = ", ".join(sorted({owned.subscription for owned in new}))
            log.warning(
                "heartbeats are not recorded: the ordered subscriptions of %s stop when "
                "the lease ends",
                topics,
            )

    def add(self, owned: OwnedQueue) -> None:
        self.queues[owned.queue] = owned
        self._rotation.append(owned)
        self.changed_at = time.monotonic()

    def lose(self, owned: OwnedQueue, *, tell: bool = True) -> None:
        """Own a queue no longer; what is handed out of it may not be committed any more."""
        if self.queues.get(owned.queue) is owned:
            del self.queues[owned.queue]
            self._rotation.remove(owned)
        self.evict(owned)
        owned.lost = True
        if owned.acquired and owned.committable() > owned.committed:
            self.unreported[owned.queue] = owned
        if (
            tell
            and owned.acquired
            and owned.revoked_until is None
            and self.options.on_revoked
        ):
            self.events.append((False, owned))
        heir, owned.heir = owned.heir, None
        if heir is not None:
            self.add(heir)
        self.changed.notify_all()

    def lose_all(self) -> None:
        """The membership is gone, and all queues with it."""
        for owned in [*self.queues.values()]:
            owned.heir = None
            self.lose(owned)
        self.consumer_id = None
        self.generation = self.heard = self.asked_about = 0
        self.released.clear()
        self.unconfirmed.clear()
        self.changed.notify_all()

    def revoke(self, owned: OwnedQueue) -> None:
        """Begin to give a queue up: nothing more of it is handed out."""
        if owned.revoked_until is not None:
            return
        owned.revoked_until = time.monotonic() + self.options.rebalance_timeout_ms / 1000
        self.evict(owned)
        if owned.acquired and self.options.on_revoked:
            owned.tell_revoked = True
            self.events.append((False, owned))
        self.changed.notify_all()

    def succeed(self, owned: OwnedQueue, heir: OwnedQueue) -> None:
        """A queue of ours was granted to us anew: first what is at work on it ends and is
        committed.

        The node takes that only until the later epoch is acquired; after it, all of it
        would be repeated.
        """
        owned.heir = heir
        if owned.acquired:
            self.revoke(owned)
        else:
            self.lose(owned)

    def keep(self, owned: OwnedQueue) -> None:
        """A revoked queue not released yet is ours again: goes on at its lowest unfinished
        offset.
        """
        was_notified = (
            owned.revoked_until is not None
            and self.options.on_revoked
            and not owned.tell_revoked
        )
        owned.heir = None
        owned.revoked_until = None
        owned.tell_revoked = False
        self.seek(owned, owned.committable())
        if was_notified and self.options.on_assigned:
            self.events.append((True, owned))
        self.changed.notify_all()

    def is_idle(self, owned: OwnedQueue) -> bool:
        """Return True if nothing of a revoked queue is at work any more."""
        at_work = owned.running if self.in_run else owned.unfinished
        return not at_work and not owned.reporting and not owned.tell_revoked

    def next_event(self) -> tuple[bool, OwnedQueue] | None:
        """The next callback that is due; a revoke only when no handler of its queue is at
        work any more.
        """
        held_up: set[int] = set()
        for assigned, owned in self.events:
            late = (owned.revoked_until or 0.0) < time.monotonic()
            if owned.queue not in held_up and (assigned or not owned.running or late):
                return assigned, owned
            held_up.add(owned.queue)
        return None

    def all_halted(self) -> bool:
        """Return True if there are queues, and each stands still."""
        with self.changed:
            return bool(self.queues) and all(owned.halted for owned in self.queues.values())

    def release(self, owned: OwnedQueue) -> None:
        """Give a queue up for good: the next heartbeat tells the broker."""
        self.released.add((owned.queue, owned.epoch))
        self.unconfirmed[owned.queue, owned.epoch] = owned
        self.lose(owned, tell=False)
        self.heartbeat_wanted = True

    def take_back(self) -> None:
        """Go on with the queues that are on their way to others, while nobody can tell
        those of it.
        """
        for owned in [*self.queues.values()]:
            if owned.revoked_until is not None:
                self.keep(owned)
        for place, owned in self.unconfirmed.items():
            if owned.queue not in self.queues:
                self.released.discard(place)
                self.add(owned.anew())
        self.unconfirmed.clear()

    def set_stopped(self, owned: OwnedQueue, stopped: bool) -> None:
        """An operator stopped a queue, or started it: nothing of it is handed out or begun
        meanwhile.
        """
        if owned.stopped == stopped:
            return
        owned.stopped = stopped
        if stopped:
            self.evict(owned)
        else:
            self.on_start()
            self.on_gain()
        self.changed.notify_all()

    def settings_of(self, owned: OwnedQueue) -> Settings:
        """Those of the subscription that a queue belongs to."""
        return self.settings.get(owned.subscription, DEFAULTS)

    def configure(self, given: dict[str, Settings]) -> None:
        """Take over the settings in an answer. What another filter brought is fetched anew."""
        former = self.settings
        held = {owned.subscription for owned in self.queues.values()}
        given = {topic: former[topic] for topic in held if topic in former} | given
        if given == former:
            return
        self.settings = given
        self.limits = limits(self.options, given.values())
        for owned in self.queues.values():
            if owned.topic in former and not former[owned.topic].same_filter(
                self.settings_of(owned)
            ):
                self.evict(owned)
        self.on_settings()
        self.on_gain()
        self.changed.notify_all()

    def halt(self, owned: OwnedQueue, failure: HandlerFailed) -> None:
        """A queue stands still: going on would lose a message."""
        owned.halted = True
        self.evict(owned)
        self.failure = self.failure or failure
        self.changed.notify_all()

    def seek(self, owned: OwnedQueue, offset: int) -> None:
        self.evict(owned)
        owned.seek(offset)
        self.changed.notify_all()

    def evict(self, owned: OwnedQueue) -> None:
        """Evict what was fetched of a queue and not handed out."""
        self.buffered -= len(owned.buffer)
        self.buffered_bytes -= sum(len(message.body) for message in owned.buffer)
        owned.evict()

    def held(self) -> int:
        """run(): how many messages are fetched and not done."""
        return self.buffered + sum(owned.in_hand for owned in self.queues.values())

    def fill(self, owned: OwnedQueue, messages: list[Message], next_offset: int) -> None:
        owned.buffer.extend(messages)
        owned.position = next_offset
        self.buffered += len(messages)
        self.buffered_bytes += sum([len(message.body) for message in messages])
        if messages:
            self.changed.messages.notify_all()

    def share(self) -> int:
        """Return how many messages of one queue may be held, or at work, while others have
        a claim too.
        """
        return max(16, self.limits.max_poll_records // max(1, len(self._rotation)))

    def is_stuck(self, owned: OwnedQueue) -> bool:
        """run(): whether a queue's share is all at work, so that what is held of it cannot
        be given out.
        """
        return self.in_run and owned.at_work >= self.share()

    def hand_out(self, limit: int) -> list[tuple[OwnedQueue, Message]]:
        """At most `limit` messages, the queues in turn; nothing without a lease."""
        taken: list[tuple[OwnedQueue, Message]] = []
        if not self.buffered or not self.has_lease():
            return taken
        most = self.share() if self.in_run else 1 << 30
        empty = 0
        while empty < len(self._rotation) and len(taken) < limit:
            owned = self._rotation[0]
            before = len(taken)
            if owned.can_hand_out():
                self._take_turn(owned, limit, most, taken)
            empty = 0 if len(taken) > before else empty + 1
            if len(taken) < limit or not owned.turn_left:
                owned.turn_left = owned.TURN
                self._rotation.rotate(-1)
        self._taken(len(taken))
        return taken

    def undo_hand_out(self, taken: Iterable[tuple[OwnedQueue, Message]]) -> None:
        """Take back all that is handed out: an exception kept the application from getting
        it.
        """
        with self.changed:
            for owned in self.queues.values():
                owned.undo_hand_out()
            self.recount(self.queues.values())
            self.on_gain()
            self.changed.notify_all()

    def recount(self, holders: Iterable[OwnedQueue]) -> None:
        """Count again what is buffered: an interrupt may have cut a change in two."""
        buffers = [owned.buffer for owned in holders]
        self.buffered = sum(map(len, buffers))
        self.buffered_bytes = sum(
            len(message.body) for buffer in buffers for message in buffer
        )

    def finish(self, owned: OwnedQueue, offset: int, version: int) -> None:
        """run(): the handler of a message returned."""
        half = self.share() // 2
        before = owned.at_work
        owned.finish(offset, version)
        self.finished += 1
        if owned.lost:
            self.unreported[owned.queue] = owned
        if before > half >= owned.at_work:
            self.changed.notify_all()
        elif not owned.in_hand:
            # a queue of which nothing is held is asked whatever others hold
            self.changed.room.notify_all()

    def _take_turn(
        self,
        owned: OwnedQueue,
        limit: int,
        most: int,
        taken: list[tuple[OwnedQueue, Message]],
    ) -> None:
        alone = len(owned.buffer) == self.buffered  # then it is nobody else's turn
        turn = limit if alone else owned.turn_left
        count = min(limit - len(taken), len(owned.buffer), turn, most - owned.at_work)
        if count > 0:
            messages = owned.hand_out(count)
            all_bytes = alone and not owned.buffer
            taken_bytes = (
                self.buffered_bytes
                if all_bytes
                else sum([len(message.body) for message in messages])
            )
            self.buffered_bytes -= taken_bytes
            taken.extend(zip(repeat(owned), messages, strict=False))
            owned.turn_left = max(0, owned.turn_left - count)

    def _taken(self, count: int) -> None:
        """The fetcher waits for room in steps of half the bound, not for every message."""
        half = self.limits.max_poll_records // 2
        before, self.buffered = self.buffered, self.buffered - count
        if before > half >= self.buffered or (before and not self.buffered):
            self.changed.room.notify_all()
