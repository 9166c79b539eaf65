"""Every verb that touches a table of a node; the only package that runs statements.

A verb takes a `Session` (borrowed from `connections.Node`) and plain values, and answers plain
values (`shapes`). Time is always the node's own clock. The rules behind each statement stand in
docs/explanation/store.md.
"""

from __future__ import annotations

from messagestore.tables.auditing import (
    batch_ends,
    count_rows,
    end_of_batches,
    list_batches,
    list_offsets,
    list_readers,
    offset_ends,
)
from messagestore.tables.cleaning import delete_below, raise_low, row_bytes, used_bytes
from messagestore.tables.messages import (
    delete_old_batches,
    find_batch,
    insert_messages,
    select_from,
    select_owned,
    stored_at_ms,
)
from messagestore.tables.node import create_node_tables, now_ms, server_facts
from messagestore.tables.partitions import (
    add_partitions,
    drop_partition,
    limit_lock_wait,
    list_partitions,
    long_transactions,
    take_table_lock,
)
from messagestore.tables.queues import (
    close_queues,
    create_queue,
    drop_queue,
    forget_readers,
    open_queues,
    read_closed,
    read_gaps,
    read_head,
    read_heads,
    set_queue_state,
)
from messagestore.tables.readers import (
    acquire_reader,
    delete_instance,
    delete_readers,
    insert_readers,
    read_positions,
    reset_reader,
    update_committed,
)
from messagestore.tables.running import message_table
from messagestore.tables.shapes import (
    BatchRow,
    Head,
    LongTransaction,
    Partition,
    Position,
    ReaderKey,
    ReaderRow,
    RowCount,
    SentBatch,
    ServerFacts,
)

__all__ = [
    "BatchRow",
    "Head",
    "LongTransaction",
    "Partition",
    "Position",
    "ReaderKey",
    "ReaderRow",
    "RowCount",
    "SentBatch",
    "ServerFacts",
    "acquire_reader",
    "add_partitions",
    "batch_ends",
    "close_queues",
    "count_rows",
    "create_node_tables",
    "create_queue",
    "delete_below",
    "delete_instance",
    "delete_old_batches",
    "delete_readers",
    "drop_partition",
    "drop_queue",
    "end_of_batches",
    "find_batch",
    "forget_readers",
    "insert_messages",
    "insert_readers",
    "limit_lock_wait",
    "list_batches",
    "list_offsets",
    "list_partitions",
    "list_readers",
    "long_transactions",
    "message_table",
    "now_ms",
    "offset_ends",
    "open_queues",
    "raise_low",
    "read_closed",
    "read_gaps",
    "read_head",
    "read_heads",
    "read_positions",
    "reset_reader",
    "row_bytes",
    "select_from",
    "select_owned",
    "server_facts",
    "set_queue_state",
    "stored_at_ms",
    "take_table_lock",
    "update_committed",
    "used_bytes",
]
