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
from messagestore.tables.messages import (
    delete_old_batches,
    find_batch,
    insert_messages,
    select_from,
    select_owned,
    stored_at_ms,
)
from messagestore.tables.node import create_node_tables, now_ms, pulse, server_facts
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
    NewBatch,
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
    "NewBatch",
    "Position",
    "ReaderKey",
    "ReaderRow",
    "RowCount",
    "SentBatch",
    "ServerFacts",
    "acquire_reader",
    "batch_ends",
    "close_queues",
    "count_rows",
    "create_node_tables",
    "create_queue",
    "delete_instance",
    "delete_old_batches",
    "delete_readers",
    "drop_queue",
    "end_of_batches",
    "find_batch",
    "forget_readers",
    "insert_messages",
    "insert_readers",
    "list_batches",
    "list_offsets",
    "list_readers",
    "message_table",
    "now_ms",
    "offset_ends",
    "open_queues",
    "pulse",
    "read_closed",
    "read_gaps",
    "read_head",
    "read_heads",
    "read_positions",
    "reset_reader",
    "select_from",
    "select_owned",
    "server_facts",
    "set_queue_state",
    "stored_at_ms",
    "update_committed",
]
