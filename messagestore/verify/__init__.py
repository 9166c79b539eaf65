"""Audit of a live system at two depths: the messages of topics, and metadata against nodes.

`verify` proves that no message of a topic is missing, stored twice or out of order. `check`
compares tables, heads, positions and members of the whole installation. `repair` mends a
finding if that is safe: nothing is deleted that may hold messages. None of them takes a
lock or blocks a sender, so everything they read may have changed since. The order of the
reads keeps a busy queue from looking wrong. The idea is always the same: *what must be
covered is read before what covers it*.

    a row below the head        head, then rows, then `low` and gaps (rows.py)
    a row below a batch         head, then batches; old batches expired (batches.py)
    a batch below the head      batch, then head
    a row at or above the head  rows, then head (positions.py)
    a committed offset          reader row, then head
    a reader row                metadata, then node, then metadata: the same subscription, ready
                                in both
    an epoch of the node        node, then metadata
    a table or a head row       node, then metadata (contents.py)

All of this holds at READ COMMITTED and on SQLite. Whatever still looks wrong is read a
second time before it is reported.
"""

from messagestore.sweeping import Progress
from messagestore.verify.findings import KINDS, QUEUE_KINDS, Finding, QueueReport, Report
from messagestore.verify.repairs import find, repair
from messagestore.verify.run import ROWS_PER_S, Since, check, verify, watch

__all__ = [
    "KINDS",
    "QUEUE_KINDS",
    "ROWS_PER_S",
    "Finding",
    "Progress",
    "QueueReport",
    "Report",
    "Since",
    "check",
    "find",
    "repair",
    "verify",
    "watch",
]
