"""Every error that the client raises, in one tree.

CatmqError                          code, detail, retriable, outcome_unknown, errors,
│                                   retry_after_ms, status
├── OptionError                     an option or argument is wrong (also a ValueError)
├── Closed                          used after close(), or a Consumer used after fork
├── ConnectFailed                   no broker could be reached; nothing was sent
├── AnswerLost                      sent, but no answer came: it may or may not have been done
├── Refused                         a broker answered with a problem
│   ├── InvalidRequest              400, 405, 406, 413, 415, 422: correct it, do not repeat it
│   ├── Unauthenticated  Forbidden  NotFound  Conflict  Gone  NotBuilt
│   ├── ServerFailed                500: a bug; its detail has the id of the broker's log line
│   └── Unavailable                 temporarily impossible: repeat it
├── SendError                       a message was not sent, or perhaps not
│   ├── MessageRefused              the broker took the request but refused this message
│   ├── BufferFull                  no room for max_block_ms
│   ├── DeliveryTimeout             delivery_timeout_ms passed; not stored
│   └── SendOutcomeUnknown          delivery_timeout_ms passed; it may be stored
└── ConsumerError
    ├── CommitFailed                a queue moved to another member, which repeats its messages
    ├── ConsumerReplaced            another process registered under this consumer's name
    ├── MaxPollIntervalExceeded     the application did not poll for max_poll_interval_ms
    ├── OffsetReset                 an offset no longer exists and auto_offset_reset is "none"
    ├── HandlerFailed               a failed message cannot be stored for a retry; its queue stopped
    └── HandlerTimeout              run(): the handler of a message did not return in time
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

# The longest that a broker's `retry_after_ms` is followed.
MOST_PAUSE_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class FieldError:
    """A wrong field of a request: its path (`messages[3].key`) and the remedy."""

    field: str
    message: str


class CatmqError(Exception):
    """Base of all errors. `code` is stable and for programs, `detail` is for people."""

    code: str = "error"
    retriable: bool = False
    outcome_unknown: bool = False
    # The URLs that HttpTransport tried.
    brokers: tuple[str, ...] = ()
    # Of a heartbeat that was not recorded: the broker's promise, see promises.py.
    metadata_silent_ms: int | None = None
    # With it: the queues that the nodes say are the member's, and settings of their topics.
    held: Mapping[str, Any] = MappingProxyType({})

    def __init_subclass__(
        cls,
        *,
        code: str | None = None,
        retriable: bool = False,
        outcome_unknown: bool = False,
    ) -> None:
        cls.code, cls.retriable = code or cls.code, retriable or cls.retriable
        cls.outcome_unknown = outcome_unknown or cls.outcome_unknown

    def __init__(
        self,
        detail: str,
        *,
        code: str | None = None,
        retriable: bool | None = None,
        errors: Sequence[FieldError] = (),
        retry_after_ms: int | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.code = code or type(self).code
        self.retriable = type(self).retriable if retriable is None else retriable
        self.errors = tuple(errors)
        self.retry_after_ms = retry_after_ms
        self.status = status

    def __str__(self) -> str:
        """The detail, then the wrong fields one a line."""
        return "\n".join([self.detail, *(f"  {e.field}: {e.message}" for e in self.errors)])


class OptionError(CatmqError, ValueError, code="option"):
    """An option or argument is wrong; the detail says what to write instead."""


class Closed(CatmqError, code="closed"):
    """The object was closed, or belongs to the process that forked this one."""


class ConnectFailed(CatmqError, code="connect_failed", retriable=True):
    """No broker could be reached: nothing was sent, so repeating is safe."""


class AnswerLost(CatmqError, code="answer_lost", retriable=True, outcome_unknown=True):
    """The request was sent, but no response came. Repeat it only if doing it twice does no
    harm.
    """


class Refused(CatmqError, code="refused"):
    """A broker answered with a problem."""


class InvalidRequest(Refused, code="invalid"):
    """A field is wrong; `errors` names it."""


class Unauthenticated(Refused, code="unauthenticated"):
    """No API key, or one that the brokers do not know."""


class Forbidden(Refused, code="forbidden"):
    """The API key lacks the right; the detail names right and resource."""


class NotFound(Refused, code="url_not_found"):
    """Something named does not exist; `code` says what kind of thing."""


class Conflict(Refused, code="conflict"):
    """The request conflicts with the present state; `code` says how."""


class Gone(Refused, code="expired"):
    """The consumer id is no longer valid: `expired` (register again) or `replaced` (stop)."""


class NotBuilt(Refused, code="not_implemented"):
    """The broker's version does not have this part of the API."""


class ServerFailed(Refused, code="internal", outcome_unknown=True):
    """Internal error of the broker. The request may or may not have been carried out."""


class Unavailable(Refused, code="busy", retriable=True):
    """Temporarily impossible. `outcome_unknown` if the request may have been carried out."""


class SendError(CatmqError, code="send_failed"):
    """A message could not be sent."""


class MessageRefused(SendError, code="message_refused"):
    """The broker refused this message of a batch; `code` says why."""


class BufferFull(SendError, code="buffer_full"):
    """The producer's buffer had no room for max_block_ms; nothing was sent."""


class DeliveryTimeout(SendError, code="delivery_timeout"):
    """Not stored within delivery_timeout_ms; every try ended with a definite refusal."""


class SendOutcomeUnknown(SendError, code="outcome_unknown", outcome_unknown=True):
    """Not confirmed within delivery_timeout_ms: the message may or may not be stored."""


class ConsumerError(CatmqError, code="consumer_failed"):
    """A consumer cannot continue."""


class CommitFailed(ConsumerError, code="fenced"):
    """A queue moved to another member before the commit. That member repeats its messages."""


class ConsumerReplaced(ConsumerError, code="replaced"):
    """Another process registered under this consumer's name; this one must stop."""


class MaxPollIntervalExceeded(ConsumerError, code="max_poll_interval"):
    """The application did not poll for max_poll_interval_ms and lost its queues. Poll again
    to rejoin.
    """


class OffsetReset(ConsumerError, code="offset_out_of_range"):
    """The offset no longer exists and auto_offset_reset is "none"."""


class HandlerFailed(ConsumerError, code="handler_failed"):
    """A failed message could not be stored for a retry. Its queue stops at that message."""


class HandlerTimeout(ConsumerError, code="handler_timeout"):
    """A handler did not return within handler_timeout_ms of its subscription. Its message
    failed.
    """


_BY_STATUS: dict[int, type[Refused]] = {
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    501: NotBuilt,
    500: ServerFailed,
}


def from_problem(status: int, problem: Mapping[str, Any]) -> CatmqError:
    """The error for an `application/problem+json` answer.

    `problem` is `{detail, code, retriable, retry_after_ms?, errors?: [{field, message}]}`;
    what is missing (a proxy's own page) is filled from the status. 502, 504 and an
    unexplained 503 come from something between us and the broker, so nobody knows whether
    the broker did it.
    """
    code = problem.get("code") if isinstance(problem.get("code"), str) else None
    if code is None and status >= 500 and status not in (500, 501):
        return AnswerLost(f"HTTP {status} from a proxy or a dying broker", status=status)
    kind = _BY_STATUS.get(status) or (
        Unavailable if status >= 500 or status == 429 else InvalidRequest
    )
    error = kind(
        str(problem.get("detail") or problem.get("title") or f"HTTP {status}"),
        code=code,
        retriable=problem.get("retriable"),
        errors=[
            FieldError(str(e.get("field")), str(e.get("message"))) for e in _fields(problem)
        ],
        retry_after_ms=_pause_ms(problem.get("retry_after_ms")),
        status=status,
    )
    error.metadata_silent_ms = problem.get("metadata_silent_ms")
    error.held = {
        name: problem[name] for name in ("assigned", "subscriptions") if problem.get(name)
    }
    if code == "outcome_unknown" or status in (502, 504):
        error.outcome_unknown = True
    return error


def _pause_ms(asked: object) -> int | None:
    """Return what a broker asks to wait, if that is a number; no longer than anybody
    should.
    """
    if isinstance(asked, bool) or not isinstance(asked, int) or asked < 0:
        return None
    return min(asked, MOST_PAUSE_MS)


def _fields(problem: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    errors = problem.get("errors")
    return (
        [one for one in errors if isinstance(one, Mapping)]
        if isinstance(errors, list)
        else []
    )
