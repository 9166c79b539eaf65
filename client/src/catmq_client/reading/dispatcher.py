"""The messages of run() in slots: which may be handled now, and in which order.

A slot is a key of a queue (order="key"), a queue (order="queue") or a single message
(order="none", and messages without a key). One handler at a time is at work on a slot.
Slots of a queue that an operator stopped, or whose subscription's breaker is open, rest and
hold no thread; one that retries in place waits for its time. Nothing here calls handlers:
workers take a job, and say with `done` or `back` what became of it.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from catmq_client.errors import OptionError
from catmq_client.message import Message
from catmq_client.reading.owned import OwnedQueue
from catmq_client.reading.state import GroupState
from catmq_client.reading.subscription_settings import Settings

ORDERS = ("key", "queue", "none")
# How long the clock sleeps when nothing has a time; what has one wakes it.
IDLE_S = 60.0


class Task(NamedTuple):
    """A message to handle; `version` tells whether a seek has made it void."""

    owned: OwnedQueue
    version: int
    message: Message


@dataclass(eq=False, slots=True)
class Slot:
    """Messages that are handled one after the other."""

    key: Any
    tasks: deque[Task] = field(default_factory=deque)
    # Failed tries of the first one, in place.
    tries: int = 0
    # How many of the first ones are handled alone: the batch they were in failed.
    alone: int = 0


@dataclass(eq=False, slots=True)
class Job:
    """Messages for one call of the handler: the first ones of slots of one subscription."""

    # Whether the breaker lets it through to see how things are.
    is_probe: bool
    parts: list[tuple[Slot, int]] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    # Monotonic: when the handler began, and when it has failed if it has not returned by
    # then.
    began: float = 0.0
    deadline: float | None = None
    thread: int = 0
    # Whether it was said what became of it; a handler that returns after that is not
    # listened to.
    is_over: bool = False

    def join(self, slot: Slot, count: int) -> None:
        """Take the first messages of one more slot, too."""
        first = list(itertools.islice(slot.tasks, count))
        self.parts.append((slot, len(first)))
        self.tasks += first

    @property
    def slot(self) -> Slot:
        """The slot of a job of one message."""
        return self.parts[0][0]


class Breaker:
    """The circuit breaker of a subscription: after failures in a row its handler rests,
    then gets a message.

    Not locked; times are monotonic seconds.

    >>> breaker = Breaker()
    >>> breaker.failed(limit=2, pause_s=30, now=0), breaker.failed(limit=2, pause_s=30, now=1)
    (False, True)
    >>> breaker.bars(now=30), breaker.bars(now=31), breaker.begin(), breaker.bars(now=31)
    (True, False, True, True)
    >>> breaker.succeeded(), breaker.bars(now=31)
    (True, False)
    """

    def __init__(self) -> None:
        self.failures = 0
        # Set while it is open: when one message may be tried.
        self.open_until: float | None = None
        self._probing = False

    def bars(self, now: float) -> bool:
        """Return True if no handler may begin now."""
        return self.open_until is not None and (self._probing or now < self.open_until)

    def begin(self) -> bool:
        """A handler begins; return True if its message is the one that is tried."""
        self._probing = self.open_until is not None
        return self._probing

    def succeeded(self, *, probe: bool = True) -> bool:
        """A handler returned; return True if that closes it: while open only the tried
        message counts.
        """
        if self.open_until is not None and not probe:
            return False
        closes = self.open_until is not None
        self.reset()
        return closes

    def failed(
        self, *, limit: int | None, pause_s: float, now: float, probe: bool = False
    ) -> bool:
        """A handler failed; return True if that opens it, or keeps it open for another
        pause.
        """
        self.failures += 1
        if limit is None or (self.open_until is not None and not probe):
            return False
        if not probe and self.failures < limit:
            return False
        self.open_until, self._probing = now + pause_s, False
        return True

    def let_go(self) -> None:
        """The message that was to be tried was not: another one may be."""
        self._probing = False

    def reset(self) -> None:
        self.failures, self.open_until, self._probing = 0, None, False


class Dispatcher:
    """Safe to share between threads. Never asks for the state's lock while it holds its
    own.
    """

    def __init__(self, *, state: GroupState, order: str) -> None:
        if order not in ORDERS:
            raise OptionError(f"order={order!r}: write one of {', '.join(ORDERS)}")
        self._state = state
        self._order = order
        self._slots: dict[Any, Slot] = {}
        self._ready: deque[Slot] = deque()
        self._resting: list[Slot] = []
        self._later: list[tuple[float, int, Slot]] = []
        self._numbers = itertools.count()
        self._breakers: dict[str, Breaker] = {}
        self._limited: set[Job] = set()
        self._lock = threading.RLock()
        self._work = threading.Condition(self._lock)
        self._clock = threading.Condition(self._lock)
        self._clock_wakes_at = 0.0
        self._surplus = 0
        self.ending = False
        state.on_start = self.rouse

    def dispatch(self, taken: list[tuple[OwnedQueue, Message]]) -> None:
        with self._lock:
            for owned, message in taken:
                task = Task(owned, owned.version, message)
                key = self._slot_key(task)
                slot = self._slots.get(key)
                if slot is not None:
                    slot.tasks.append(task)
                    continue
                slot = self._slots[key] = Slot(key)
                slot.tasks.append(task)
                self._ready.append(slot)
            self._work.notify(len(taken))
        self.rouse()

    def rouse(self) -> None:
        """Go on with the slots that rest, or wait, for no reason any more."""
        with self._lock:
            if self._resting:
                resting, self._resting = self._resting, []
                self._go_on(resting)
            if any(self.is_void(slot.tasks[0]) for _, _, slot in self._later):
                void = [slot for _, _, slot in self._later if self.is_void(slot.tasks[0])]
                self._later = [entry for entry in self._later if entry[2] not in void]
                heapq.heapify(self._later)
                self._go_on(void)

    def take(self, batch: int) -> Job | None:
        """The next job, of at most `batch` messages; None when the worker is to end."""
        with self._lock:
            while True:
                self._work.wait_for(lambda: self.ending or self._surplus or self._ready)
                if self.ending or self._surplus:
                    self._surplus -= not self.ending
                    return None
                slot = self._ready.popleft()
                if self._rests(slot):
                    self._resting.append(slot)
                else:
                    return self._job(slot, batch)

    def begin(self, job: Job, limit_s: float | None) -> None:
        """The handler is called now, and has failed if it has not returned after so many
        seconds.
        """
        job.began = time.monotonic()
        job.thread = threading.get_ident()
        if limit_s is not None:
            with self._lock:
                job.deadline = job.began + limit_s
                self._limited.add(job)
                self._wake_clock(job.deadline)

    def unlimit(self, job: Job) -> None:
        """Let a handler take its time after all."""
        with self._lock:
            self._limited.discard(job)
            job.deadline = None

    def close(self, job: Job) -> bool:
        """Close a job; return True if this is the first word on what became of it."""
        if job.deadline is None:
            # Only its worker speaks of it.
            return True
        with self._lock:
            self._limited.discard(job)
            first, job.is_over = not job.is_over, True
            return first

    def done(self, job: Job) -> None:
        """All messages of a job are over, however they ended."""
        with self._lock:
            for slot, count in job.parts:
                for _ in range(count):
                    slot.tasks.popleft()
                slot.tries, slot.alone = 0, max(0, slot.alone - count)
            self._go_on(slot for slot, _ in job.parts)

    def back(self, job: Job, *, later_s: float = 0.0, alone: bool = False) -> None:
        """The messages of a job are to be handled again, after `later_s` seconds, or one by
        one.
        """
        with self._lock:
            if job.is_probe:
                self._breaker(job).let_go()
                self.rouse()
            for slot, count in job.parts:
                slot.alone = count if alone else slot.alone
            if later_s <= 0:
                self._go_on(slot for slot, _ in job.parts)
                return
            at = time.monotonic() + later_s
            for slot, _ in job.parts:
                heapq.heappush(self._later, (at, next(self._numbers), slot))
            self._wake_clock(at)

    def succeeded(self, job: Job) -> bool:
        """Tell the breaker; return True if that closed it."""
        breaker = self._breakers.get(job.tasks[0].owned.subscription)
        if breaker is None or not breaker.failures:
            return False
        with self._lock:
            closed = breaker.succeeded(probe=job.is_probe)
            if closed:
                self.rouse()
            return closed

    def failed(self, job: Job, settings: Settings) -> bool:
        """Tell the breaker; return True if that opened it."""
        with self._lock:
            breaker = self._breaker(job)
            pause_s = float(settings.breaker_pause_s)
            limit, probe, now = settings.breaker_failures, job.is_probe, time.monotonic()
            opened = breaker.failed(limit=limit, pause_s=pause_s, now=now, probe=probe)
            if breaker.open_until is not None:
                self._wake_clock(breaker.open_until)
            job.is_probe = False
            return opened

    def paused_topics(self) -> set[str]:
        with self._lock:
            return {
                topic
                for topic, breaker in self._breakers.items()
                if breaker.open_until is not None
            }

    def close_breakers(self, topics: Iterable[str]) -> None:
        """Close the breakers of subscriptions that have none any more."""
        with self._lock:
            for topic in topics:
                self._breakers.pop(topic, None)
        self.rouse()

    def dismiss(self, count: int) -> None:
        """Let so many workers end when they come for their next job."""
        with self._lock:
            self._surplus += count
            self._work.notify_all()

    def end(self) -> None:
        with self._lock:
            self.ending = True
            self._work.notify_all()
            self._clock.notify_all()

    def tick(self) -> list[Job]:
        """Wait for the next time that something has, go on with what waited for it, and
        return the jobs whose handlers took too long."""
        with self._lock:
            self._clock_wakes_at = self._next_time()
            self._clock.wait(max(0.0, self._clock_wakes_at - time.monotonic()))
            now = time.monotonic()
            while self._later and self._later[0][0] <= now:
                self._go_on([heapq.heappop(self._later)[2]])
            if any(breaker.open_until is not None for breaker in self._breakers.values()):
                self.rouse()
            return [
                job
                for job in self._limited
                if job.deadline is not None and job.deadline <= now
            ]

    def is_void(self, task: Task) -> bool:
        """Return True if nothing is to be done about a message any more."""
        owned = task.owned
        gone = owned.lost or owned.halted or owned.revoked_until is not None
        return gone or self.ending or owned.has_left(task.message.offset, task.version)

    def is_barred(self, task: Task) -> bool:
        """Return True if no handler may begin on a message."""
        return task.owned.rests() or self.is_void(task)

    def _slot_key(self, task: Task) -> Any:
        message = task.message
        ordered = self._state.settings_of(task.owned).ordered
        if self._order == "queue" or (self._order == "none" and ordered):
            return message.queue
        if self._order == "key" and message.key is not None:
            return message.queue, message.key
        return task.owned, message.offset, None

    def _job(self, slot: Slot, batch: int) -> Job:
        """A job of this slot, filled up from other slots of the same subscription."""
        topic = slot.tasks[0].owned.subscription
        breaker = self._breakers.get(topic)
        is_probe = breaker is not None and breaker.begin()
        size = 1 if is_probe or slot.tries or slot.alone else batch
        job = Job(is_probe)
        job.join(slot, size)
        while (
            len(job.tasks) < size and self._ready and self._may_join(self._ready[0], topic)
        ):
            job.join(self._ready.popleft(), size - len(job.tasks))
        return job

    def _may_join(self, slot: Slot, topic: str) -> bool:
        same = slot.tasks[0].owned.subscription == topic
        return same and not (slot.tries or slot.alone or self._rests(slot))

    def _go_on(self, slots: Iterable[Slot]) -> None:
        """Each slot's next message is ready, or rests; the slot ends if there is none."""
        for slot in slots:
            while slot.tasks and self.is_void(slot.tasks[0]):
                slot.tasks.popleft()
                slot.tries, slot.alone = 0, max(0, slot.alone - 1)
            if not slot.tasks:
                del self._slots[slot.key]
            elif self._rests(slot):
                self._resting.append(slot)
            else:
                self._ready.append(slot)
                self._work.notify()

    def _rests(self, slot: Slot) -> bool:
        # Without the state's lock: whoever starts a queue says so first, and rouses its
        # slots then.
        task = slot.tasks[0]
        if self.is_void(task):
            return False
        breaker = self._breakers.get(task.owned.subscription)
        return task.owned.rests() or (
            breaker is not None and breaker.bars(time.monotonic())
        )

    def _breaker(self, job: Job) -> Breaker:
        return self._breakers.setdefault(job.tasks[0].owned.subscription, Breaker())

    def _next_time(self) -> float:
        now = time.monotonic()
        times = [now + IDLE_S, *(at for at, _, _ in self._later[:1])]
        times += [job.deadline for job in self._limited if job.deadline is not None]
        opens = (b.open_until for b in self._breakers.values() if b.open_until is not None)
        # One whose time has come waits for the message that is tried, not for the clock.
        return min([*times, *(at for at in opens if at > now)])

    def _wake_clock(self, at: float) -> None:
        if at < self._clock_wakes_at:
            self._clock.notify_all()
