"""Every error that the product tells its users, in one tree.

    CatmqError                      code, detail, retriable, errors, retry_after_ms
    ├── Invalid                     what was asked is wrong: mend it, do not repeat it
    │   ├── Malformed  TooLarge  Conflict  NotFound  Unauthenticated  Forbidden  Gone  NotBuilt …
    └── Unavailable                 what was asked is right, but cannot be done now: repeat it
        ├── NodeUnavailable  NoWritableQueue  MetadataUnavailable (Unrecorded)  Draining
        OutcomeUnknown

`brokerapi.http.errors` is the only place that turns one into HTTP, by its class; commands
print
`detail` and the field errors. A class stands for a way of reacting, a code for a cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Code(StrEnum):
    """The cause of a problem, part of the public API: a code is never renamed or given a
    second meaning.
    """

    # Requests that can never succeed as they are
    MALFORMED = "malformed"  # the bytes are not JSON / MessagePack, or gzip is broken
    INVALID = "invalid"  # understood, but a field is wrong; `errors` names it
    TOO_LARGE = "too_large"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    NOT_ACCEPTABLE = "not_acceptable"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    URL_NOT_FOUND = "url_not_found"
    TOPIC_NOT_FOUND = "topic_not_found"
    QUEUE_NOT_FOUND = "queue_not_found"
    GROUP_NOT_FOUND = "group_not_found"
    SUBSCRIPTION_NOT_FOUND = "subscription_not_found"
    NODE_NOT_FOUND = "node_not_found"
    BROKER_NOT_FOUND = "broker_not_found"
    KEY_NOT_FOUND = "key_not_found"
    TOKEN_NOT_FOUND = "token_not_found"  # noqa: S105 - a code
    CONSUMER_NOT_FOUND = "consumer_not_found"
    MESSAGE_NOT_FOUND = "message_not_found"
    RESET_NOT_FOUND = "reset_not_found"
    REDRIVE_NOT_FOUND = "redrive_not_found"
    ALREADY_EXISTS = "already_exists"
    IN_USE = "in_use"
    NOT_CONFIRMED = "not_confirmed"
    # kept for older brokers: offsets move while it runs, too
    GROUP_RUNNING = "group_running"
    # a consumer asks for other ones than the group has
    GROUP_SETTINGS_DIFFER = "group_settings_differ"
    # failed messages have no place: try again in place
    NO_FAILURE_TOPIC = "no_failure_topic"
    LAST_BROKER = "last_broker"  # no other live broker would be left in
    LAST_QUEUE = "last_queue"  # no other queue of the topic would take messages
    BATCH_CONFLICT = "batch_conflict"  # the batch_id was used for other messages
    # a delayed message that is in its queue cannot be recalled
    ALREADY_DELIVERED = "already_delivered"
    TOPIC_READ_ONLY = "topic_read_only"  # sends to it are forbidden, by its setting
    QUEUE_NOT_WRITABLE = "queue_not_writable"  # read-only or retired: choose another queue
    FOREIGN_KEYS = "foreign_keys"  # metadata is used with other keys than this broker has
    # a database that cannot serve as a node; the detail says why
    NODE_REFUSED = "node_refused"
    EXPIRED = "expired"
    REPLACED = "replaced"
    NOT_IMPLEMENTED = "not_implemented"
    INTERNAL = "internal"
    STORE_CORRUPT = "store_corrupt"

    # Requests that are worth repeating
    NO_WRITABLE_QUEUE = "no_writable_queue"
    NODE_UNAVAILABLE = "node_unavailable"
    NODE_FULL = "node_full"
    METADATA_UNAVAILABLE = "metadata_unavailable"
    # the node may or may not have stored it: same batch_id, same queue
    OUTCOME_UNKNOWN = "outcome_unknown"
    BUSY = "busy"
    REQUEST_TIMEOUT = "request_timeout"  # it came too slowly, or not to its end
    RATE_LIMITED = "rate_limited"  # more than the topic or the key may send in a second
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class FieldError:
    """One wrong field: its path as the caller wrote it (`messages[3].key`) and what to do."""

    field: str
    message: str


class CatmqError(Exception):
    """Base of all; never raised itself. A class names the code of those that are raised
    without one.
    """

    code: Code = Code.INTERNAL
    retriable: bool = False

    def __init_subclass__(cls, *, code: Code | None = None) -> None:
        super().__init_subclass__()
        cls.code = code or cls.code

    def __init__(
        self,
        detail: str,
        *,
        code: Code | None = None,
        errors: Sequence[FieldError] = (),
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.code = code or type(self).code
        self.errors = tuple(errors)
        self.retry_after_ms = retry_after_ms


class Invalid(CatmqError, code=Code.INVALID):
    """A field is wrong; `errors` names it."""

    @classmethod
    def field(cls, field: str, message: str) -> Invalid:
        """The error of a single wrong field."""
        return cls(f"{field}: {message}", errors=[FieldError(field, message)])


class Malformed(Invalid, code=Code.MALFORMED):
    """The bytes cannot be understood."""


class TooLarge(Invalid, code=Code.TOO_LARGE):
    """A request, a body or a list is over its limit; the detail names the limit."""


class Unauthenticated(Invalid, code=Code.UNAUTHENTICATED):
    """No key, or one that is not known."""


class Forbidden(Invalid, code=Code.FORBIDDEN):
    """The actor lacks the right; the detail names right and resource."""


class NotFound(Invalid, code=Code.URL_NOT_FOUND):
    """Something named does not exist; `code` says what kind of thing."""


class Conflict(Invalid, code=Code.IN_USE):
    """Conflict of a request with the present state; `code` says how."""


class Gone(Invalid, code=Code.EXPIRED):
    """The consumer id will never be valid again: register anew (`expired`) or stop
    (`replaced`).
    """


class NotBuilt(Invalid, code=Code.NOT_IMPLEMENTED):
    """Part of the published API, but not of this version."""


class StoreCorrupt(CatmqError, code=Code.STORE_CORRUPT):
    """The data of a node is corrupt (head too low, an undeclared hole): an operator must
    check it.
    """


class Unavailable(CatmqError, code=Code.BUSY):
    """Right, but not now."""

    retriable = True


class NodeUnavailable(Unavailable, code=Code.NODE_UNAVAILABLE):
    """A node did not answer, or refused before anything was stored: any queue may be tried
    next.
    """


class RateLimited(Unavailable, code=Code.RATE_LIMITED):
    """More than the topic takes or the API key may send; `retry_after_ms` says when it
    fits.
    """


class OutcomeUnknown(Unavailable, code=Code.OUTCOME_UNKNOWN):
    """The connection broke before the commit was confirmed: repeat with the same batch_id
    and queue only.
    """


class NoWritableQueue(Unavailable, code=Code.NO_WRITABLE_QUEUE):
    """Every queue of the topic is read-only or on a node that is not."""


class MetadataUnavailable(Unavailable, code=Code.METADATA_UNAVAILABLE):
    """The metadata database did not answer in time. Sends, pulls and commits continue."""

    @classmethod
    def no_answer(cls) -> MetadataUnavailable:
        return cls("The metadata database did not answer.", retry_after_ms=1000)


class Unrecorded(MetadataUnavailable):
    """A heartbeat that was not recorded, and of which nothing else was done either.

    The broker expires nobody for a session timeout from now on, and for `silent_ms` it has
    not heard from the metadata database.
    """

    silent_ms = 0


class Draining(Unavailable, code=Code.DRAINING):
    """This broker is stopping or drained: go to another."""
