"""An attempt of a task, the message that asked for it, and the errors of attempts."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from typing import NamedTuple, Protocol

from catmq_client.contrib.django_tasks.task import AnyResult, AnyTask
from catmq_client.contrib.django_tasks.working.records import Claim
from catmq_client.errors import CatmqError


class TaskTimeout(CatmqError, code="task_timeout"):
    """An attempt took longer than it may; its thread cannot be stopped."""

    # Where its thread was.
    told: str | None = None


class ResultRefused(ValueError):
    """A task returned what no row can have: too much, or text that the database refuses."""


class TaskRecordMissing(CatmqError, code="task_record_missing"):
    """A message of a task without a row: its transaction was rolled back, or the row was
    deleted.
    """


class Delivery(Protocol):
    """A message, and what is said of it."""

    @property
    def body(self) -> bytes: ...
    @property
    def message_id(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def deliveries(self) -> int: ...
    def accept(self) -> bool: ...
    def release(self) -> bool: ...
    def reject(self, error: BaseException | str = "") -> bool: ...


class Attempt:
    """A task at work. Its end is written once: by the thread that calls it, or by the
    clock.
    """

    def __init__(self, claim: Claim, task: AnyTask, delivery: Delivery) -> None:
        self.claim, self.task, self.delivery = claim, task, delivery
        self.result: AnyResult = claim.record.result(task)
        limit_s = claim.job.timeout
        self.deadline = None if limit_s is None else time.monotonic() + limit_s
        self.thread = threading.get_ident()
        self._lock, self._over = threading.Lock(), False

    def end(self) -> bool:
        """Return True to the first who asks: it writes the end."""
        with self._lock:
            was_over, self._over = self._over, True
            return not was_over

    def timed_out(self) -> TaskTimeout:
        """Return the error of an attempt that takes too long, with the place where it is."""
        error = TaskTimeout(
            f"task {self.claim.job.path} did not return within {self.claim.job.timeout} s"
        )
        frame = sys._current_frames().get(self.thread)
        where = "".join(traceback.format_stack(frame)) if frame is not None else ""
        error.told = f"{where}{type(error).__name__}: {error}\n"
        return error


class Begun(NamedTuple):
    """A task that was claimed together with others, and is to be called."""

    claim: Claim
    task: AnyTask
