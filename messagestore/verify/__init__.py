"""Audit of a live system, in two depths: the messages of topics, and metadata against nodes
as a whole.

`verify` proves that no message of a topic is missing, double or out of order. `check`
compares tables, heads, positions and members of the whole installation, and `repair` mends
what can be mended safely: nothing is ever deleted that may hold messages. Neither takes a
lock or stops anybody, so everything that is seen is already past. What keeps a busy queue
from looking wrong is the order of the reads, always the same idea: *what must be covered is
read before what covers it*.

    a row below the head        head, then rows, then `low` and gaps (rows.py)
    a row below a batch         head, then batches; old ones have expired (batches.py)
    a batch below the head      batch, then head
    a row at or above the head  rows, then head (positions.py)
    a committed offset          reader row, then head
    a reader row                metadata, then node, then metadata: the same subscription, ready
                                in both
    an epoch of the node        node, then metadata
    a table or a head row       node, then metadata (contents.py)

All of that holds at READ COMMITTED and on SQLite. What still looks wrong is looked at once
more.
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
