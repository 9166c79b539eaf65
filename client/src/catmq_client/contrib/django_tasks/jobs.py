"""The message format of a task: a job, its JSON body, and the checks of both."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any

from django.db import router, transaction

from catmq_client.admin.calls import NAME
from catmq_client.contrib.django_tasks import connections
from catmq_client.contrib.django_tasks.compat import normalize_json
from catmq_client.contrib.django_tasks.conf import (
    MAX_PRIORITY,
    MIN_PRIORITY,
    TaskSettings,
)
from catmq_client.errors import CatmqError
from catmq_client.sending.new_messages import NewMessage

VERSION = 1
HEADER = "catmq-task"
MAX_TAG = 100
# Brokers take 1 MiB in a message by default. The rest is for its headers.
MAX_BYTES = 1024 * 1024 - 4096
# Brokers keep a message for at most 366 days. A task that is due later is sent again when
# this time has passed.
MAX_DELAY_MS = 365 * 86_400_000
# Nesting of arguments. MySQL stores no JSON that is deeper.
MAX_DEPTH = 100
# Limit of max_attempts in a message. It is higher than that of the settings, because an
# operator may have added attempts.
MAX_COUNT = 10_000
MAX_TIMEOUT_S = 10**9
# The last day that datetime supports, ms since 1970.
MAX_TIME_MS = 253_402_214_400_000
# Half of a BigIntegerField's range: the tokens of later messages still fit.
MAX_TOKEN = 2**62
MAX_REASON = 300
# A task's token rises by this with every message that is sent for it, and by 1 with every
# delivery of such a message.
TOKENS_A_MESSAGE = 65_536


class WrongMessage(CatmqError, code="wrong_task_message"):
    """A message in a topic of tasks is not a task, or was sent by a later release."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A call of a task, as its message contains it. The fields are the keys of the JSON."""

    id: str
    path: str
    args: list[Any]
    kwargs: dict[str, Any]
    backend: str
    queue: str
    priority: int
    max_attempts: int
    # Seconds that an attempt may take.
    timeout: int | None = None
    # When the task is due, and when it was enqueued, ms since 1970.
    run_after_ms: int | None = None
    enqueued_at_ms: int = 0
    # The tokens of this message's deliveries begin after this number.
    token: int = 0
    # Attempts before this message. Only used without rows; a row counts them itself.
    attempts: int = 0
    # How often the task was postponed without an attempt.
    waits: int = 0
    # The message was not sent by the outbox, so the row may not be committed yet.
    is_direct: bool = False

    def delivery_token(self, *, attempt: int, deliveries: int) -> int:
        """Return the token of a delivery. `attempt` is the message's own count of attempts,
        which is above 0 in a retry topic or after a redrive.
        """
        return self.token + attempt * TOKENS_A_MESSAGE + deliveries

    def is_early(self) -> bool:
        """Return True if the message came before the task is due. Brokers keep no message for
        longer than MAX_DELAY_MS.
        """
        return self.run_after_ms is not None and self.run_after_ms > now_ms() + 60_000

    def next_job(self, *, above: int, **changes: Any) -> Job:
        """Return the job of the next message for the task.

        `above` is the token of the current delivery. All tokens of the next message are
        higher than those of all deliveries of the current one.
        """
        token = (above // TOKENS_A_MESSAGE + 1) * TOKENS_A_MESSAGE
        return replace(self, token=token, run_after_ms=None, **changes)

    def body(self) -> bytes:
        """Return the message's body. Raises ValueError if the arguments are no JSON or too
        large.
        """
        if is_nested_deeper(self.args, MAX_DEPTH) or is_nested_deeper(
            self.kwargs, MAX_DEPTH
        ):
            raise ValueError(
                f"the arguments of task {self.path} are nested deeper than {MAX_DEPTH} "
                "levels: store them, and give their id"
            )
        # dataclasses.asdict would copy all arguments.
        data = _encode_json(
            {"v": VERSION, **{name: getattr(self, name) for name in _FIELDS}},
            f"the arguments of task {self.path}",
        )
        if len(data) > MAX_BYTES:
            raise ValueError(
                f"the arguments of task {self.path} are too large: its message has "
                f"{len(data)} bytes, and "
                f"{MAX_BYTES} are allowed. Store them, and give their id"
            )
        return data


_FIELDS = dict.fromkeys(field.name for field in fields(Job))


def parse(body: bytes) -> Job:
    """Return the job in a message's body. Raises WrongMessage.

    Any client that may produce to the topic may have written the body, so each value is
    checked here. A value that fails only later would be delivered again and again.
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
    # Fields that a later release added are ignored.
    job_values = {name: value for name, value in values.items() if name in _FIELDS}
    for name, value in job_values.items():
        if not _CHECKS[name](value):
            raise WrongMessage(f"no message of a task: {name} is {value!r}"[:MAX_REASON])
    try:
        return Job(**job_values)
    except TypeError as error:
        raise WrongMessage(f"no message of a task: {error}") from error


def _is_text(max_length: int) -> Callable[[Any], bool]:
    # A lone surrogate has no UTF-8 encoding, and PostgreSQL stores no NUL.
    return lambda value: (
        isinstance(value, str)
        and len(value) <= max_length
        and "\0" not in value
        and not _SURROGATE.search(value)
    )


def _is_integer(
    minimum: int, maximum: int, *, is_optional: bool = False
) -> Callable[[Any], bool]:
    # type() and not isinstance(): True and False are no numbers here.
    return lambda value: (
        (value is None and is_optional)
        or (type(value) is int and minimum <= value <= maximum)
    )


def is_nested_deeper(value: Any, depth: int) -> bool:
    """Return True if lists and dicts are nested in a value more than `depth` levels deep.

    >>> is_nested_deeper([[1]], 2), is_nested_deeper({"a": [[1]]}, 2)
    (False, True)
    """
    # Level by level: a recursion could exceed the stack.
    containers = [value] if isinstance(value, list | dict | tuple) else []
    while containers and depth:
        depth -= 1
        containers = [
            element
            for container in containers
            for element in (
                container.values() if isinstance(container, dict) else container
            )
            if isinstance(element, list | dict | tuple)
        ]
    return bool(containers)


def _is_storable(value: Any) -> bool:
    """Return True for arguments that the next message of their task can contain, too.

    The JSON decoder accepts NaN, infinite numbers and lone surrogates, the encoder does not.
    """
    if is_nested_deeper(value, MAX_DEPTH):
        return False
    try:
        _encode_json(value, "the arguments")
    except (TypeError, ValueError):
        return False
    return True


_SURROGATE = re.compile("[\ud800-\udfff]")
_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "id": lambda value: (
        isinstance(value, str) and bool(re.fullmatch(r"[0-9a-z_-]{1,32}", value))
    ),
    "path": _is_text(255),
    "args": lambda value: isinstance(value, list) and _is_storable(value),
    "kwargs": lambda value: isinstance(value, dict) and _is_storable(value),
    "backend": _is_text(128),
    "queue": lambda value: isinstance(value, str) and bool(NAME.fullmatch(value)),
    "priority": _is_integer(MIN_PRIORITY, MAX_PRIORITY),
    "max_attempts": _is_integer(1, MAX_COUNT),
    "timeout": _is_integer(1, MAX_TIMEOUT_S, is_optional=True),
    "run_after_ms": _is_integer(0, MAX_TIME_MS, is_optional=True),
    "enqueued_at_ms": _is_integer(0, MAX_TIME_MS),
    "token": _is_integer(0, MAX_TOKEN),
    "attempts": _is_integer(0, MAX_COUNT),
    "waits": _is_integer(0, MAX_TOKEN),
    "is_direct": lambda value: isinstance(value, bool),
}


@contextmanager
def _errors_with_subject(subject: str) -> Iterator[None]:
    """Let errors of a JSON conversion name the value."""
    try:
        yield
    except UnicodeEncodeError as error:
        surrogate = error.object[error.start]
        raise ValueError(
            f"{subject} must be JSON: {surrogate!r} is half of a character, no text"
        ) from None
    except RecursionError as error:
        raise ValueError(f"{subject} must be JSON: they are nested too deep") from error
    except (TypeError, ValueError) as error:
        raise type(error)(f"{subject} must be JSON: {error}") from error


def to_json_types(value: Any, subject: str) -> Any:
    """Return a value with only the types of JSON, for example lists instead of tuples.

    Raises TypeError or ValueError, whose text begins with `subject`.
    """
    with _errors_with_subject(subject):
        return normalize_json(value)


def to_storable_json(value: Any, subject: str) -> Any:
    """Return a value with only the types of JSON, and check that JSON can be written from it.

    Raises TypeError or ValueError, whose text begins with `subject`.
    """
    json_value = to_json_types(value, subject)
    # The conversion lets NaN and half characters pass; only the encoder refuses them.
    _encode_json(json_value, subject)
    return json_value


def _encode_json(json_value: Any, subject: str) -> bytes:
    with _errors_with_subject(subject):
        # Without \u escapes: those hide a lone surrogate, which MySQL does not store.
        return json.dumps(
            json_value, separators=(",", ":"), allow_nan=False, ensure_ascii=False
        ).encode()


def database_alias(settings: TaskSettings) -> str:
    """Return the alias of the database of the outbox, which has the rows of tasks, too."""
    # A local import: this module may be imported before Django has loaded its models.
    from catmq_client.contrib.django_outbox.models import OutboxMessage

    return router.db_for_write(OutboxMessage)


def build_message(job: Job, *, due_ms: int | None = None) -> NewMessage:
    """Return the message of a job, to be delivered at `due_ms` (ms since 1970; None: now).

    Raises ValueError as Job.body() does.
    """
    now = now_ms()
    deliver_at = None
    if due_ms is not None and due_ms > now:
        deliver_at = datetime.fromtimestamp(min(due_ms, now + MAX_DELAY_MS) / 1000, UTC)
    return NewMessage(
        job.body(),
        tag=job.path.rpartition(".")[2][:MAX_TAG],
        headers={HEADER: "1"},
        trace_id=job.id,
        deliver_at=deliver_at,
    )


def send_job(job: Job, settings: TaskSettings, *, due_ms: int | None = None) -> None:
    """Send a job, to be delivered at `due_ms` (ms since 1970; None: now).

    A direct job is sent at once. Any other job is written to the outbox, as part of the
    current transaction if there is one. Raises CatmqError if brokers refuse a direct job.
    """
    from catmq_client.contrib.django_outbox import outbox

    topic = settings.topic(job.queue, job.priority)
    message = build_message(job, due_ms=due_ms)
    if job.is_direct:
        outcome = connections.producer().send_batch(topic, [message])[0]
        if isinstance(outcome, CatmqError):
            raise outcome
        return
    alias = database_alias(settings)
    with transaction.atomic(using=alias, savepoint=False):
        outbox.send_batch(topic, [message], using=alias)


def now_ms() -> int:
    return time.time_ns() // 1_000_000
