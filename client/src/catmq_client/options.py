"""The options of producers and consumers: one frozen value each, checked when the object is
made.

Names follow kafka-python where it has them; units stand in the names. An unknown name is
refused with a proposal, because an option that is silently ignored is found in production.
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

# What users of kafka-python will write, and what it is called here.
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

    # How long send_async waits for more messages for the same queue, ms; 0 = not at all.
    linger_ms: int = 5
    # A batch is sent as soon as it holds this many messages (brokers take at most 1,000) …
    batch_messages: int = 500
    # … or this many bytes of bodies, keys and headers.
    batch_bytes: int = 1024 * 1024
    # Messages accepted but not yet confirmed; a full buffer makes send_async wait.
    buffer_messages: int = 10_000
    # The same in bytes.
    buffer_bytes: int = 64 * 1024 * 1024
    # How long a send may wait for room in the buffer, or for a topic's layout at its first
    # use, ms.
    max_block_ms: int = 60_000
    # Limit of one HTTP request, ms.
    request_timeout_ms: int = 10_000
    # Limit from send() to the receipt, the wait in the buffer and all tries included, ms.
    delivery_timeout_ms: int = 120_000
    # First delay between tries, ms; it doubles, with jitter, up to retry_backoff_max_ms.
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 10_000
    # How long a topic's layout is believed before it is fetched again, ms.
    metadata_max_age_ms: int = 60_000
    # Batches under way at once, each for another queue; threads are started as they are
    # needed.
    max_in_flight: int = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """Options of a Consumer: fetching, committing and sharing a group."""

    # Static identity: close() does not leave the group, and a process that comes back with
    # the same one
    # within the session timeout gets its queues back; nothing moves meanwhile. None = the
    # name, but
    # close() leaves.
    instance_id: str | None = None
    # The group's, if this consumer makes it: "clustering" (members share the queues),
    # "broadcasting" (each
    # instance_id reads all). None = clustering, or what the group is. A group that differs
    # refuses.
    mode: str | None = None
    # The same: after how long a member that is not heard loses its queues, ms,
    # 2,000-300,000. None = 15,000.
    session_timeout_ms: int | None = None
    # Where to go when there is no position, or it is gone: "earliest", "latest", "none"
    # (raise).
    auto_offset_reset: str = "earliest"
    # Commit what the application came back from, without being told.
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 1_000
    # Messages one poll() returns at most; also the size of a pull and the bound of what is
    # held ahead, in
    # run() with what its handlers have not begun. Fast handlers may have as much again
    # under way.
    max_poll_records: int = 500
    # Bytes of one pull, and bound of what is held ahead.
    fetch_max_bytes: int = 4 * 1024 * 1024
    # How long a pull waits at the broker for messages, ms (brokers allow 30,000).
    fetch_max_wait_ms: int = 30_000
    # An application that does not come back for so long loses its queues, ms.
    max_poll_interval_ms: int = 300_000
    # How long revoked work may take to finish, ms; also the limit of the drain in close().
    rebalance_timeout_ms: int = 30_000
    # Limit of one HTTP request, the wait of a pull not counted, ms.
    request_timeout_ms: int = 10_000
    # First delay between tries, ms; it doubles, with jitter, up to retry_backoff_max_ms.
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 10_000
    # Tries of a raising handler in run(), at once and in place, before its message is
    # handed over to come
    # again later. Ordered subscriptions retry in place, as often as the subscription says.
    handler_attempts: int = 1
    # Iteration ends after so long without a message, ms; None = never.
    consumer_timeout_ms: int | None = None
    # When the metadata database is down for longer than the session timeout: "continue"
    # (the nodes
    # still fence a former owner) or "stop" (no handler starts until heartbeats are recorded
    # again).
    # None = ordered subscriptions stop, because another member may have begun with their
    # messages;
    # others continue.
    on_coordinator_loss: str | None = None
    # Called with the queues gained, before their first message, in the application's
    # thread.
    on_assigned: Callable[[list[Any]], object] | None = None
    # Called with the queues to give up, before they are committed and released.
    on_revoked: Callable[[list[Any]], object] | None = None

    def group_settings(self) -> dict[str, Any]:
        """Return the group settings that the application gave."""
        given = {"mode": self.mode, "session_timeout_ms": self.session_timeout_ms}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareConsumerOptions:
    """Options of a ShareConsumer: leases, fetching ahead, and settings of a group that it
    makes.
    """

    # Asking for the next message accepts the one before; False: only accept(), release()
    # and reject() count.
    auto_accept: bool = True
    # Messages held ahead of the application. None = as many as it will begin with in a
    # second, at most 16, or
    # twice the threads of run() if that is more.
    prefetch: int | None = None
    # Messages held at once, those at work among them.
    max_in_flight: int = 500
    # A message at work for longer goes back to the group, ms; None = its lease is renewed
    # until it is done.
    max_processing_ms: int | None = None
    # Finished messages of a run that is not finished are reported so often, ms.
    auto_commit_interval_ms: int = 200
    # The group's, if this consumer makes it: the lease, ms, 5,000-3,600,000, None = 30,000;
    # most messages
    # that are leased together, None = 10; deliveries of a message before it is a dead
    # letter, 0 = no limit,
    # None = 5. A group that differs refuses.
    lease_ms: int | None = None
    run_messages: int | None = None
    max_deliveries: int | None = None
    # The same: after how long a member that is not heard loses its leases, ms,
    # 2,000-300,000. None = 15,000.
    session_timeout_ms: int | None = None
    # Where a new subscription starts: "earliest", "latest".
    auto_offset_reset: str = "earliest"
    # Topics are preferred in their order. Each pull of so many prefers them in reverse, so
    # that the last ones
    # do not starve; None = none does.
    reverse_topics_every: int | None = None
    # Messages one poll() returns at most.
    max_poll_records: int = 500
    # Bytes of one pull.
    fetch_max_bytes: int = 4 * 1024 * 1024
    # How long a pull waits at the broker for messages, ms (brokers allow 30,000).
    fetch_max_wait_ms: int = 30_000
    # How long close() waits for handlers at work and for the last reports, ms.
    close_timeout_ms: int = 30_000
    # Limit of one HTTP request, the wait of a pull not counted, ms.
    request_timeout_ms: int = 10_000
    # First delay between tries, ms; it doubles, with jitter, up to retry_backoff_max_ms.
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 10_000
    # Tries of a raising handler in run(), at once and in place, before its message is
    # handed over to come
    # again later.
    handler_attempts: int = 1
    # Iteration ends after so long without a message, ms; None = never.
    consumer_timeout_ms: int | None = None

    def group_settings(self) -> dict[str, Any]:
        """Return the group settings that the application gave."""
        names = ("lease_ms", "run_messages", "max_deliveries", "session_timeout_ms")
        given = {name: getattr(self, name) for name in names}
        return {"mode": "share"} | {
            name: value for name, value in given.items() if value is not None
        }

    def of_member(self) -> ConsumerOptions:
        """Return what a member of any group needs of them."""
        shared = {field.name for field in fields(self)} & {
            field.name for field in fields(ConsumerOptions)
        }
        return ConsumerOptions(**{name: getattr(self, name) for name in shared})


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


def check_options(kind: type[O], given: Mapping[str, Any]) -> O:
    """The options, or OptionError naming the wrong one and the remedy."""
    known = {field.name for field in fields(kind)}
    for name in given:
        if name not in known:
            raise OptionError(
                f"{name} is not an option of a {kind.__name__[:-7]}: {_proposal(name, known)}"
            )
    types_of = typing.get_type_hints(kind)
    for name, value in given.items():
        _check_value(name, value, types_of[name])
    if given.get("mode") == "broadcasting" and not given.get("instance_id"):
        raise OptionError(
            "mode='broadcasting' without instance_id: set it; offsets are stored under this name"
        )
    if kind is ShareConsumerOptions and given.get("auto_offset_reset") == "none":
        raise OptionError("auto_offset_reset='none': write one of earliest, latest")
    return kind(**given)


def _proposal(name: str, known: set[str]) -> str:
    if name in _KAFKA_NAMES:
        return _KAFKA_NAMES[name]
    close = difflib.get_close_matches(
        name, sorted(known | {"group", "topics", "api_key", "name"}), n=1
    )
    return (
        f"did you mean {close[0]}?"
        if close
        else "the options are " + ", ".join(sorted(known))
    )


def _check_value(name: str, value: Any, hint: Any) -> None:
    if value is None and type(None) in typing.get_args(hint):
        return
    allowed = _CHOICES.get(name)
    if allowed and value not in allowed:
        raise OptionError(f"{name}={value!r}: write one of {', '.join(allowed)}")
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if int in kinds:
        least, most = _RANGES.get(name, (0 if name in _MAY_BE_ZERO else 1, None))
        wrong = isinstance(value, bool) or not isinstance(value, int)
        if wrong or value < least or (most is not None and value > most):
            bounds = f"at least {least}" if most is None else f"{least} to {most}"
            raise OptionError(f"{name}={value!r}: write a whole number, {bounds}")
    elif bool in kinds and not isinstance(value, bool):
        raise OptionError(f"{name}={value!r}: write True or False")
    elif str in kinds and not isinstance(value, str):
        raise OptionError(f"{name}={value!r}: write text")
    elif name.startswith("on_") and allowed is None:
        check_callable(name, value)
