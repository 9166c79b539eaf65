"""A worker process: receives tasks of a backend and runs them, until it is stopped.

The thread that calls `run` receives messages; the threads of a pool run the tasks. Another
thread relays the outbox (one relay of all workers is active), and another enqueues scheduled
tasks and deletes old rows. A worker stops in this order: it receives no more messages;
running tasks end; messages that are left are released to the group; the consumer leaves the
group; the relay ends.
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
from catmq_client.contrib.django_tasks.jobs import database_alias
from catmq_client.contrib.django_tasks.models import TaskRecord
from catmq_client.contrib.django_tasks.working import upkeep
from catmq_client.contrib.django_tasks.working.execution import Execution
from catmq_client.contrib.django_tasks.working.schedules import Schedules
from catmq_client.contrib.django_tasks.working.threads import Threads
from catmq_client.errors import CatmqError
from catmq_client.http.transport import Transport
from catmq_client.share_consumer import ShareConsumer
from catmq_client.sharing.dropping import DroppingReporter

log: logging.Logger = logging.getLogger("catmq.tasks")

# The thread that receives messages waits at most this long, so that it sees stop().
STEP_S = 0.5
# --batch: the queues count as empty if no message came for this long.
EMPTY_S = 2.0
# Every tenth pull prefers the lowest priority, so that it does not starve.
REVERSE_EVERY = 10
HEALTH_EVERY_S = 5.0
PRUNE_EVERY_S = 60.0
REPORT_EVERY_S = 300.0
CLOSE_S = 10.0


class WorkerFailed(CatmqError, code="worker_failed"):
    """A worker had to stop. Its running tasks were finished first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    threads: int = 8
    # Names of queues. None: all queues of the backend.
    queues: tuple[str, ...] | None = None
    # Unique name of the worker. None: made from host and process.
    worker_id: str | None = None
    # Stop when no task is left, or after this number of tasks.
    batch: bool = False
    max_tasks: int | None = None
    # Whether to relay the outbox, and how often to poll it.
    relay: bool = True
    relay_poll_ms: int = 50
    health_file: str | None = None
    # How long running tasks may take to end when the worker is stopped.
    drain_s: float = 30.0


class TaskConsumer(ShareConsumer):
    """A member of the share group of tasks. Without a retry node for dead letters, rejected
    messages are dropped. A ShareConsumer would end.
    """

    _reporter_class = DroppingReporter


class Worker:
    """Runs tasks. `stop` may be called from any thread."""

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
        self.worker_id: str = self._consumer.name
        # _stopped ends the receiving of messages, _relay_stopped the relay: messages that
        # the last tasks wrote to the outbox are sent, too.
        self._stopped = threading.Event()
        self._relay_stopped = threading.Event()
        self._helper_error: CatmqError | None = None
        self._execution = Execution(
            settings, self.worker_id, is_stopping=self._stopped.is_set, on_end=self._count
        )
        self._lock = threading.Lock()
        self._ended = {status.value: 0 for status in TaskRecord.Status}
        self._received, self._received_at = 0, time.monotonic()
        self._health_at = float("-inf")

    def stop(self) -> None:
        """Let `run` finish the running tasks and return."""
        self._stopped.set()
        self._consumer.stop()

    def run(self) -> None:
        """Run tasks until stop(). Raises WorkerFailed, and errors that end a consumer, such
        as ConsumerReplaced.
        """
        # With "kill" the first abandoned thread ends the process, and with it the thread.
        max_lost = 1 if self._settings.on_timeout == "kill" else None
        threads = Threads(self._options.threads, self._execution, max_lost=max_lost)
        self._execution.on_begin = threads.attempt_began
        helpers = [self._start_helper(self._maintain, "catmq-task-upkeep")]
        if self._options.relay:
            helpers.append(self._start_helper(self._relay, "catmq-task-relay"))
        try:
            while (
                not self._stopped.is_set()
                and not threads.is_worn_out
                and not self._is_done(threads)
            ):
                self._write_health(threads)
                room = threads.wait_for_idle(STEP_S)
                if self._options.max_tasks is not None:
                    room = min(room, self._options.max_tasks - self._received)
                if room and (messages := self._consumer.poll(room, timeout_s=STEP_S)):
                    self._received += len(messages)
                    self._received_at = time.monotonic()
                    threads.put(messages)
        finally:
            self._shut_down(threads, helpers)
        if self._helper_error is not None:
            raise self._helper_error
        if threads.is_worn_out:
            raise WorkerFailed(
                f"worker {self.worker_id}: {threads.lost} of {threads.count} threads are stuck "
                "in tasks that exceeded their time limit: start it again"
            )

    def _is_done(self, threads: Threads) -> bool:
        """Return True if --max-tasks or --batch ends the worker."""
        if (
            self._options.max_tasks is not None
            and self._received >= self._options.max_tasks
        ):
            return True
        if not self._options.batch or time.monotonic() - self._received_at < EMPTY_S:
            return False
        if threads.is_busy() or not self._options.relay:
            return not threads.is_busy()
        # Tasks that are still in the outbox are left, too.
        close_old_connections()
        return Claims(self.worker_id, using=database_alias(self._settings)).is_idle()

    def _shut_down(self, threads: Threads, helpers: list[threading.Thread]) -> None:
        self._stopped.set()
        for delivery in threads.drain(self._options.drain_s):
            log.warning(
                "message %s was not done in time: it is delivered again",
                delivery.message_id,
            )
            delivery.release()
        self._consumer.close(CLOSE_S)
        self._relay_stopped.set()
        for helper in helpers:
            helper.join(CLOSE_S)
        if self._options.health_file:
            Path(self._options.health_file).unlink(missing_ok=True)
        with self._lock:
            counts = [
                f"{status.lower()} {number}"
                for status, number in self._ended.items()
                if number
            ]
        log.info("worker %s: ended; %s", self.worker_id, ", ".join(counts) or "no tasks")

    def _start_helper(self, work: Callable[[], None], name: str) -> threading.Thread:
        """Start a thread. An error in it stops the worker."""

        def run() -> None:
            try:
                work()
            except CatmqError as error:
                log.error("worker %s: %s", self.worker_id, error)
                self._helper_error = error
                self.stop()
            except Exception as error:
                log.exception(
                    "worker %s: internal error in its thread %s", self.worker_id, name
                )
                self._helper_error = WorkerFailed(
                    f"worker {self.worker_id}: its thread {name} ended: {error!r}"
                )
                self.stop()
            finally:
                connections.close_all()

        helper = threading.Thread(target=run, name=name, daemon=True)
        helper.start()
        return helper

    def _relay(self) -> None:
        alias = database_alias(self._settings)
        with listening(alias) as listener:
            address = "" if listener is None else listener.address
            RelayLoop(
                Relay(
                    self._transport, Claims(new_relay_name(), using=alias, address=address)
                ),
                say=lambda text: log.info("relay: %s", text),
                stop=self._relay_stopped,
                poll_s=self._options.relay_poll_ms / 1000,
                report_s=REPORT_EVERY_S,
                listener=listener,
            ).run()

    def _maintain(self) -> None:
        """Enqueue scheduled tasks and delete old rows, however busy the worker is."""
        schedules, prune_at, is_first = Schedules(self._settings), time.monotonic(), True
        while not self._stopped.is_set():
            wait_s = PRUNE_EVERY_S
            close_old_connections()
            try:
                if is_first:
                    upkeep.warn_of_old_tasks(self._settings)
                    is_first = False
                wait_s = schedules.run_due()
                while time.monotonic() >= prune_at and not self._stopped.is_set():
                    # A full batch: there may be more rows to delete.
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

    def _write_health(self, threads: Threads) -> None:
        """Write the health file. Monitoring looks at its age; its content is for people."""
        if (
            not self._options.health_file
            or time.monotonic() - self._health_at < HEALTH_EVERY_S
        ):
            return
        self._health_at = time.monotonic()
        # Stuck: the file gets old, so that monitoring restarts the process.
        if threads.is_stuck():
            return
        health = {
            "worker": self.worker_id,
            "pid": os.getpid(),
            "running": threads.running(),
            "stuck_threads": threads.lost,
            "ended": self._ended,
        }
        path = Path(self._options.health_file)
        # A rename is atomic: a reader never sees half of the file.
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        draft.write_text(json.dumps(health) + "\n")
        draft.replace(path)
