"""Every error that the product reports to its users, in one tree.

    CatmqError                      code, detail, retriable, errors, retry_after_ms
    ├── Invalid                     the request is wrong: correct it, do not repeat it
    │   └── Malformed  TooLarge  Conflict  NotFound  Unauthenticated  Forbidden  Gone  NotBuilt
    ├── StoreCorrupt                an operator must check a node
    └── Unavailable                 the request is right, and cannot be served now: repeat it
        └── NodeUnavailable  NoWritableQueue  MetadataUnavailable (Unrecorded)  RateLimited
            OutcomeUnknown  Draining

A class stands for a reaction of the caller, a code for a cause. `brokerapi.http.errors` is
the only place that turns an error into HTTP, by its class. Commands print `detail` and the
field errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from metadata.installation import name_programs


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
    # not raised any more, because offset resets also work while a group runs
    GROUP_RUNNING = "group_running"
    # a consumer asks for settings other than those of the group
    GROUP_SETTINGS_DIFFER = "group_settings_differ"
    # failed messages cannot be stored: the consumer retries them itself
    NO_FAILURE_TOPIC = "no_failure_topic"
    LAST_BROKER = "last_broker"  # no other live broker would be in service
    LAST_QUEUE = "last_queue"  # no other queue of the topic would accept messages
    BATCH_CONFLICT = "batch_conflict"  # the batch_id was used for other messages
    # a delayed message that is in its queue cannot be recalled
    ALREADY_DELIVERED = "already_delivered"
    TOPIC_READ_ONLY = "topic_read_only"  # the topic is set to refuse sends
    QUEUE_NOT_WRITABLE = "queue_not_writable"  # read-only or retired: choose another queue
    FOREIGN_KEYS = "foreign_keys"  # metadata is used with other keys than this broker has
    # a database that cannot serve as a node, for the reason in the detail
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
    # the node may have stored the batch: repeat with the same batch_id and queue
    OUTCOME_UNKNOWN = "outcome_unknown"
    BUSY = "busy"
    REQUEST_TIMEOUT = "request_timeout"  # it arrived too slowly, or not completely
    RATE_LIMITED = "rate_limited"  # above the send rate limit of the topic or API key
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class FieldError:
    """One wrong field: its path as the caller wrote it (`messages[3].key`) and what to do."""

    field: str
    message: str


class CatmqError(Exception):
    """Base class, never raised itself. Each class has the code of errors that are raised
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
        # Details name commands that help, which an installed server calls in another way.
        self.detail = name_programs(detail)
        super().__init__(self.detail)
        self.code = code or type(self).code
        self.errors = tuple(
            FieldError(error.field, name_programs(error.message)) for error in errors
        )
        self.retry_after_ms = retry_after_ms


class Invalid(CatmqError, code=Code.INVALID):
    """A field is wrong. `errors` names it."""

    @classmethod
    def field(cls, field: str, message: str) -> Invalid:
        """Return the error of a single wrong field."""
        return cls(f"{field}: {message}", errors=[FieldError(field, message)])


class Malformed(Invalid, code=Code.MALFORMED):
    """The request body cannot be parsed."""


class TooLarge(Invalid, code=Code.TOO_LARGE):
    """A request, a body or a list is above its limit, which the detail names."""


class Unauthenticated(Invalid, code=Code.UNAUTHENTICATED):
    """The request has no API key, or an unknown one."""


class Forbidden(Invalid, code=Code.FORBIDDEN):
    """The actor lacks a right. The detail names right and resource."""


class NotFound(Invalid, code=Code.URL_NOT_FOUND):
    """An object does not exist. `code` names its kind."""


class Conflict(Invalid, code=Code.IN_USE):
    """The request conflicts with the present state. `code` names the conflict."""


class Gone(Invalid, code=Code.EXPIRED):
    """The consumer id will never be valid again: register again (`expired`) or stop
    (`replaced`).
    """


class NotBuilt(Invalid, code=Code.NOT_IMPLEMENTED):
    """Part of the published API, and not of this version."""


class StoreCorrupt(CatmqError, code=Code.STORE_CORRUPT):
    """The data of a node is corrupt: a log end offset went back, or a hole was not
    declared. An operator must check it.
    """


class Unavailable(CatmqError, code=Code.BUSY):
    """The request is right, and cannot be served now."""

    retriable = True


class NodeUnavailable(Unavailable, code=Code.NODE_UNAVAILABLE):
    """A node did not answer, or refused before anything was stored. The send may be
    repeated to any queue.
    """


class RateLimited(Unavailable, code=Code.RATE_LIMITED):
    """The send exceeds the rate limit of the topic or API key. It fits after
    `retry_after_ms`.
    """


class OutcomeUnknown(Unavailable, code=Code.OUTCOME_UNKNOWN):
    """The connection broke before the commit was confirmed, so the batch may be stored.
    Repeat it only with the same batch_id and queue.
    """


class NoWritableQueue(Unavailable, code=Code.NO_WRITABLE_QUEUE):
    """Every queue of the topic is read-only, or on a node that is not read-write."""


class MetadataUnavailable(Unavailable, code=Code.METADATA_UNAVAILABLE):
    """The metadata database did not answer in time. Sends, pulls and commits continue."""

    @classmethod
    def no_answer(cls) -> MetadataUnavailable:
        return cls("The metadata database did not answer.", retry_after_ms=1000)


class Unrecorded(MetadataUnavailable):
    """A heartbeat was not recorded, and had no other effect.

    The broker promises to expire no member for a session timeout from now on. `silent_ms`
    is the time since it last had an answer from the metadata database.
    """

    silent_ms = 0


class Draining(Unavailable, code=Code.DRAINING):
    """This broker is stopping or drained. Use another one."""
