"""The auditor: proves on a live system that no message of a topic is missing, double or out of order.

It takes no lock and stops nobody, so everything it sees is already past. What keeps a busy queue from
looking wrong is the order of its reads, always the same idea: *what must be covered is read before what
covers it*.

    a row below the head        head, then rows, then `low` and gaps (rows.py)
    a row below a batch         head, then batches; trimming explains the old ones (batches.py)
    a batch below the head      batch, then head
    a row at or above the head  rows, then head (standing.py)
    a committed offset          reader row, then head
    a reader row                metadata, then node, then metadata: the same subscription, ready in both
    an epoch of the node        node, then metadata

All of that holds at READ COMMITTED and on SQLite. What still looks wrong is looked at once more.
"""

from messagestore.verify.findings import KINDS, Finding
from messagestore.verify.report import QueueReport, Report
from messagestore.verify.run import ROWS_PER_S, Since, verify
from messagestore.verify.visit import Progress

__all__ = ["KINDS", "ROWS_PER_S", "Finding", "Progress", "QueueReport", "Report", "Since", "verify"]
