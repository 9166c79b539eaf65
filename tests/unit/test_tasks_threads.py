"""The threads of a worker of tasks: what ends when, with the interleaving forced."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

from catmq_client.contrib.django_tasks.working.threads import Threads
from tests.support.environment import ROOT
from tests.support.waiting import until


class Delivery:
    def __init__(self) -> None:
        self.released = False

    def release(self) -> bool:
        self.released = True
        return True


class Execution:
    """Handles a message when it may, and notes it."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.ended: list[Any] = []
        self.begun, self.may = threading.Event(), threading.Event()
        self.threads: Threads | None = None
        self.attempt: Any = None

    def claim_all(self, deliveries: Sequence[Any]) -> list[None]:
        return [None] * len(deliveries)

    def handle(self, delivery: Any, begun: None) -> None:
        if self.threads is not None:
            self.threads.attempt_began(self.attempt)
        self.begun.set()
        assert self.may.wait(10)
        self.done.append(delivery)

    def waiting_s(self) -> float:
        return 0.0

    def end(self, attempt: Any, error: BaseException) -> bool:
        self.ended.append(error)
        return True


class Attempt:
    deadline = 0.0
    delivery: Any = None

    def __init__(self, delivery: Any) -> None:
        self.delivery, self._ends = delivery, iter([True])

    def end(self) -> bool:
        return next(self._ends, False)

    def timeout_error(self) -> TimeoutError:
        return TimeoutError("too long")


def test_a_message_that_no_thread_has_taken_yet_is_waited_for() -> None:
    execution: Any = Execution()
    threads = Threads(1, execution)
    threads._work = queue.SimpleQueue()  # its thread waits at the former one
    first = Delivery()
    threads.put([first])  # type: ignore[arg-type]
    assert threads.is_busy()
    assert threads.drain(0.05) == [first], "it is not done, so it is given back"


def test_a_drain_ends_when_all_is_done() -> None:
    execution: Any = Execution()
    threads = Threads(2, execution)
    threads.put([Delivery()])  # type: ignore[arg-type]
    assert execution.begun.wait(10)
    threading.Timer(0.05, execution.may.set).start()
    assert threads.drain(10.0) == [] and len(execution.done) == 1


def test_a_thread_that_comes_back_while_it_is_given_up_is_not_given_up() -> None:
    execution: Any = Execution()
    threads = Threads(1, execution)
    delivery = Delivery()
    attempt: Any = Attempt(delivery)
    attempt.deadline = None  # the clock of the threads does not see it
    execution.threads, execution.attempt = threads, attempt
    threads.put([delivery])  # type: ignore[arg-type]
    assert execution.begun.wait(10)
    (me,) = threads._at_work
    execution.may.set()
    until(lambda: not threads.is_busy())
    threads._abandon(me, attempt)  # it was seen as late a moment before
    assert (threads.lost, threads.is_worn_out, execution.ended) == (0, False, [])
    assert threads.wait_for_idle(0.0) == 1
    assert threads.drain(1.0) == []


def test_a_thread_that_is_late_is_replaced_and_its_message_has_failed() -> None:
    execution: Any = Execution()
    threads = Threads(2, execution)
    delivery = Delivery()
    execution.threads, execution.attempt = threads, Attempt(delivery)
    threads.put([delivery])  # type: ignore[arg-type]
    until(lambda: threads.lost == 1)
    until(lambda: len(execution.ended) == 1)
    until(lambda: threads.wait_for_idle(0.0) == 2)
    assert not threads.is_worn_out and not threads.is_busy()
    execution.may.set()
    until(lambda: threads.lost == 0)
    assert threads.wait_for_idle(0.0) == 2, "the thread that came back does not stay"
    assert threads.drain(1.0) == []


def test_processes_that_have_nothing_left_to_do_are_not_replaced() -> None:
    program = (
        "from django.conf import settings; settings.configure()\n"
        "from catmq_client.contrib.django_tasks.working.processes import Supervisor\n"
        "Supervisor(2, lambda number: 0, drain_s=1.0, once=True).run()"
    )
    environ = {"PYTHONPATH": str(ROOT / "client/src"), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, timeout=30, check=False
    )
    assert done.returncode == 0
