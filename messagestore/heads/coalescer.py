"""Calls to a node that are done together (metadata/limits/coalescer.py), with the errors of a write."""

from __future__ import annotations

from messagestore.engine import db_errors
from messagestore.engine.mysql_session import READ_TIMEOUT_S
from metadata.errors import CatmqError
from metadata.limits.coalescer import Coalescer, Item, Result


class NodeCoalescer(Coalescer[Item, Result]):
    """Raises RolledBack where a turn did not begin in time, Ambiguous where its end was not seen."""

    end_limit_s = READ_TIMEOUT_S

    def not_begun(self) -> CatmqError:
        """Error of a caller whose turn did not begin in time."""
        return db_errors.RolledBack("Not tried: those before it took too long.")

    def not_ended(self) -> CatmqError:
        """Error of a caller whose turn did not end in time."""
        return db_errors.Ambiguous("The transaction that contains it did not end in time.")
