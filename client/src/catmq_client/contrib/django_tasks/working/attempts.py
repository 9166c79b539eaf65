"""Attempts of tasks, the deliveries that cause them, and the errors of attempts.

Rows store the import path of an error's class, so these classes must keep their names.
"""

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
    """An attempt exceeded its time limit. Its thread cannot be stopped."""

    # The stack of the attempt's thread; stored instead of the error's own traceback.
    stack_text: str | None = None


class ResultRefused(ValueError):
    """A task returned a value that no row can store: too large, or text that the database
    refuses.
    """


class TaskRecordMissing(CatmqError, code="task_record_missing"):
    """The task of a message has no row: the transaction that enqueued it was rolled back, or
    the row was deleted.
    """


class Delivery(Protocol):
    """A delivered message, which has to be accepted, released or rejected.

    In workers it is a ShareMessage.
    """

    @property
    def body(self) -> bytes: ...
    @property
    def message_id(self) -> str: ...
    # Number of failed attempts before this copy of the message: above 0 in a retry topic, and
    # after a redrive.
    @property
    def attempt(self) -> int: ...
    # How often this copy was delivered, including this delivery.
    @property
    def deliveries(self) -> int: ...
    def accept(self) -> bool: ...
    # Deliver the message again.
    def release(self) -> bool: ...
    # Store the message for a retry, or as a dead letter.
    def reject(self, error: BaseException | str = "") -> bool: ...


class Attempt:
    """A running attempt of a task. Its outcome is written once: by the thread that calls the
    task, or by the watchdog when the time limit is exceeded.
    """

    def __init__(self, claim: Claim, task: AnyTask, delivery: Delivery) -> None:
        self.claim: Claim = claim
        self.task: AnyTask = task
        self.delivery: Delivery = delivery
        self.result: AnyResult = claim.record.result(task)
        limit_s = claim.job.timeout
        self.deadline: float | None = (
            None if limit_s is None else time.monotonic() + limit_s
        )
        self.thread: int = threading.get_ident()
        self._lock, self._over = threading.Lock(), False

    def end(self) -> bool:
        """End the attempt. Return True to the first caller only, which writes the outcome."""
        with self._lock:
            was_over, self._over = self._over, True
            return not was_over

    def timeout_error(self) -> TaskTimeout:
        """Return the error for an attempt that exceeded its time limit, with the current
        stack of its thread.
        """
        error = TaskTimeout(
            f"task {self.claim.job.path} did not return within {self.claim.job.timeout} s"
        )
        frame = sys._current_frames().get(self.thread)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
        error.stack_text = f"{stack}{type(error).__name__}: {error}\n"
        return error


class ClaimedTask(NamedTuple):
    """A task that was claimed in a batch and has not been called yet."""

    claim: Claim
    task: AnyTask
