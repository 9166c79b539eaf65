"""Answers of the verbs of this package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from messagestore.engine.messages import NewMessage
from messagestore.engine.schema_steps import SchemaStep


class Head(NamedTuple):
    """A queue's row in `queue_head`; state is `rw`, `ro` or `retired`."""

    head: int
    low: int
    state: str
    node_epoch: int


class Position(NamedTuple):
    """Position of a reader in a queue, and the queue's bounds read with it.

    `epoch`, `owner` and `committed` are None where the group has no reader row.
    """

    queue: int
    head: int
    low: int
    epoch: int | None
    owner: str | None
    committed: int | None


class NewBatch(NamedTuple):
    """Messages that are stored side by side in one queue, and what `sent_batch` is to
    remember of them.
    """

    batch_id: bytes
    digest: bytes
    messages: Sequence[NewMessage]
    producer: str


class NewDelayed(NamedTuple):
    """A message that is to wait for its time; its `delay_ms` or `deliver_at_ms` says until
    when.

    `by_key`: when it is due it goes to the queue that its key belongs to then. `attempt`
    and `origin` are what its row in the queue will say. `known_as` is the id that the
    sender was told, None for the row's own.
    """

    message: NewMessage
    by_key: bool = False
    attempt: int = 0
    origin: str | None = None
    known_as: str | None = None


class DelayedBatch(NamedTuple):
    """Delayed messages that are stored together, and what `sent_batch` is to remember of
    them.
    """

    batch_id: bytes
    digest: bytes
    rows: Sequence[NewDelayed]
    producer: str


class StoredDelays(NamedTuple):
    """Place of a batch of delayed messages: its first row, the others follow; `digest` is
    None when nothing but the rows themselves is left of it."""

    first_row: int
    digest: bytes | None
    stored_at_ms: int


class DueRow(NamedTuple):
    """A delayed message whose time has come; `size` in bytes, of body and headers."""

    id: int
    by_key: int
    key: str | None
    size: int


class DelayedRow(NamedTuple):
    """A delayed message; `headers` as JSON text, times in ms since 1970 UTC."""

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
    """A delayed message that leaves its table, the queue it waits for, and the id it is
    remembered by.
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
    """A reader row's primary key; `instance` is '' unless the group broadcasts."""

    group_id: int
    queue: int
    instance: str = ""


class Rewound(NamedTuple):
    """A reader that was moved by hand: its epoch now, and where it stood before."""

    epoch: int
    former: int


class RowCount(NamedTuple):
    """Contents of a range of offsets: rows, the span of their times (None without rows),
    and how often the time of a row is before that of the row before it."""

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
    """A part of a message table, with offsets first … end-1; `bytes` as the server's
    statistics say.
    """

    name: str
    first: int
    end: int
    bytes: int


class LongTransaction(NamedTuple):
    """A connection whose transaction has been open for some time."""

    connection: int
    user: str
    seconds: int


class Schema(NamedTuple):
    """Version of a node's tables, and the oldest release that may use them, '' for every
    one.

    The defaults are those of a node whose tables hold neither.
    """

    version: int = 1
    min_release: str = ""


class TableChange(NamedTuple):
    """A step that one table still lacks."""

    table: str
    step: SchemaStep


class TlsFacts(NamedTuple):
    """Encryption of a connection, '' if it has none; `server_not_after`: when the
    certificate ends.
    """

    version: str
    cipher: str
    server_not_after: str


class ServerFacts(NamedTuple):
    """Facts that decide whether a MySQL / MariaDB server may be a node.

    `binlog_format` is empty where a server has only one; `binlog_engine` where the binary
    log has its own files.
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
