"""Named tuples that the functions of this package take and return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from messagestore.engine.messages import NewMessage
from messagestore.engine.schema_steps import SchemaStep


class Head(NamedTuple):
    """The row of a queue in `queue_head`. `state` is `rw`, `ro` or `retired`."""

    head: int
    low: int
    state: str
    node_epoch: int


class Position(NamedTuple):
    """Position of a reader in a queue, with the bounds of the queue read by the same
    statement.

    `epoch`, `owner` and `committed` are None if the group has no reader row.
    """

    queue: int
    head: int
    low: int
    epoch: int | None
    owner: str | None
    committed: int | None


class NewBatch(NamedTuple):
    """Messages to store together in one queue, and the values of their row in `sent_batch`."""

    batch_id: bytes
    digest: bytes
    messages: Sequence[NewMessage]
    producer: str


class NewDelayed(NamedTuple):
    """A message to deliver later. Its `delay_ms` or `deliver_at_ms` says when.

    `by_key`: when it is due, its queue is chosen by key from the layout at that time.
    `attempt` and `origin` become columns of its row in the queue. `known_as` is the id that
    the sender received, None if that is the id of the row.
    """

    message: NewMessage
    by_key: bool = False
    attempt: int = 0
    origin: str | None = None
    known_as: str | None = None


class DelayedBatch(NamedTuple):
    """Delayed messages to store together, and the values of their row in `sent_batch`."""

    batch_id: bytes
    digest: bytes
    rows: Sequence[NewDelayed]
    producer: str


class StoredDelays(NamedTuple):
    """Where a batch of delayed messages is stored. Its rows have consecutive ids from
    `first_row` on.

    `digest` is None if the record of the batch has expired and only the rows are left.
    """

    first_row: int
    digest: bytes | None
    stored_at_ms: int


class DueRow(NamedTuple):
    """A delayed message that is due. `size` is bytes of body and headers."""

    id: int
    by_key: int
    key: str | None
    size: int


class DelayedRow(NamedTuple):
    """A delayed message. `headers` is JSON text; times are ms since 1970 UTC."""

    id: int
    queue: int
    due_at_ms: int
    by_key: int
    known_as: str | None
    key: str | None
    tag: str | None
    headers: str | None
    body: bytes
    trace_id: str | None
    producer: str
    stored_at_ms: int
    attempt: int
    origin: str | None


class Leaving(NamedTuple):
    """A delayed message to remove: its row, the queue it waits for, and the id of its
    record.
    """

    row: int
    queue: int
    batch_id: bytes


class SentBatch(NamedTuple):
    queue: int
    first_offset: int
    message_count: int
    digest: bytes


class ReaderKey(NamedTuple):
    """The primary key of a reader row. `instance` is '' unless the group broadcasts."""

    group_id: int
    queue: int
    instance: str = ""


class Rewound(NamedTuple):
    """Result of a manual reset: the new epoch, and the committed offset before it."""

    epoch: int
    former: int


class RowCount(NamedTuple):
    """Summary of a range of offsets: number of rows, and the first and last storage time.

    The times are None without rows. `falls` counts rows that were stored earlier than the
    row before them.
    """

    rows: int
    earliest_ms: int | None
    latest_ms: int | None
    falls: int


class ReaderRow(NamedTuple):
    queue: int
    group_id: int
    instance: str
    epoch: int
    owner: str
    committed: int


class BatchRow(NamedTuple):
    batch_id: bytes
    queue: int
    first_offset: int
    message_count: int
    digest: bytes
    stored_at_ms: int


class Partition(NamedTuple):
    """A partition of a message table, for offsets first … end-1.

    `bytes` comes from the server's statistics.
    """

    name: str
    first: int
    end: int
    bytes: int


class LongTransaction(NamedTuple):
    """A connection whose transaction has been open for `seconds`."""

    connection: int
    user: str
    seconds: int


class Schema(NamedTuple):
    """Version of a node's tables, and the oldest release that may use them ('' if all may).

    The defaults are those of a node whose tables record neither.
    """

    version: int = 1
    min_release: str = ""


class TableChange(NamedTuple):
    """A schema step that is still to be made on one table."""

    table: str
    step: SchemaStep


class TlsFacts(NamedTuple):
    """Encryption of a connection; the fields are '' if it has none.

    `server_not_after` is the time when the server's certificate expires.
    """

    version: str
    cipher: str
    server_not_after: str


class ServerFacts(NamedTuple):
    """Settings that decide whether a MySQL or MariaDB server may be a node.

    `binlog_format` is '' if the server supports only one. `binlog_engine` is '' if the
    binary log is written to files of its own.
    """

    version: str
    character_set: str
    collation: str
    flush_log_at_commit: int
    log_bin: bool
    sync_binlog: int
    binlog_format: str
    binlog_engine: str
    read_only: bool
