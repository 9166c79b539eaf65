"""Order the messages of run(): which message may be handled now, and which must wait.

Messages wait in slots. A slot is a key of a queue (order="key"), a queue (order="queue") or
a single message (order="none", and messages without a key). A single handler at a time
works on a slot, which keeps the order within it.

    ready     in `_ready`, until a worker takes its first messages
    at work   in a job of a worker, until done() or give_back()
    delayed   in `_delayed`, until the pause before a retry in place is over
    resting   in `_resting`, while an operator has stopped the queue, heartbeats are not
              recorded, or the circuit breaker of the subscription is open

A slot that waits holds no thread. Handlers are called by the workers (workers.py), not
here.
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
from catmq_client.loops import BellCondition
from catmq_client.message import Message
from catmq_client.reading.owned import OwnedQueue
from catmq_client.reading.state import GroupState
from catmq_client.reading.subscription_settings import Settings

ORDERS = ("key", "queue", "none")
# Longest sleep of the timer. An earlier event wakes it.
IDLE_S = 60.0


class Task(NamedTuple):
    """A message to handle. It is void if a seek has raised the version of its queue since."""

    owned: OwnedQueue
    version: int
    message: Message


@dataclass(eq=False, slots=True)
class Slot:
    """Messages that are handled in order, never two at a time."""

    key: Any
    tasks: deque[Task] = field(default_factory=deque)
    # Failed tries of the first message in place.
    tries: int = 0
    # Number of first messages that are handled alone, because their batch failed.
    alone_count: int = 0


@dataclass(eq=False, slots=True)
class Job:
    """The messages of a call of the handler: the first messages of slots of a subscription."""

    # True for the single message that an open breaker lets through as a test.
    is_probe: bool
    slot_counts: list[tuple[Slot, int]] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    # Monotonic: when the handler began, and when it counts as failed if it has not
    # returned.
    began: float = 0.0
    deadline: float | None = None
    # A number that no other job at work has.
    worker: int = 0
    # True once the outcome is known. A handler that returns after its deadline changes
    # nothing.
    has_outcome: bool = False

    def add_messages(self, slot: Slot, count: int) -> None:
        tasks_to_add = list(itertools.islice(slot.tasks, count))
        self.slot_counts.append((slot, len(tasks_to_add)))
        self.tasks += tasks_to_add

    @property
    def slot(self) -> Slot:
        # of a job of a single message
        return self.slot_counts[0][0]


class Breaker:
    """The circuit breaker of a subscription.

    After `limit` failures in a row it opens: no handler begins for `pause_s`. Then a single
    message is tried, the probe. Its success closes the breaker, its failure begins another
    pause.

    Not locked. Times are monotonic seconds.

    >>> breaker = Breaker()
    >>> breaker.record_failure(limit=2, pause_s=30, now=0)
    False
    >>> breaker.record_failure(limit=2, pause_s=30, now=1)
    True
    >>> breaker.blocks(now=30), breaker.blocks(now=31), breaker.begin(), breaker.blocks(now=31)
    (True, False, True, True)
    >>> breaker.record_success(), breaker.blocks(now=31)
    (True, False)
    """

    def __init__(self) -> None:
        self.failures: int = 0
        # Set while the breaker is open: the time from which a probe may begin.
        self.open_until: float | None = None
        self._is_probing = False

    def blocks(self, now: float) -> bool:
        return self.open_until is not None and (self._is_probing or now < self.open_until)

    def begin(self) -> bool:
        """Note that a handler begins. Return True if its message is the probe."""
        self._is_probing = self.open_until is not None
        return self._is_probing

    def record_success(self, *, is_probe: bool = True) -> bool:
        """Note a success.

        Return True if it closes the breaker; while open, only the probe can.
        """
        if self.open_until is not None and not is_probe:
            return False
        closed = self.open_until is not None
        self.reset()
        return closed

    def record_failure(
        self, *, limit: int | None, pause_s: float, now: float, is_probe: bool = False
    ) -> bool:
        """Note a failure.

        Return True if it opens the breaker, or keeps it open after a probe.
        """
        self.failures += 1
        is_open = self.open_until is not None
        if limit is None or (not is_probe and (is_open or self.failures < limit)):
            return False
        self.open_until, self._is_probing = now + pause_s, False
        return True

    def cancel_probe(self) -> None:
        """Note that the probe was not handled, so that another message may be the probe."""
        self._is_probing = False

    def reset(self) -> None:
        self.failures, self.open_until, self._is_probing = 0, None, False


def check_sizes_and_order(*, order: str, batch: int | None, **workers: int) -> None:
    """Raise OptionError for wrong arguments of run().

    `workers` has the number of threads or coroutines, under the name of its argument.
    """
    if order not in ORDERS:
        raise OptionError(f"order={order!r}: write one of {', '.join(ORDERS)}")
    for name, count in workers.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise OptionError(f"{name}={count!r}: write at least 1")
    if batch is not None and batch < 1:
        raise OptionError(
            f"batch={batch}: write at least 1, or None for one message at a time"
        )


class Dispatcher:
    """Gives jobs to the workers of run(). Any thread may call it.

    Lock order: a thread may hold the state's lock when it calls a method here. So nothing
    here takes the state's lock while it holds its own.
    """

    def __init__(self, *, state: GroupState, order: str) -> None:
        self._state = state
        self._order = order
        self._slots: dict[Any, Slot] = {}
        self._ready: deque[Slot] = deque()
        self._resting: list[Slot] = []
        self._delayed: list[tuple[float, int, Slot]] = []
        self._numbers = itertools.count()
        self._breakers: dict[str, Breaker] = {}
        self._jobs_with_deadline: set[Job] = set()
        self._lock = threading.RLock()
        # Workers wait on it for slots that are ready.
        self.work: BellCondition = BellCondition(self._lock)
        self._timer = threading.Condition(self._lock)
        self._timer_wakes_at = 0.0
        self._workers_to_retire = 0
        self.ending: bool = False
        state.on_runnable = self.wake_resting_slots

    def dispatch(self, taken: list[tuple[OwnedQueue, Message]]) -> None:
        """Put messages into their slots, in the order in which they were handed out."""
        with self._lock:
            for owned, message in taken:
                task = Task(owned, owned.version, message)
                # Messages of a slot are handled in order.
                is_ordered = self._state.settings_of(owned).ordered
                key: Any = (owned, message.offset, None)
                if self._order == "queue" or (self._order == "none" and is_ordered):
                    key = message.queue
                elif self._order == "key" and message.key is not None:
                    key = message.queue, message.key
                slot = self._slots.get(key)
                if slot is None:
                    slot = self._slots[key] = Slot(key)
                    self._ready.append(slot)
                slot.tasks.append(task)
            self.work.notify(len(taken))
        self.wake_resting_slots()

    def wake_resting_slots(self) -> None:
        """Make slots ready that need not rest any more, and drop delayed slots that are
        void.
        """
        with self._lock:
            resting, self._resting = self._resting, []
            self._requeue(resting)
            void_slots = [
                slot for _, _, slot in self._delayed if self.is_void(slot.tasks[0])
            ]
            if void_slots:
                # A delayed slot whose queue was lost would keep its messages until its
                # pause ends.
                self._delayed = [
                    entry for entry in self._delayed if entry[2] not in void_slots
                ]
                heapq.heapify(self._delayed)
                self._requeue(void_slots)

    def take(self, batch: int) -> Job | None:
        """Wait for a job of at most `batch` messages. Return None if the worker is to end."""
        with self._lock:
            while True:
                self.work.wait_for(
                    lambda: self.ending or self._workers_to_retire or self._ready
                )
                if self.ending or self._workers_to_retire:
                    self._workers_to_retire -= not self.ending
                    return None
                job = self._next_job(batch)
                if job is not None:
                    return job

    def take_ready(self, count: int, batch: int) -> list[Job]:
        """Return at most `count` jobs of at most `batch` messages that may begin now."""
        jobs: list[Job] = []
        with self._lock:
            while len(jobs) < count and self._ready and not self.ending:
                job = self._next_job(batch)
                if job is not None:
                    jobs.append(job)
        return jobs

    def _next_job(self, batch: int) -> Job | None:
        """Return the next job. None if the first slot that is ready must rest."""
        slot = self._ready.popleft()
        if self._must_rest(slot):
            self._resting.append(slot)
            return None
        topic = slot.tasks[0].owned.subscription
        breaker = self._breakers.get(topic)
        is_probe = breaker is not None and breaker.begin()
        # A probe risks a single message, and a message that is retried must fail alone.
        size = 1 if is_probe or slot.tries or slot.alone_count else batch
        job = Job(is_probe)
        job.add_messages(slot, size)
        # Fill the job up from ready slots of the same subscription.
        while len(job.tasks) < size and self._ready:
            slot = self._ready[0]
            must_wait = slot.tries or slot.alone_count or self._must_rest(slot)
            if must_wait or slot.tasks[0].owned.subscription != topic:
                break
            job.add_messages(self._ready.popleft(), size - len(job.tasks))
        return job

    def begin(self, job: Job, limit_s: float | None, *, worker: int) -> None:
        """Note that the handler is called now, by a worker with this number.

        It has failed if it takes longer than `limit_s`.
        """
        job.began = time.monotonic()
        job.worker = worker
        if limit_s is not None:
            with self._lock:
                job.deadline = job.began + limit_s
                self._jobs_with_deadline.add(job)
                self._wake_timer_before(job.deadline)

    def remove_deadline(self, job: Job) -> None:
        with self._lock:
            self._jobs_with_deadline.discard(job)
            job.deadline = None

    def claim_outcome(self, job: Job) -> bool:
        """Claim the outcome of a job. Return False if another thread has claimed it.

        The worker claims it when the handler returns, the timer when the deadline passes.
        Only the first of them may act on the outcome.
        """
        if job.deadline is None:
            # Without a deadline the timer never claims the job, so its worker needs no
            # lock.
            return True
        with self._lock:
            self._jobs_with_deadline.discard(job)
            is_first, job.has_outcome = not job.has_outcome, True
            return is_first

    def done(self, *jobs: Job) -> None:
        """Drop all messages of jobs from their slots, whether they succeeded or failed."""
        with self._lock:
            for job in jobs:
                for slot, count in job.slot_counts:
                    for _ in range(count):
                        slot.tasks.popleft()
                    slot.tries, slot.alone_count = 0, max(0, slot.alone_count - count)
                self._requeue(slot for slot, _ in job.slot_counts)

    def give_back(self, job: Job, *, pause_s: float = 0.0, alone: bool = False) -> None:
        """Have the messages of a job handled again: after `delay_s`, or each by itself."""
        with self._lock:
            if job.is_probe:
                self._breaker_of(job).cancel_probe()
                self.wake_resting_slots()
            for slot, count in job.slot_counts:
                slot.alone_count = count if alone else slot.alone_count
            if pause_s <= 0:
                self._requeue(slot for slot, _ in job.slot_counts)
                return
            due_at = time.monotonic() + pause_s
            for slot, _ in job.slot_counts:
                heapq.heappush(self._delayed, (due_at, next(self._numbers), slot))
            self._wake_timer_before(due_at)

    def record_success(self, job: Job) -> bool:
        """Note a success for the breaker. Return True if that closed it."""
        breaker = self._breakers.get(job.tasks[0].owned.subscription)
        # Read without the lock: most subscriptions never fail, and this runs for every
        # message.
        if breaker is None or not breaker.failures:
            return False
        with self._lock:
            closed = breaker.record_success(is_probe=job.is_probe)
            if closed:
                self.wake_resting_slots()
            return closed

    def record_failure(self, job: Job, settings: Settings) -> bool:
        """Note a failure for the breaker. Return True if that opened it."""
        with self._lock:
            breaker = self._breaker_of(job)
            opened = breaker.record_failure(
                limit=settings.breaker_failures,
                pause_s=float(settings.breaker_pause_s),
                now=time.monotonic(),
                is_probe=job.is_probe,
            )
            if breaker.open_until is not None:
                self._wake_timer_before(breaker.open_until)
            job.is_probe = False
            return opened

    def open_breaker_topics(self) -> set[str]:
        with self._lock:
            return {
                topic
                for topic, breaker in self._breakers.items()
                if breaker.open_until is not None
            }

    def close_breakers(self, topics: Iterable[str]) -> None:
        """Remove the breakers of subscriptions whose settings have none any more."""
        with self._lock:
            for topic in topics:
                self._breakers.pop(topic, None)
        self.wake_resting_slots()

    def retire_workers(self, count: int) -> None:
        """Let this many workers end when they ask for their next job."""
        with self._lock:
            self._workers_to_retire += count
            self.work.notify_all()

    def end(self) -> None:
        with self._lock:
            self.ending = True
            self.work.notify_all()
            self._timer.notify_all()

    def wait_for_overdue_jobs(self) -> list[Job]:
        """Wait for the next timer event, then make delayed and resting slots ready that are
        due.

        Return the jobs whose handlers have passed their deadline.
        """
        with self._lock:
            now = time.monotonic()
            self._timer_wakes_at = min(
                [
                    now + IDLE_S,
                    *(due_at for due_at, _, _ in self._delayed[:1]),
                    *(job.deadline for job in self._jobs_with_deadline if job.deadline),
                    # A breaker whose pause is over waits for the outcome of its probe, not
                    # for the timer.
                    *(
                        breaker.open_until
                        for breaker in self._breakers.values()
                        if breaker.open_until is not None and breaker.open_until > now
                    ),
                ]
            )
            self._timer.wait(max(0.0, self._timer_wakes_at - now))
            now = time.monotonic()
            while self._delayed and self._delayed[0][0] <= now:
                self._requeue([heapq.heappop(self._delayed)[2]])
            if any(breaker.open_until is not None for breaker in self._breakers.values()):
                self.wake_resting_slots()
            return [
                job
                for job in self._jobs_with_deadline
                if job.deadline is not None and job.deadline <= now
            ]

    def is_void(self, task: Task) -> bool:
        """Return True if a message must not be handled here any more: its queue was lost or
        moved.
        """
        owned = task.owned
        return (
            owned.lost
            or owned.halted
            or owned.revoked_until is not None
            or self.ending
            or owned.is_outdated(task.message.offset, task.version)
        )

    def is_barred(self, task: Task) -> bool:
        """Return True if no handler may begin on a message now."""
        return task.owned.blocks_handlers() or self.is_void(task)

    def _requeue(self, slots: Iterable[Slot]) -> None:
        """Make slots ready or let them rest.

        Void messages are dropped, and slots without messages.
        """
        for slot in slots:
            while slot.tasks and self.is_void(slot.tasks[0]):
                slot.tasks.popleft()
                slot.tries, slot.alone_count = 0, max(0, slot.alone_count - 1)
            if not slot.tasks:
                del self._slots[slot.key]
            elif self._must_rest(slot):
                self._resting.append(slot)
            else:
                self._ready.append(slot)
                self.work.notify()

    def _must_rest(self, slot: Slot) -> bool:
        """Return True if the first message of a slot must wait for its queue or its
        breaker.
        """
        # Reads the queue without the state's lock. A change of the queue is written before
        # wake_resting_slots() is called, so a slot that rests by an old value is woken.
        task = slot.tasks[0]
        if self.is_void(task):
            return False
        breaker = self._breakers.get(task.owned.subscription)
        return task.owned.blocks_handlers() or (
            breaker is not None and breaker.blocks(time.monotonic())
        )

    def _breaker_of(self, job: Job) -> Breaker:
        return self._breakers.setdefault(job.tasks[0].owned.subscription, Breaker())

    def _wake_timer_before(self, at: float) -> None:
        if at < self._timer_wakes_at:
            self._timer.notify_all()
