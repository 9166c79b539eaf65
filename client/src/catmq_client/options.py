"""The options of producers and consumers: frozen values that are checked on creation.

Names follow kafka-python where it has the same option. Units are part of the names. An
unknown name is refused with a suggestion, because an option that is silently ignored is
discovered in production.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from catmq_client.callables import check_callable
from catmq_client.errors import OptionError

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """Options of a Producer: batching, timeouts and retries."""

    # How long send_async waits for more messages of the same queue, ms. 0 = not at all.
    linger_ms: int = 5
    # A batch is sent as soon as it holds this many messages (brokers take at most 1,000) …
    batch_messages: int = 500
    # … or this many bytes of bodies, keys and headers.
    batch_bytes: int = 1024 * 1024
    # Messages accepted but not yet confirmed. A full buffer makes send_async wait.
    buffer_messages: int = 10_000
    # The same in bytes.
    buffer_bytes: int = 64 * 1024 * 1024
    # How long a send may wait for room in the buffer, or for a topic's layout at its first
    # use, ms.
    max_block_ms: int = 60_000
    # Limit of an HTTP request, ms.
    request_timeout_ms: int = 10_000
    # Limit from send() to the receipt, including the wait in the buffer and all tries, ms.
    delivery_timeout_ms: int = 120_000
    # First delay between tries, ms; it doubles, with jitter, up to retry_backoff_max_ms.
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 10_000
    # How long a topic's layout is used before it is fetched again, ms.
    metadata_max_age_ms: int = 60_000
    # Batches in flight at once, each for another queue. Threads are started when they are
    # needed.
    max_in_flight: int = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """Options of a Consumer: fetching, committing and sharing a group."""

    # Static identity: close() does not leave the group. A process that registers with the
    # same identity within the session timeout gets the same queues; there is no rebalance.
    # None = the name is the identity, and close() leaves the group.
    instance_id: str | None = None
    # Mode of the group, if this consumer creates it: "clustering" (members share the
    # queues) or "broadcasting" (each instance_id reads all). None = clustering, or the mode
    # of the existing group. A consumer whose mode differs from the group's is refused.
    mode: str | None = None
    # Session timeout of the group, if this consumer creates it: a member without a
    # heartbeat for this time loses its queues, ms, 2,000-300,000. None = 15,000.
    session_timeout_ms: int | None = None
    # Where to start without a position, or if the position no longer exists: "earliest",
    # "latest", "none" (raise).
    auto_offset_reset: str = "earliest"
    # Commit finished messages periodically.
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 1_000
    # Maximum number of messages of a poll(). Also the size of a pull, and the bound of
    # the buffer; in run() together with messages that handlers have not begun. Fast
    # handlers may have as many again at work.
    max_poll_records: int = 500
    # Bytes of a pull, and bound of the buffer.
    fetch_max_bytes: int = 4 * 1024 * 1024
    # How long a pull waits at the broker for messages, ms (brokers allow 30,000).
    fetch_max_wait_ms: int = 30_000
    # An application that does not poll for this time loses its queues, ms.
    max_poll_interval_ms: int = 300_000
    # How long messages of revoked queues may take to finish, ms. Also the limit of close().
    rebalance_timeout_ms: int = 30_000
    # Limit of an HTTP request, the wait of a pull not counted, ms.
    request_timeout_ms: int = 10_000
    # First delay between tries, ms; it doubles, with jitter, up to retry_backoff_max_ms.
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 10_000
    # Tries of a handler that raises, in place and without a long pause, before its message
    # is reported and comes again from the retry topic. Ordered subscriptions retry in
    # place, as often as the subscription allows.
    handler_attempts: int = 1
    # Iteration ends after this time without a message, ms. None = never.
    consumer_timeout_ms: int | None = None
    # When the metadata database is unavailable for longer than the session timeout:
    # "continue" (the nodes still fence a former owner) or "stop" (no handler begins until
    # heartbeats are recorded again). None = ordered subscriptions stop, because another
    # member may have begun with their messages; others continue.
    on_coordinator_loss: str | None = None
    # Called with the assigned queues, before their first message, in the application's
    # thread.
    on_assigned: Callable[[list[Any]], object] | None = None
    # Called with the revoked queues, before they are committed and released.
    on_revoked: Callable[[list[Any]], object] | None = None

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

    # Asking for the next message accepts the message before. False: only accept(),
    # release() and reject() count.
    auto_accept: bool = True
    # Messages leased ahead of the application. None = as many as it will begin with in a
    # second, at most 16, or twice the threads of run() if that is more.
    prefetch: int | None = None
    # Maximum number of messages leased at once, including those at work.
    max_in_flight: int = 500
    # A message at work for longer is given back to the group, ms. None = its lease is
    # renewed until it is finished.
    max_processing_ms: int | None = None
    # Interval of the reports of finished messages of a run that is not finished, ms.
    auto_commit_interval_ms: int = 200
    # Settings of the group, if this consumer creates it: the lease, ms, 5,000-3,600,000,
    # None = 30,000; the maximum number of messages that are leased together, None = 10;
    # deliveries of a message before it becomes a dead letter, 0 = no limit, None = 5. A
    # consumer whose settings differ from the group's is refused.
    lease_ms: int | None = None
    run_messages: int | None = None
    max_deliveries: int | None = None
    # Session timeout of the group, if this consumer creates it: a member without a
    # heartbeat for this time loses its leases, ms, 2,000-300,000. None = 15,000.
    session_timeout_ms: int | None = None
    # Where a new subscription starts: "earliest", "latest".
    auto_offset_reset: str = "earliest"
    # Topics are preferred in their order. Every n-th pull prefers them in reverse order, so
    # that the last topics do not starve. None = no pull does.
    reverse_topics_every: int | None = None
    # Maximum number of messages of a poll().
    max_poll_records: int = 500
    # Bytes of a pull.
    fetch_max_bytes: int = 4 * 1024 * 1024
    # How long a pull waits at the broker for messages, ms (brokers allow 30,000).
    fetch_max_wait_ms: int = 30_000
    # How long close() waits for handlers at work and for the last reports, ms.
    close_timeout_ms: int = 30_000
    # Limit of an HTTP request, the wait of a pull not counted, ms.
    request_timeout_ms: int = 10_000
    # First delay between tries, ms; it doubles, with jitter, up to retry_backoff_max_ms.
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 10_000
    # Tries of a handler that raises, in place and without a long pause, before its message
    # is reported and comes again from the retry topic.
    handler_attempts: int = 1
    # Iteration ends after this time without a message, ms. None = never.
    consumer_timeout_ms: int | None = None

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
        shared_names = {field.name for field in fields(self)} & {
            field.name for field in fields(ConsumerOptions)
        }
        return ConsumerOptions(**{name: getattr(self, name) for name in shared_names})


O = TypeVar("O", ProducerOptions, ConsumerOptions, ShareConsumerOptions)  # noqa: E741

_CHOICES = {
    "auto_offset_reset": ("earliest", "latest", "none"),
    "on_coordinator_loss": ("continue", "stop"),
    "mode": ("clustering", "broadcasting"),
}
_RANGES = {
    "session_timeout_ms": (2_000, 300_000),
    "lease_ms": (5_000, 3_600_000),
    "run_messages": (1, 1_000),
    "max_deliveries": (0, 100),
}
_MAY_BE_ZERO = {"linger_ms", "max_block_ms", "fetch_max_wait_ms", "consumer_timeout_ms"}


def check_options(options_class: type[O], options: Mapping[str, Any]) -> O:
    """Return the options. Raises OptionError, which names the option and the remedy."""
    known_names = {field.name for field in fields(options_class)}
    for name in options:
        if name not in known_names:
            raise OptionError(
                f"{name} is not an option of a {options_class.__name__[:-7]}: "
                f"{_suggest(name, known_names)}"
            )
    hints = typing.get_type_hints(options_class)
    for name, value in options.items():
        _check_value(name, value, hints[name])
    if options.get("mode") == "broadcasting" and not options.get("instance_id"):
        raise OptionError(
            "mode='broadcasting' without instance_id: set it; offsets are stored under this name"
        )
    if options_class is ShareConsumerOptions and options.get("auto_offset_reset") == "none":
        raise OptionError("auto_offset_reset='none': write one of earliest, latest")
    return options_class(**options)


def _suggest(name: str, known_names: set[str]) -> str:
    """Return a suggestion for an unknown option."""
    if name in _KAFKA_NAMES:
        return _KAFKA_NAMES[name]
    matches = difflib.get_close_matches(
        name, sorted(known_names | {"group", "topics", "api_key", "name"}), n=1
    )
    return (
        f"did you mean {matches[0]}?"
        if matches
        else "the options are " + ", ".join(sorted(known_names))
    )


def _check_value(name: str, value: Any, hint: Any) -> None:
    """Raise OptionError if a value does not fit the type hint, the choices or the range."""
    if value is None and type(None) in typing.get_args(hint):
        return
    choices = _CHOICES.get(name)
    if choices and value not in choices:
        raise OptionError(f"{name}={value!r}: write one of {', '.join(choices)}")
    types_allowed = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if int in types_allowed:
        minimum, maximum = _RANGES.get(name, (0 if name in _MAY_BE_ZERO else 1, None))
        # bool is a subclass of int in Python.
        is_wrong = isinstance(value, bool) or not isinstance(value, int)
        if is_wrong or value < minimum or (maximum is not None and value > maximum):
            range_text = (
                f"at least {minimum}" if maximum is None else f"{minimum} to {maximum}"
            )
            raise OptionError(f"{name}={value!r}: write a whole number, {range_text}")
    elif bool in types_allowed and not isinstance(value, bool):
        raise OptionError(f"{name}={value!r}: write True or False")
    elif str in types_allowed and not isinstance(value, str):
        raise OptionError(f"{name}={value!r}: write text")
    elif name.startswith("on_") and choices is None:
        check_callable(name, value)
