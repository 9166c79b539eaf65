"""Coalescer of calls to a node, with the errors of a write (see
metadata/limits/coalescer.py).
"""

from __future__ import annotations

from messagestore.engine import db_errors
from messagestore.engine.mysql_session import READ_TIMEOUT_S
from metadata.errors import CatmqError
from metadata.limits.coalescer import Coalescer, Item, Result


class NodeCoalescer(Coalescer[Item, Result]):
    """Coalescer of writes.

    Raises RolledBack if a turn did not begin in time, Ambiguous if it did not end in time.
    """

    end_limit_s = READ_TIMEOUT_S

    def not_begun(self) -> CatmqError:
        """Return the error of a caller whose turn did not begin in time: nothing was
        written.
        """
        return db_errors.RolledBack("Not tried: those before it took too long.")

    def not_ended(self) -> CatmqError:
        """Return the error of a caller whose turn did not end in time: its outcome is
        unknown.
        """
        return db_errors.Ambiguous("The transaction that contains it did not end in time.")
