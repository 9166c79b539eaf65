"""A task as its message carries it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any

from django.db import router, transaction

from catmq_client.admin.calls import NAME
from catmq_client.contrib.django_tasks import connections
from catmq_client.contrib.django_tasks.compat import normalize_json
from catmq_client.contrib.django_tasks.conf import (
    LEAST_PRIORITY,
    MOST_PRIORITY,
    TaskSettings,
)
from catmq_client.errors import CatmqError
from catmq_client.sending.new_messages import NewMessage

VERSION = 1
HEADER = "catmq-task"
MAX_TAG = 100
# What brokers take in a message, bytes; its headers need a little.
MOST_BYTES = 1024 * 1024 - 4096
# Brokers keep a message for 366 days. A task that is due later is sent on when this time is
# over.
MOST_DELAY_MS = 365 * 86_400_000
# Nesting of arguments; MySQL keeps no JSON that is deeper.
MAX_DEPTH = 100
# Attempts that a message may name: an operator may have added some to those of the
# settings.
MAX_COUNT = 10_000
MAX_TIMEOUT_S = 10**9
# The last day that a datetime has, ms since 1970.
MAX_TIME_MS = 253_402_214_400_000
# Of a BigIntegerField, with room for the deliveries of one message and the next ones.
MAX_TOKEN = 2**62
MAX_REASON = 300
# A token rises by this with every message that is sent for a task, and by 1 with every
# delivery of one.
TOKENS_A_MESSAGE = 65_536


class WrongMessage(CatmqError, code="wrong_task_message"):
    """A message of a topic of tasks is none, or of a later release."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A call of a task."""

    id: str
    path: str
    args: list[Any]
    kwargs: dict[str, Any]
    backend: str
    queue: str
    priority: int
    max_attempts: int
    # Of an attempt, s.
    timeout: int | None = None
    # When it is due, and when it was enqueued, ms since 1970.
    run_after_ms: int | None = None
    enqueued_at_ms: int = 0
    # What the tokens of its deliveries begin at.
    token: int = 0
    # Attempts before this message; only without a row, which counts them itself.
    attempts: int = 0
    # How often it was put off without an attempt.
    waits: int = 0
    # It went past the outbox: its row may not be committed yet.
    is_direct: bool = False

    def token_of(self, *, attempt: int, deliveries: int) -> int:
        """Return the token of a delivery; `attempt` is that of the message, in a retry
        topic or redriven.
        """
        return self.token + attempt * TOKENS_A_MESSAGE + deliveries

    def is_early(self) -> bool:
        """Return True if it came because brokers keep no message for longer."""
        return self.run_after_ms is not None and self.run_after_ms > now_ms() + 60_000

    def again(self, *, above: int, **changes: Any) -> Job:
        """Return what is sent next for the task: its tokens are above all that its last
        message may have.
        """
        token = (above // TOKENS_A_MESSAGE + 1) * TOKENS_A_MESSAGE
        return replace(self, token=token, run_after_ms=None, **changes)

    def body(self) -> bytes:
        """Return the body of its message. Raises ValueError for what is no JSON, or too
        large.
        """
        if is_deeper(self.args, MAX_DEPTH) or is_deeper(self.kwargs, MAX_DEPTH):
            raise ValueError(
                f"the arguments of task {self.path} are nested deeper than {MAX_DEPTH} "
                "levels: store them, "
                "and give their id"
            )
        # Not asdict, which copies all arguments.
        told = {"v": VERSION, **{name: getattr(self, name) for name in _FIELDS}}
        data = _encoded(told, f"the arguments of task {self.path}")
        if len(data) > MOST_BYTES:
            raise ValueError(
                f"the arguments of task {self.path} are too large: its message has "
                f"{len(data)} bytes, and "
                f"{MOST_BYTES} are allowed. Store them, and give their id"
            )
        return data


_FIELDS = dict.fromkeys(one.name for one in fields(Job))


def parse(body: bytes) -> Job:
    """Return the job of a message. Raises WrongMessage.

    Anybody with the right to produce may have written the body, so each value is checked:
    one that only fails later would be delivered again and again.
    """
    try:
        values = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise WrongMessage(f"no message of a task: {error!r}") from error
    if not isinstance(values, dict) or "v" not in values:
        raise WrongMessage("no message of a task: it has no version")
    version = values["v"]
    if version != VERSION:
        problem = (
            f"a task of version {version!r}: this worker knows version {VERSION}; "
            "upgrade it, then redrive"
        )
        raise WrongMessage(problem[:MAX_REASON])
    # Fields that a later release added are left out.
    fields_given = {name: value for name, value in values.items() if name in _FIELDS}
    for name, value in fields_given.items():
        if not _CHECKS[name](value):
            raise WrongMessage(f"no message of a task: {name} is {value!r}"[:MAX_REASON])
    try:
        return Job(**fields_given)
    except TypeError as error:
        raise WrongMessage(f"no message of a task: {error}") from error


def _is_text(most: int) -> Callable[[Any], bool]:
    # A lone surrogate has no UTF-8, and PostgreSQL takes no NUL.
    return lambda value: (
        isinstance(value, str)
        and len(value) <= most
        and "\0" not in value
        and not _SURROGATE.search(value)
    )


def _is_whole(least: int, most: int, *, is_optional: bool = False) -> Callable[[Any], bool]:
    return lambda value: (
        (value is None and is_optional) or (type(value) is int and least <= value <= most)
    )


def is_deeper(value: Any, depth: int) -> bool:
    """Return True if lists and dicts are nested in a value deeper than that.

    >>> is_deeper([[1]], 2), is_deeper({"a": [[1]]}, 2)
    (False, True)
    """
    containers = [value] if isinstance(value, list | dict | tuple) else []
    while containers and depth:
        depth -= 1
        contents = [
            item.values() if isinstance(item, dict) else item for item in containers
        ]
        containers = [
            item
            for items in contents
            for item in items
            if isinstance(item, list | dict | tuple)
        ]
    return bool(containers)


_SURROGATE = re.compile("[\ud800-\udfff]")
_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "id": lambda value: (
        isinstance(value, str) and bool(re.fullmatch(r"[0-9a-z_-]{1,32}", value))
    ),
    "path": _is_text(255),
    "args": lambda value: isinstance(value, list) and not is_deeper(value, MAX_DEPTH),
    "kwargs": lambda value: isinstance(value, dict) and not is_deeper(value, MAX_DEPTH),
    "backend": _is_text(128),
    "queue": lambda value: isinstance(value, str) and bool(NAME.fullmatch(value)),
    "priority": _is_whole(LEAST_PRIORITY, MOST_PRIORITY),
    "max_attempts": _is_whole(1, MAX_COUNT),
    "timeout": _is_whole(1, MAX_TIMEOUT_S, is_optional=True),
    "run_after_ms": _is_whole(0, MAX_TIME_MS, is_optional=True),
    "enqueued_at_ms": _is_whole(0, MAX_TIME_MS),
    "token": _is_whole(0, MAX_TOKEN),
    "attempts": _is_whole(0, MAX_COUNT),
    "waits": _is_whole(0, MAX_TOKEN),
    "is_direct": lambda value: isinstance(value, bool),
}


def plain_of(value: Any, what: str) -> Any:
    """Return a value in types that JSON has. Raises TypeError or ValueError naming `what`
    is wrong.
    """
    try:
        return normalize_json(value)
    except RecursionError as error:
        raise ValueError(f"{what} must be JSON: they are nested too deep") from error
    except (TypeError, ValueError) as error:
        raise type(error)(f"{what} must be JSON: {error}") from error


def json_of(value: Any, what: str) -> Any:
    """Return a value that JSON can write. Raises TypeError or ValueError naming `what` is
    wrong.
    """
    plain = plain_of(value, what)
    _encoded(plain, what)
    return plain


def _encoded(plain: Any, what: str) -> bytes:
    try:
        # Not as \u escapes: those hide a lone surrogate, which MySQL does not take.
        return json.dumps(
            plain, separators=(",", ":"), allow_nan=False, ensure_ascii=False
        ).encode()
    except UnicodeEncodeError as error:
        found = error.object[error.start]
        raise ValueError(
            f"{what} must be JSON: {found!r} is half of a character, no text"
        ) from None
    except RecursionError as error:
        raise ValueError(f"{what} must be JSON: they are nested too deep") from error
    except (TypeError, ValueError) as error:
        raise type(error)(f"{what} must be JSON: {error}") from error


def alias_of(settings: TaskSettings) -> str:
    """Return the database of the outbox, and of the rows of tasks."""
    from catmq_client.contrib.django_outbox.models import OutboxMessage

    return router.db_for_write(OutboxMessage)


def message_of(job: Job, *, due_ms: int | None = None) -> NewMessage:
    """Return the message of a job, to be delivered at `due_ms`. Raises ValueError as
    Job.body().
    """
    return NewMessage(
        job.body(),
        tag=job.path.rpartition(".")[2][:MAX_TAG],
        headers={HEADER: "1"},
        trace_id=job.id,
        deliver_at=_deliver_at(due_ms),
    )


def send(job: Job, settings: TaskSettings, *, due_ms: int | None = None) -> None:
    """Send a job, to be delivered at `due_ms`.

    Through the outbox it is a part of the transaction under way, if there is one.
    """
    from catmq_client.contrib.django_outbox import outbox

    topic, message = settings.topic(job.queue, job.priority), message_of(job, due_ms=due_ms)
    if job.is_direct:
        sent = connections.producer().send_batch(topic, [message])[0]
        if isinstance(sent, CatmqError):
            raise sent
        return
    alias = alias_of(settings)
    with transaction.atomic(using=alias, savepoint=False):
        outbox.send_batch(topic, [message], using=alias)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def _deliver_at(due_ms: int | None) -> datetime | None:
    now = now_ms()
    if due_ms is None or due_ms <= now:
        return None
    return datetime.fromtimestamp(min(due_ms, now + MOST_DELAY_MS) / 1000, UTC)
