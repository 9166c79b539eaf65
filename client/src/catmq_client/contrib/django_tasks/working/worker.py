"""A worker process: receives tasks of a backend and runs them, until it is stopped.

One thread, that of `run`, takes messages; the others only work. Beside them a relay carries
the outbox (of several one works), and one thread enqueues what schedules say and deletes
old rows. The order of the end: no more messages; tasks at work end; what is left goes back
to the group; the membership ends; then the relay.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from django.db import DatabaseError, InterfaceError, close_old_connections, connections

from catmq_client.contrib.django_outbox.claims import Claims
from catmq_client.contrib.django_outbox.notify import listening
from catmq_client.contrib.django_outbox.relay import Relay, new_relay_name
from catmq_client.contrib.django_outbox.relay_loop import RelayLoop
from catmq_client.contrib.django_tasks.conf import TaskSettings
from catmq_client.contrib.django_tasks.jobs import alias_of
from catmq_client.contrib.django_tasks.models import TaskRecord
from catmq_client.contrib.django_tasks.working import upkeep
from catmq_client.contrib.django_tasks.working.execution import Execution
from catmq_client.contrib.django_tasks.working.schedules import Schedules
from catmq_client.contrib.django_tasks.working.threads import Threads
from catmq_client.errors import CatmqError
from catmq_client.http.transport import Transport
from catmq_client.share_consumer import ShareConsumer
from catmq_client.sharing.dropping import DroppingReporter

log = logging.getLogger("catmq.tasks")

# How long the thread that takes messages waits for something to do, s.
STEP_S = 0.5
# --batch: the queues count as empty when nothing came for so long, s.
EMPTY_S = 2.0
# Each pull of so many prefers the lowest priority.
REVERSE_EVERY = 10
HEALTH_EVERY_S = 5.0
PRUNE_EVERY_S = 60.0
REPORT_EVERY_S = 300.0
CLOSE_S = 10.0


class WorkerFailed(CatmqError, code="worker_failed"):
    """A worker cannot go on; its tasks at work were finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Options of catmq_worker."""

    threads: int = 8
    # Names of queues; None: all of the backend.
    queues: tuple[str, ...] | None = None
    # Tells workers apart; None: made of host and process.
    worker_id: str | None = None
    # End when nothing is left, or after so many tasks.
    batch: bool = False
    max_tasks: int | None = None
    # Carry the outbox as well, and how often to look into it, ms.
    relay: bool = True
    relay_poll_ms: int = 50
    health_file: str | None = None
    # How long tasks at work may take to end when the worker is stopped, s.
    drain_s: float = 30.0


class TaskConsumer(ShareConsumer):
    """A member of the share group of tasks: a message that is rejected never ends it."""

    def _assemble(self) -> None:
        handle_error = self._membership.handle_error
        self._reporter = DroppingReporter(
            transport=self._transport, state=self._state, handle_error=handle_error
        )
        super()._assemble()


class Worker:
    """Runs tasks; `stop` may be called from any thread."""

    def __init__(
        self, settings: TaskSettings, transport: Transport, options: WorkerOptions
    ) -> None:
        self._settings, self._transport, self._options = settings, transport, options
        self._consumer = TaskConsumer(
            transport=transport,
            group=settings.group,
            topics=settings.topics(options.queues),
            name=options.worker_id,
            auto_accept=False,
            reverse_topics_every=REVERSE_EVERY,
        )
        self.worker_id = self._consumer.name
        self._stopped = threading.Event()
        self._over = threading.Event()
        self._trouble: CatmqError | None = None
        self._execution = Execution(
            settings, self.worker_id, is_stopping=self._stopped.is_set, on_end=self._count
        )
        self._lock = threading.Lock()
        self._ended = {status.value: 0 for status in TaskRecord.Status}
        self._taken, self._taken_at, self._health_at = 0, time.monotonic(), float("-inf")

    def stop(self) -> None:
        """End `run` in order."""
        self._stopped.set()
        self._consumer.stop()

    def run(self) -> None:
        """Run tasks until stop(). Raises WorkerFailed, and what ends a consumer, such as
        ConsumerReplaced.
        """
        most_lost = 1 if self._settings.on_timeout == "kill" else None
        threads = Threads(self._options.threads, self._execution, most_lost=most_lost)
        self._execution.on_begin = threads.begun
        helpers = [self._help(self._keep_up, "catmq-task-upkeep")]
        if self._options.relay:
            helpers.append(self._help(self._relay, "catmq-task-relay"))
        try:
            self._take_all(threads)
        finally:
            self._end(threads, helpers)
        if self._trouble is not None:
            raise self._trouble
        if threads.is_worn_out:
            what = (
                f"{threads.lost} of {threads.count} threads are stuck in tasks that "
                "exceeded their time limit"
            )
            raise WorkerFailed(f"worker {self.worker_id}: {what}: start it again")

    def _take_all(self, threads: Threads) -> None:
        while (
            not self._stopped.is_set()
            and not threads.is_worn_out
            and not self._is_done(threads)
        ):
            self._write_health(threads)
            room = threads.wait_for_idle(STEP_S)
            if self._options.max_tasks is not None:
                room = min(room, self._options.max_tasks - self._taken)
            if not room:
                continue
            if taken := self._consumer.poll(room, timeout_s=STEP_S):
                self._taken, self._taken_at = self._taken + len(taken), time.monotonic()
                threads.put(taken)

    def _is_done(self, threads: Threads) -> bool:
        if self._options.max_tasks is not None and self._taken >= self._options.max_tasks:
            return True
        if not self._options.batch or time.monotonic() - self._taken_at < EMPTY_S:
            return False
        return not threads.is_busy() and (not self._options.relay or self._is_relayed())

    def _is_relayed(self) -> bool:
        close_old_connections()
        return Claims(self.worker_id, using=alias_of(self._settings)).is_idle()

    def _end(self, threads: Threads, helpers: list[threading.Thread]) -> None:
        self._stopped.set()
        left = threads.drain(self._options.drain_s)
        for delivery in left:
            log.warning(
                "message %s was not done in time: it is delivered again",
                delivery.message_id,
            )
            delivery.release()
        self._consumer.close(CLOSE_S)
        self._over.set()
        for helper in helpers:
            helper.join(CLOSE_S)
        if self._options.health_file:
            Path(self._options.health_file).unlink(missing_ok=True)
        log.info("worker %s: ended; %s", self.worker_id, self._told())

    def _help(self, work: Callable[[], None], name: str) -> threading.Thread:
        """Start a thread; a worker whose helper cannot go on ends."""

        def run() -> None:
            try:
                work()
            except CatmqError as error:
                log.error("worker %s: %s", self.worker_id, error)
                self._trouble = error
                self.stop()
            except Exception as error:
                log.exception(
                    "worker %s: internal error in its thread %s", self.worker_id, name
                )
                self._trouble = WorkerFailed(
                    f"worker {self.worker_id}: its thread {name} ended: {error!r}"
                )
                self.stop()
            finally:
                connections.close_all()

        helper = threading.Thread(target=run, name=name, daemon=True)
        helper.start()
        return helper

    def _relay(self) -> None:
        alias = alias_of(self._settings)
        with listening(alias) as listener:
            address = "" if listener is None else listener.address
            relay = Relay(
                self._transport, Claims(new_relay_name(), using=alias, address=address)
            )
            running = RelayLoop(
                relay,
                say=lambda text: log.info("relay: %s", text),
                stop=self._over,
                poll_s=self._options.relay_poll_ms / 1000,
                report_s=REPORT_EVERY_S,
                listener=listener,
            )
            running.run()

    def _keep_up(self) -> None:
        """Enqueue what schedules say, and delete old rows; neither waits for idleness."""
        schedules, prune_at, is_first = Schedules(self._settings), time.monotonic(), True
        while not self._stopped.is_set():
            wait_s = PRUNE_EVERY_S
            close_old_connections()
            try:
                if is_first:
                    upkeep.warn_of_old(self._settings)
                    is_first = False
                wait_s = schedules.run_due()
                while time.monotonic() >= prune_at and not self._stopped.is_set():
                    if upkeep.prune(self._settings) < upkeep.PRUNE_ROWS:
                        prune_at = time.monotonic() + PRUNE_EVERY_S
            except (DatabaseError, InterfaceError) as error:
                log.warning(
                    "schedules and clean-up wait, the application's database cannot be used: %s",
                    error,
                )
                wait_s = STEP_S
            self._stopped.wait(min(wait_s, PRUNE_EVERY_S))

    def _count(self, record: TaskRecord) -> None:
        with self._lock:
            self._ended[record.status] += 1

    def _told(self) -> str:
        with self._lock:
            done = {
                status.lower(): number for status, number in self._ended.items() if number
            }
        return ", ".join(f"{name} {number}" for name, number in done.items()) or "no tasks"

    def _write_health(self, threads: Threads) -> None:
        """Write down that this process works: the age of the file tells, its content is for
        people.
        """
        if (
            not self._options.health_file
            or time.monotonic() - self._health_at < HEALTH_EVERY_S
        ):
            return
        self._health_at = time.monotonic()
        if threads.is_stuck():
            return
        told = {
            "worker": self.worker_id,
            "pid": os.getpid(),
            "running": threads.running(),
            "stuck_threads": threads.lost,
            "ended": self._ended,
        }
        path = Path(self._options.health_file)
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        draft.write_text(json.dumps(told) + "\n")
        draft.replace(path)
