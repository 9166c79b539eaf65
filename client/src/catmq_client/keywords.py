"""Types of the keyword arguments of producers and consumers: `**options: Unpack[…]`.

Written by `python -m tests.support.client_keywords` from options.py, which declares them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypedDict

from catmq_client.message import AssignedQueue


class ProducerKeywords(TypedDict, total=False):
    """Options of a Producer, as keyword arguments."""

    linger_ms: int
    """How long send_async waits for more messages of the same queue. 0 = not at all.
    Default: 5 (ms).
    """

    batch_messages: int
    """A batch is sent as soon as it holds this many messages (brokers take at most 1,000).
    Default: 500 (messages).
    """

    batch_bytes: int
    """A batch is sent as soon as its bodies, keys and headers have this size. Default:
    1048576 (bytes).
    """

    buffer_messages: int
    """Messages accepted but not yet confirmed. A full buffer makes send_async wait.
    Default: 10000 (messages).
    """

    buffer_bytes: int
    """The same limit as buffer_messages, in bytes. Default: 67108864 (bytes)."""

    max_block_ms: int
    """How long a send may wait for room in the buffer, or for a topic's layout at its first
    use. Default: 60000 (ms).
    """

    request_timeout_ms: int
    """Limit of an HTTP request. Default: 10000 (ms)."""

    delivery_timeout_ms: int
    """Limit from send() to the receipt, including the wait in the buffer and all tries.
    Default: 120000 (ms).
    """

    retry_backoff_ms: int
    """First delay between tries. It doubles, with jitter, up to retry_backoff_max_ms.
    Default: 100 (ms).
    """

    retry_backoff_max_ms: int
    """Longest delay between tries. Default: 10000 (ms)."""

    metadata_max_age_ms: int
    """How long a topic's layout is used before it is fetched again. Default: 60000 (ms)."""

    max_in_flight: int
    """Batches in flight at once, each for another queue. Threads are started when they are
    needed. Default: 16 (batches).
    """


class ConsumerKeywords(TypedDict, total=False):
    """Options of a Consumer, as keyword arguments."""

    instance_id: str | None
    """Static identity: close() does not leave the group. A process that registers with the
    same identity within the session timeout gets the same queues; there is no rebalance.
    None = the name is the identity, and close() leaves the group. Default: None.
    """

    mode: Literal["clustering", "broadcasting"] | None
    """Mode of the group, if this consumer creates it: "clustering" (members share the
    queues) or "broadcasting" (each instance_id reads all). None = clustering, or the mode
    of the existing group. A consumer whose mode differs from the group's is refused.
    Default: None.
    """

    session_timeout_ms: int | None
    """Session timeout of the group, if this consumer creates it: a member without a
    heartbeat for this time loses its queues. None = 15,000. Default: None (ms, 2000 to
    300000).
    """

    auto_offset_reset: Literal["earliest", "latest", "none"]
    """Where to start without a position, or if the position no longer exists: "earliest",
    "latest", "none" (raise). Default: 'earliest'.
    """

    enable_auto_commit: bool
    """Commit finished messages periodically. Default: True."""

    auto_commit_interval_ms: int
    """Interval of these commits. 0 = whatever is finished is committed by the next pull, or
    after 20 ms without a pull. Default: 1000 (ms).
    """

    max_poll_records: int
    """Maximum number of messages of a poll(). Also the size of a pull, and the bound of the
    buffer; in run() together with messages that handlers have not begun. Fast handlers may
    have as many again at work. Default: 500 (messages).
    """

    fetch_max_bytes: int
    """Bytes of a pull, and bound of the buffer. Default: 4194304 (bytes)."""

    fetch_max_wait_ms: int
    """How long a pull waits at the broker for messages (brokers allow 30,000). Default:
    30000 (ms).
    """

    max_poll_interval_ms: int
    """An application that does not poll for this time loses its queues. Default: 300000
    (ms).
    """

    rebalance_timeout_ms: int
    """How long messages of revoked queues may take to finish. Also the limit of close().
    Default: 30000 (ms).
    """

    request_timeout_ms: int
    """Limit of an HTTP request, the wait of a pull not counted. Default: 10000 (ms)."""

    retry_backoff_ms: int
    """First delay between tries. It doubles, with jitter, up to retry_backoff_max_ms.
    Default: 100 (ms).
    """

    retry_backoff_max_ms: int
    """Longest delay between tries. Default: 10000 (ms)."""

    handler_attempts: int
    """Tries of a handler that raises, in place and without a long pause, before its message
    is reported and comes again from the retry topic. Ordered subscriptions retry in place,
    as often as the subscription allows. Default: 1 (tries).
    """

    consumer_timeout_ms: int | None
    """Iteration ends after this time without a message. None = never. Default: None (ms).
    """

    on_coordinator_loss: Literal["continue", "stop"] | None
    """When the metadata database is unavailable for longer than the session timeout:
    "continue" (the nodes still fence a former owner) or "stop" (no handler begins until
    heartbeats are recorded again). None = ordered subscriptions stop, because another
    member may have begun with their messages; others continue. Default: None.
    """

    on_assigned: Callable[[list[AssignedQueue]], object] | None
    """Called with the assigned queues, before their first message, in the application's
    thread. Default: None.
    """

    on_revoked: Callable[[list[AssignedQueue]], object] | None
    """Called with the revoked queues, before they are committed and released. Default:
    None.
    """


class ShareConsumerKeywords(TypedDict, total=False):
    """Options of a ShareConsumer, as keyword arguments."""

    auto_accept: bool
    """Asking for the next message accepts the message before. False: only accept(),
    release() and reject() count. Default: True.
    """

    prefetch: int | None
    """Messages leased ahead of the application. None = as many as it will begin with in a
    second, at most 16, or twice the threads of run() if that is more. Default: None
    (messages).
    """

    max_in_flight: int
    """Maximum number of messages leased at once, including those at work. Default: 500
    (messages).
    """

    max_processing_ms: int | None
    """A message at work for longer is given back to the group. None = its lease is renewed
    until it is finished. Default: None (ms).
    """

    auto_commit_interval_ms: int
    """Interval of the reports of finished messages of a run that is not finished. Default:
    200 (ms).
    """

    lease_ms: int | None
    """Lease of the group, if this consumer creates it. None = 30,000. A consumer whose
    lease_ms, run_messages or max_deliveries differ from the group's is refused. Default:
    None (ms, 5000 to 3600000).
    """

    run_messages: int | None
    """Maximum number of messages that are leased together, if this consumer creates the
    group. None = 10. Default: None (messages, 1 to 1000).
    """

    max_deliveries: int | None
    """Deliveries of a message before it becomes a dead letter, if this consumer creates the
    group. 0 = no limit, None = 5. Default: None (deliveries, 0 to 100).
    """

    session_timeout_ms: int | None
    """Session timeout of the group, if this consumer creates it: a member without a
    heartbeat for this time loses its leases. None = 15,000. Default: None (ms, 2000 to
    300000).
    """

    auto_offset_reset: Literal["earliest", "latest"]
    """Where a new subscription starts: "earliest", "latest". Default: 'earliest'."""

    reverse_topics_every: int | None
    """Topics are preferred in their order. Every n-th pull prefers them in reverse order,
    so that the last topics do not starve. None = no pull does. Default: None (pulls).
    """

    max_poll_records: int
    """Maximum number of messages of a poll(). Default: 500 (messages)."""

    fetch_max_bytes: int
    """Bytes of a pull. Default: 4194304 (bytes)."""

    fetch_max_wait_ms: int
    """How long a pull waits at the broker for messages (brokers allow 30,000). Default:
    30000 (ms).
    """

    close_timeout_ms: int
    """How long close() waits for handlers at work and for the last reports. Default: 30000
    (ms).
    """

    request_timeout_ms: int
    """Limit of an HTTP request, the wait of a pull not counted. Default: 10000 (ms)."""

    retry_backoff_ms: int
    """First delay between tries. It doubles, with jitter, up to retry_backoff_max_ms.
    Default: 100 (ms).
    """

    retry_backoff_max_ms: int
    """Longest delay between tries. Default: 10000 (ms)."""

    handler_attempts: int
    """Tries of a handler that raises, in place and without a long pause, before its message
    is reported and comes again from the retry topic. Default: 1 (tries).
    """

    consumer_timeout_ms: int | None
    """Iteration ends after this time without a message. None = never. Default: None (ms).
    """
