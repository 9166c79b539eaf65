"""The options of producers and consumers: frozen values that are checked on creation.

Names follow kafka-python where it has the same option. Units are part of the names. An
unknown name is refused with a suggestion, because an option that is silently ignored is
discovered in production.
"""

from __future__ import annotations

import difflib
import inspect
import textwrap
import types
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, Literal, NamedTuple, TypeVar

from catmq_client.callables import check_callable
from catmq_client.errors import OptionError
from catmq_client.message import AssignedQueue

# Names of kafka-python, with the suggestion for each.
_KAFKA_NAMES = {
    "bootstrap_servers": "write the broker URLs as the first argument: 'http://host:port' "
    "or a list",
    "group_id": "did you mean group?",
    "client_id": "did you mean name? (the consumer's name within its group)",
    "group_instance_id": "did you mean instance_id?",
    "batch_size": "did you mean batch_bytes or batch_messages?",
    "buffer_memory": "did you mean buffer_bytes or buffer_messages?",
    "compression_type": "did you mean compression='gzip'?",
    "retries": "tries are bounded by time: did you mean delivery_timeout_ms?",
    "acks": "a send is always answered after it is durable; use send_oneway to not wait",
    "max_partition_fetch_bytes": "did you mean fetch_max_bytes?",
    "heartbeat_interval_ms": "it is told by the server: a third of the group's session "
    "timeout, at most 3 s",
    "value_serializer": "pass bytes, text, or json=…",
    "value_deserializer": "read message.body, .text or .json()",
    "key_serializer": "keys are text",
    "key_deserializer": "keys are text",
    "reconnect_backoff_ms": "did you mean retry_backoff_ms?",
    "reconnect_backoff_max_ms": "did you mean retry_backoff_max_ms?",
    "sasl_plain_password": "did you mean api_key?",
    "ssl_cafile": "did you mean verify='/path/of/ca.pem'?",
    "partitioner": "the key chooses the queue; name one with send(…, queue=…)",
}


T = TypeVar("T")
C = TypeVar("C", bound=type)


class Declaration(NamedTuple):
    """Unit, meaning and range of an option, in the metadata of its field."""

    unit: str
    meaning: str
    minimum: int
    maximum: int | None


def option(
    default: T, unit: str, meaning: str, *, minimum: int = 1, maximum: int | None = None
) -> T:
    """Return the field of an option. `unit` is "" if the value has none.

    Whole numbers outside `minimum` to `maximum` are refused. This declaration is the only
    one: checks, keywords.py and the texts of help() follow from it.
    """
    declaration = Declaration(unit, meaning, minimum, maximum)
    return field(default=default, metadata={"declaration": declaration})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """Options of a Producer: batching, timeouts and retries."""

    linger_ms: int = option(
        5,
        "ms",
        "How long send_async waits for more messages of the same queue. 0 = not at all.",
        minimum=0,
    )
    batch_messages: int = option(
        500,
        "messages",
        "A batch is sent as soon as it holds this many messages (brokers take at most 1,000).",
    )
    batch_bytes: int = option(
        1024 * 1024,
        "bytes",
        "A batch is sent as soon as its bodies, keys and headers have this size.",
    )
    buffer_messages: int = option(
        10_000,
        "messages",
        "Messages accepted but not yet confirmed. A full buffer makes send_async wait.",
    )
    buffer_bytes: int = option(
        64 * 1024 * 1024, "bytes", "The same limit as buffer_messages, in bytes."
    )
    max_block_ms: int = option(
        60_000,
        "ms",
        "How long a send may wait for room in the buffer, or for a topic's layout at its "
        "first use.",
        minimum=0,
    )
    request_timeout_ms: int = option(10_000, "ms", "Limit of an HTTP request.")
    delivery_timeout_ms: int = option(
        120_000,
        "ms",
        "Limit from send() to the receipt, including the wait in the buffer and all tries.",
    )
    retry_backoff_ms: int = option(
        100,
        "ms",
        "First delay between tries. It doubles, with jitter, up to retry_backoff_max_ms.",
    )
    retry_backoff_max_ms: int = option(10_000, "ms", "Longest delay between tries.")
    metadata_max_age_ms: int = option(
        60_000, "ms", "How long a topic's layout is used before it is fetched again."
    )
    max_in_flight: int = option(
        16,
        "batches",
        "Batches in flight at once, each for another queue. Threads are started when they "
        "are needed.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """Options of a Consumer: fetching, committing and sharing a group."""

    instance_id: str | None = option(
        None,
        "",
        "Static identity: close() does not leave the group. A process that registers with "
        "the same identity within the session timeout gets the same queues; there is no "
        "rebalance. None = the name is the identity, and close() leaves the group.",
    )
    mode: Literal["clustering", "broadcasting"] | None = option(
        None,
        "",
        'Mode of the group, if this consumer creates it: "clustering" (members share the '
        'queues) or "broadcasting" (each instance_id reads all). None = clustering, or the '
        "mode of the existing group. A consumer whose mode differs from the group's is "
        "refused.",
    )
    session_timeout_ms: int | None = option(
        None,
        "ms",
        "Session timeout of the group, if this consumer creates it: a member without a "
        "heartbeat for this time loses its queues. None = 15,000.",
        minimum=2_000,
        maximum=300_000,
    )
    auto_offset_reset: Literal["earliest", "latest", "none"] = option(
        "earliest",
        "",
        "Where to start without a position, or if the position no longer exists: "
        '"earliest", "latest", "none" (raise).',
    )
    enable_auto_commit: bool = option(True, "", "Commit finished messages periodically.")
    auto_commit_interval_ms: int = option(
        1_000,
        "ms",
        "Interval of these commits. 0 = whatever is finished is committed by the next pull, "
        "or after 20 ms without a pull.",
        minimum=0,
    )
    max_poll_records: int = option(
        500,
        "messages",
        "Maximum number of messages of a poll(). Also the size of a pull, and the bound of "
        "the buffer; in run() together with messages that handlers have not begun. Fast "
        "handlers may have as many again at work.",
    )
    fetch_max_bytes: int = option(
        4 * 1024 * 1024, "bytes", "Bytes of a pull, and bound of the buffer."
    )
    fetch_max_wait_ms: int = option(
        30_000,
        "ms",
        "How long a pull waits at the broker for messages (brokers allow 30,000).",
        minimum=0,
    )
    max_poll_interval_ms: int = option(
        300_000, "ms", "An application that does not poll for this time loses its queues."
    )
    rebalance_timeout_ms: int = option(
        30_000,
        "ms",
        "How long messages of revoked queues may take to finish. Also the limit of close().",
    )
    request_timeout_ms: int = option(
        10_000, "ms", "Limit of an HTTP request, the wait of a pull not counted."
    )
    retry_backoff_ms: int = option(
        100,
        "ms",
        "First delay between tries. It doubles, with jitter, up to retry_backoff_max_ms.",
    )
    retry_backoff_max_ms: int = option(10_000, "ms", "Longest delay between tries.")
    handler_attempts: int = option(
        1,
        "tries",
        "Tries of a handler that raises, in place and without a long pause, before its "
        "message is reported and comes again from the retry topic. Ordered subscriptions "
        "retry in place, as often as the subscription allows.",
    )
    consumer_timeout_ms: int | None = option(
        None,
        "ms",
        "Iteration ends after this time without a message. None = never.",
        minimum=0,
    )
    on_coordinator_loss: Literal["continue", "stop"] | None = option(
        None,
        "",
        "When the metadata database is unavailable for longer than the session timeout: "
        '"continue" (the nodes still fence a former owner) or "stop" (no handler begins '
        "until heartbeats are recorded again). None = ordered subscriptions stop, because "
        "another member may have begun with their messages; others continue.",
    )
    on_assigned: Callable[[list[AssignedQueue]], object] | None = option(  # noqa: RUF009 - a field
        None,
        "",
        "Called with the assigned queues, before their first message, in the application's "
        "thread.",
    )
    on_revoked: Callable[[list[AssignedQueue]], object] | None = option(  # noqa: RUF009 - a field
        None, "", "Called with the revoked queues, before they are committed and released."
    )

    def group_settings(self) -> dict[str, Any]:
        """Return the settings of a group that this consumer creates, without those left
        open.
        """
        settings = {"mode": self.mode, "session_timeout_ms": self.session_timeout_ms}
        return {name: value for name, value in settings.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareConsumerOptions:
    """Options of a ShareConsumer: leases, fetching ahead, and settings of a group that it
    makes.
    """

    auto_accept: bool = option(
        True,
        "",
        "Asking for the next message accepts the message before. False: only accept(), "
        "release() and reject() count.",
    )
    prefetch: int | None = option(
        None,
        "messages",
        "Messages leased ahead of the application. None = as many as it will begin with in "
        "a second, at most 16, or twice the threads of run() if that is more.",
    )
    max_in_flight: int = option(
        500,
        "messages",
        "Maximum number of messages leased at once, including those at work.",
    )
    max_processing_ms: int | None = option(
        None,
        "ms",
        "A message at work for longer is given back to the group. None = its lease is "
        "renewed until it is finished.",
    )
    auto_commit_interval_ms: int = option(
        200,
        "ms",
        "Interval of the reports of finished messages of a run that is not finished.",
    )
    lease_ms: int | None = option(
        None,
        "ms",
        "Lease of the group, if this consumer creates it. None = 30,000. A consumer whose "
        "lease_ms, run_messages or max_deliveries differ from the group's is refused.",
        minimum=5_000,
        maximum=3_600_000,
    )
    run_messages: int | None = option(
        None,
        "messages",
        "Maximum number of messages that are leased together, if this consumer creates the "
        "group. None = 10.",
        maximum=1_000,
    )
    max_deliveries: int | None = option(
        None,
        "deliveries",
        "Deliveries of a message before it becomes a dead letter, if this consumer creates "
        "the group. 0 = no limit, None = 5.",
        minimum=0,
        maximum=100,
    )
    session_timeout_ms: int | None = option(
        None,
        "ms",
        "Session timeout of the group, if this consumer creates it: a member without a "
        "heartbeat for this time loses its leases. None = 15,000.",
        minimum=2_000,
        maximum=300_000,
    )
    auto_offset_reset: Literal["earliest", "latest"] = option(
        "earliest", "", 'Where a new subscription starts: "earliest", "latest".'
    )
    reverse_topics_every: int | None = option(
        None,
        "pulls",
        "Topics are preferred in their order. Every n-th pull prefers them in reverse "
        "order, so that the last topics do not starve. None = no pull does.",
    )
    max_poll_records: int = option(
        500, "messages", "Maximum number of messages of a poll()."
    )
    fetch_max_bytes: int = option(4 * 1024 * 1024, "bytes", "Bytes of a pull.")
    fetch_max_wait_ms: int = option(
        30_000,
        "ms",
        "How long a pull waits at the broker for messages (brokers allow 30,000).",
        minimum=0,
    )
    close_timeout_ms: int = option(
        30_000,
        "ms",
        "How long close() waits for handlers at work and for the last reports.",
    )
    request_timeout_ms: int = option(
        10_000, "ms", "Limit of an HTTP request, the wait of a pull not counted."
    )
    retry_backoff_ms: int = option(
        100,
        "ms",
        "First delay between tries. It doubles, with jitter, up to retry_backoff_max_ms.",
    )
    retry_backoff_max_ms: int = option(10_000, "ms", "Longest delay between tries.")
    handler_attempts: int = option(
        1,
        "tries",
        "Tries of a handler that raises, in place and without a long pause, before its "
        "message is reported and comes again from the retry topic.",
    )
    consumer_timeout_ms: int | None = option(
        None,
        "ms",
        "Iteration ends after this time without a message. None = never.",
        minimum=0,
    )

    def group_settings(self) -> dict[str, Any]:
        """Return the settings of a group that this consumer creates, without those left
        open.
        """
        names = ("lease_ms", "run_messages", "max_deliveries", "session_timeout_ms")
        settings = {name: getattr(self, name) for name in names}
        return {"mode": "share"} | {
            name: value for name, value in settings.items() if value is not None
        }

    def member_options(self) -> ConsumerOptions:
        """Return the options that members of all kinds of groups have."""
        shared_names = {f.name for f in fields(self)} & {
            f.name for f in fields(ConsumerOptions)
        }
        return ConsumerOptions(**{name: getattr(self, name) for name in shared_names})


O = TypeVar("O", ProducerOptions, ConsumerOptions, ShareConsumerOptions)  # noqa: E741
OptionsClass = type[ProducerOptions] | type[ConsumerOptions] | type[ShareConsumerOptions]


def check_options(options_class: type[O], options: Mapping[str, Any]) -> O:
    """Return the options. Raises OptionError, which names the option and the remedy."""
    declarations = declared(options_class)
    for name in options:
        if name not in declarations:
            raise OptionError(
                f"{name} is not an option of a {options_class.__name__[:-7]}: "
                f"{_suggest(name, declarations.keys())}"
            )
    hints = typing.get_type_hints(options_class)
    for name, value in options.items():
        _check_value(name, value, hints[name], declarations[name])
    if options.get("mode") == "broadcasting" and not options.get("instance_id"):
        raise OptionError(
            "mode='broadcasting' without instance_id: set it; offsets are stored under this name"
        )
    return options_class(**options)


def declared(options_class: OptionsClass) -> dict[str, Declaration]:
    """Return the declarations of all options, by name."""
    return {f.name: f.metadata["declaration"] for f in fields(options_class)}


def list_options(options_class: OptionsClass) -> Callable[[C], C]:
    """Return a class decorator that appends the options to the docstring, for help().

    Each has its type, default, unit, range and meaning.
    """

    def append(documented: C) -> C:
        # Without docstrings (python -OO) there is nothing to append to.
        if documented.__doc__ is not None:
            lines = inspect.cleandoc(documented.__doc__).splitlines()
            lines += ["", "Options:", ""]
            for f in fields(options_class):
                lines.append(f"    {f.name}: {f.type} = {f.default!r}{unit_and_range(f)}")
                lines += textwrap.wrap(
                    f.metadata["declaration"].meaning,
                    88,
                    initial_indent=" " * 8,
                    subsequent_indent=" " * 8,
                )
            documented.__doc__ = "\n".join(lines)
        return documented

    return append


def unit_and_range(option_field: Field[Any]) -> str:
    """Return the unit and the range of an option as " (ms, 2000 to 300000)".

    "" if it has neither.
    """
    unit, _, minimum, maximum = option_field.metadata["declaration"]
    parts = [unit] if unit else []
    if maximum is not None:
        parts.append(f"{minimum} to {maximum}")
    return f" ({', '.join(parts)})" if parts else ""


def _suggest(name: str, known_names: Collection[str]) -> str:
    """Return a suggestion for an unknown option."""
    if name in _KAFKA_NAMES:
        return _KAFKA_NAMES[name]
    matches = difflib.get_close_matches(
        name, sorted({*known_names, "group", "topics", "api_key", "name"}), n=1
    )
    return (
        f"did you mean {matches[0]}?"
        if matches
        else "the options are " + ", ".join(sorted(known_names))
    )


def _check_value(name: str, value: Any, hint: Any, declaration: Declaration) -> None:
    """Raise OptionError if a value does not fit the type hint or the range."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    allowed_types = typing.get_args(hint) if is_union else (hint,)
    if value is None and type(None) in allowed_types:
        return
    hint = allowed_types[0]  # the other type of a union is that of None
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        if value not in choices:
            raise OptionError(f"{name}={value!r}: write one of {', '.join(choices)}")
    elif hint is int:
        minimum, maximum = declaration.minimum, declaration.maximum
        # bool is a subclass of int in Python.
        is_wrong = isinstance(value, bool) or not isinstance(value, int)
        if is_wrong or value < minimum or (maximum is not None and value > maximum):
            range_text = (
                f"at least {minimum}" if maximum is None else f"{minimum} to {maximum}"
            )
            raise OptionError(f"{name}={value!r}: write a whole number, {range_text}")
    elif hint is bool and not isinstance(value, bool):
        raise OptionError(f"{name}={value!r}: write True or False")
    elif hint is str and not isinstance(value, str):
        raise OptionError(f"{name}={value!r}: write text")
    elif typing.get_origin(hint) is Callable:
        check_callable(name, value)
