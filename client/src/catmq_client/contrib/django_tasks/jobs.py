"""A task as its message carries it."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any

from django.db import router, transaction

from catmq_client.contrib.django_tasks import connections
from catmq_client.contrib.django_tasks.compat import normalize_json
from catmq_client.contrib.django_tasks.conf import TaskSettings
from catmq_client.errors import CatmqError
from catmq_client.sending.new_messages import NewMessage

VERSION = 1
HEADER = "catmq-task"
MAX_TAG = 100
# What brokers take in a message, bytes; its headers need a little.
MOST_BYTES = 1024 * 1024 - 4096
# Brokers keep a message for 366 days. A task that is due later is sent on when this time is over.
MOST_DELAY_MS = 365 * 86_400_000
# A token rises by this with every message that is sent for a task, and by 1 with every delivery of one.
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
        """Return the token of a delivery; `attempt` is that of the message, in a retry topic or redriven."""
        return self.token + attempt * TOKENS_A_MESSAGE + deliveries

    def is_early(self) -> bool:
        """Return True if it came because brokers keep no message for longer."""
        return self.run_after_ms is not None and self.run_after_ms > now_ms() + 60_000

    def again(self, *, above: int, **changes: Any) -> Job:
        """Return what is sent next for the task: its tokens are above all that its last message may have."""
        token = (above // TOKENS_A_MESSAGE + 1) * TOKENS_A_MESSAGE
        return replace(self, token=token, run_after_ms=None, **changes)

    def body(self) -> bytes:
        """Return the body of its message. Raises ValueError for what is no JSON, or too large."""
        # Not asdict, which copies all arguments.
        told = {"v": VERSION, **{name: getattr(self, name) for name in _FIELDS}}
        data = _encoded(told, f"the arguments of task {self.path}")
        if len(data) > MOST_BYTES:
            raise ValueError(
                f"the arguments of task {self.path} are too large: its message has {len(data)} bytes, and "
                f"{MOST_BYTES} are allowed. Store them, and give their id"
            )
        return data


_FIELDS = dict.fromkeys(one.name for one in fields(Job))


def parse(body: bytes) -> Job:
    """Return the job of a message. Raises WrongMessage."""
    try:
        read = json.loads(body)
        version = read["v"]
        if version != VERSION:
            what = (
                f"a task of version {version}: this worker knows version {VERSION}; upgrade it, then redrive"
            )
            raise WrongMessage(what)
        # What a later release added is left out.
        return Job(**{name: value for name, value in read.items() if name in _FIELDS})
    except (ValueError, TypeError, KeyError) as error:
        raise WrongMessage(f"no message of a task: {error!r}") from error


def plain_of(value: Any, what: str) -> Any:
    """Return a value in types that JSON has. Raises TypeError or ValueError naming `what` is wrong."""
    try:
        return normalize_json(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{what} must be JSON: {error}") from error


def json_of(value: Any, what: str) -> Any:
    """Return a value that JSON can write. Raises TypeError or ValueError naming `what` is wrong."""
    plain = plain_of(value, what)
    _encoded(plain, what)
    return plain


def _encoded(plain: Any, what: str) -> bytes:
    try:
        # Not as \u escapes: those hide a lone surrogate, which MySQL does not take.
        return json.dumps(plain, separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        found = error.object[error.start]
        raise ValueError(f"{what} must be JSON: {found!r} is half of a character, no text") from None
    except (TypeError, ValueError) as error:
        raise type(error)(f"{what} must be JSON: {error}") from error


def alias_of(settings: TaskSettings) -> str:
    """Return the database of the outbox, and of the rows of tasks."""
    from catmq_client.contrib.django_outbox.models import OutboxMessage

    return router.db_for_write(OutboxMessage)


def message_of(job: Job, *, due_ms: int | None = None) -> NewMessage:
    """Return the message of a job, to be delivered at `due_ms`. Raises ValueError as Job.body()."""
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
