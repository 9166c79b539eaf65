"""All errors that the client raises.

CatmqError                          code, detail, retriable, outcome_unknown, errors,
│                                   retry_after_ms, status
├── OptionError                     an option or argument is wrong (also a ValueError)
├── Closed                          used after close(), or a Consumer used after fork
├── ConnectFailed                   no broker could be reached; nothing was sent
├── AnswerLost                      sent, but no answer came: the outcome is unknown
├── Refused                         a broker answered with a problem
│   ├── InvalidRequest              400, 405, 406, 413, 415, 422: correct the request
│   ├── Unauthenticated  Forbidden  NotFound  Conflict  Gone  NotBuilt
│   ├── ServerFailed                500: a bug; its detail has the id of the log line
│   └── Unavailable                 temporarily impossible: repeat the request
├── SendError                       a message was not sent, or perhaps not
│   ├── MessageRefused              the broker accepted the request, not this message
│   ├── BufferFull                  no room for max_block_ms
│   ├── DeliveryTimeout             delivery_timeout_ms passed; not stored
│   └── SendOutcomeUnknown          delivery_timeout_ms passed; it may be stored
├── ReadError                       a read without a group (frames) cannot continue
│   ├── OffsetsMissing              retention deleted offsets of the range, or they are
│   │                               missing without a reason
│   └── BodyNotText                 a body is not UTF-8 text, and decode="utf-8"
└── ConsumerError
    ├── CommitFailed                a queue moved to another member, which repeats its
    │                               messages
    ├── ConsumerReplaced            another process registered under this consumer's name
    ├── MaxPollIntervalExceeded     the application did not poll for max_poll_interval_ms
    ├── OffsetReset                 an offset is gone and auto_offset_reset is "none"
    ├── HandlerFailed               a failed message cannot be stored for a retry; its
    │                               queue stopped
    └── HandlerTimeout              run(): a handler did not return in time
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

# Longest `retry_after_ms` of a broker that is followed.
MOST_PAUSE_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class FieldError:
    """A wrong field of a request: its path (`messages[3].key`) and the remedy."""

    field: str
    message: str


class CatmqError(Exception):
    """Base of all errors. Programs read `code`, which is stable; `detail` is for people."""

    code: str = "error"
    retriable: bool = False
    outcome_unknown: bool = False
    # The URLs that HttpTransport tried.
    brokers: tuple[str, ...] = ()
    # Set for a heartbeat that the broker could not record; see reading/promises.py.
    metadata_silent_ms: int | None = None
    # With metadata_silent_ms: the member's queues as the nodes have them, and the settings
    # of their topics.
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
        self.errors: tuple[FieldError, ...] = tuple(errors)
        self.retry_after_ms = retry_after_ms
        self.status = status

    def __str__(self) -> str:
        """Return the detail, and below it a line for each wrong field."""
        return "\n".join([self.detail, *(f"  {e.field}: {e.message}" for e in self.errors)])


class OptionError(CatmqError, ValueError, code="option"):
    """An option or argument is wrong; the detail names the remedy."""


class Closed(CatmqError, code="closed"):
    """The object was closed, or belongs to the parent of this forked process."""


class ConnectFailed(CatmqError, code="connect_failed", retriable=True):
    """No broker could be reached: nothing was sent, so repeating is safe."""


class AnswerLost(CatmqError, code="answer_lost", retriable=True, outcome_unknown=True):
    """The request was sent, but no response came. It may have been carried out.

    Repeat it only if carrying it out twice does no harm.
    """


class Refused(CatmqError, code="refused"):
    """A broker answered with a problem."""


class InvalidRequest(Refused, code="invalid"):
    """A field is wrong; `errors` names it."""


class Unauthenticated(Refused, code="unauthenticated"):
    """The request has no API key, or a key that the brokers do not know."""


class Forbidden(Refused, code="forbidden"):
    """The API key lacks the right; the detail names right and resource."""


class NotFound(Refused, code="url_not_found"):
    """A resource does not exist; `code` names its kind."""


class Conflict(Refused, code="conflict"):
    """The request conflicts with the present state; `code` names the conflict."""


class Gone(Refused, code="expired"):
    """The consumer id is not valid: `expired` (register again) or `replaced` (stop)."""


class NotBuilt(Refused, code="not_implemented"):
    """The broker's version does not have this part of the API."""


class ServerFailed(Refused, code="internal", outcome_unknown=True):
    """Internal error of the broker. The request may or may not have been carried out."""


class Unavailable(Refused, code="busy", retriable=True):
    """Temporarily impossible. With `outcome_unknown` it may have been carried out."""


class SendError(CatmqError, code="send_failed"):
    """A message could not be sent."""


class MessageRefused(SendError, code="message_refused"):
    """The broker refused this message of a batch; `code` names the reason."""


class BufferFull(SendError, code="buffer_full"):
    """The producer's buffer had no room for max_block_ms; nothing was sent."""


class DeliveryTimeout(SendError, code="delivery_timeout"):
    """Not stored within delivery_timeout_ms; every try ended with a definite refusal."""


class SendOutcomeUnknown(SendError, code="outcome_unknown", outcome_unknown=True):
    """Not confirmed within delivery_timeout_ms: the message may or may not be stored."""


class ReadError(CatmqError, code="read_failed"):
    """A read without a group cannot continue."""


class OffsetsMissing(ReadError, code="offsets_missing"):
    """Offsets of the range have no messages.

    `missing` is (queue, first, end, reason); the offsets are first … end - 1, and `reason`
    is `expired` or `unexplained`.
    """

    def __init__(self, detail: str, missing: tuple[int, int, int, str]) -> None:
        super().__init__(detail)
        self.missing = missing


class BodyNotText(ReadError, code="body_not_text"):
    """The body of a message is not UTF-8 text; `queue` and `offset` name the message."""

    def __init__(self, detail: str, *, queue: int, offset: int) -> None:
        super().__init__(detail)
        self.queue: int = queue
        self.offset: int = offset


class ConsumerError(CatmqError, code="consumer_failed"):
    """A consumer cannot continue."""


class CommitFailed(ConsumerError, code="fenced"):
    """A queue moved to another member before the commit. It repeats the messages."""


class ConsumerReplaced(ConsumerError, code="replaced"):
    """Another process registered under this consumer's name; this consumer must stop."""


class MaxPollIntervalExceeded(ConsumerError, code="max_poll_interval"):
    """The application did not poll for max_poll_interval_ms and lost its queues.

    Poll again to rejoin.
    """


class OffsetReset(ConsumerError, code="offset_out_of_range"):
    """The offset no longer exists and auto_offset_reset is "none"."""


class HandlerFailed(ConsumerError, code="handler_failed"):
    """A failed message could not be stored for a retry. Its queue stops at that message."""


class HandlerTimeout(ConsumerError, code="handler_timeout"):
    """A handler did not return within handler_timeout_ms. Its message failed."""


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
    """Return the error for an `application/problem+json` answer.

    `problem` is `{detail, code, retriable, retry_after_ms?, errors?: [{field, message}]}`.
    Missing fields, as in an error page of a proxy, are derived from the status. A 502, a
    504 and a 503 without a code come from a proxy before the broker, so the outcome is
    unknown.
    """
    code = problem.get("code") if isinstance(problem.get("code"), str) else None
    entries = problem.get("errors")
    if code is None and status >= 500 and status not in (500, 501):
        return AnswerLost(f"HTTP {status} from a proxy or a dying broker", status=status)
    error_class = _BY_STATUS.get(status) or (
        Unavailable if status >= 500 or status == 429 else InvalidRequest
    )
    error = error_class(
        str(problem.get("detail") or problem.get("title") or f"HTTP {status}"),
        code=code,
        retriable=problem.get("retriable"),
        errors=[
            FieldError(str(entry.get("field")), str(entry.get("message")))
            for entry in (entries if isinstance(entries, list) else [])
            if isinstance(entry, Mapping)
        ],
        retry_after_ms=_checked_pause_ms(problem.get("retry_after_ms")),
        status=status,
    )
    error.metadata_silent_ms = problem.get("metadata_silent_ms")
    error.held = {
        name: problem[name] for name in ("assigned", "subscriptions") if problem.get(name)
    }
    if code == "outcome_unknown" or status in (502, 504):
        error.outcome_unknown = True
    return error


def _checked_pause_ms(retry_after_ms: object) -> int | None:
    """Return `retry_after_ms` if it is a valid number, up to MOST_PAUSE_MS; else None."""
    if (
        isinstance(retry_after_ms, bool)
        or not isinstance(retry_after_ms, int)
        or retry_after_ms < 0
    ):
        return None
    return min(retry_after_ms, MOST_PAUSE_MS)
