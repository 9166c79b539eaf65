"""Meaning of a node's error for the statement that met it.

    RolledBack     nothing was stored: may be repeated, or go to another queue
      Refused      the head row said no (missing, read-only, another node epoch)
      Duplicate    a primary key exists already: never repeated blindly
      ReadOnly     the server takes no writes
    Unreachable    no connection could be made, so nothing was sent either
      NoPartition  the table has no partition for these offsets yet
    SlowNode       nobody waited for the end; only for what may be repeated
    Ambiguous      it may or may not have been stored: only the same batch id to the same queue
    Final          repeating cannot help: a person must look
      Altered      a table is missing, or somebody altered it
      Denied       the account lacks a right

They are the product's own errors, so one that nobody handles still answers truthfully. The
numbers are those of MySQL and MariaDB; anything not listed is Final, because an unknown
error is a bug.
"""

from __future__ import annotations

import re
import sqlite3

from metadata.errors import Code, NodeUnavailable, OutcomeUnknown, StoreCorrupt

REFUSED = 1048  # a NULL for @b: the UPDATE of the head matched no row
DUPLICATE = 1062
NO_PARTITION = 1526
FULL = frozenset({1114, 1021})
# A file could not be written, mostly one in the server's tmpdir: of the binary log's cache,
# or of a sort. The
# disk is full if the system's error is 28 (ENOSPC).
UNWRITTEN = frozenset({3, 1026, 1030})
NO_MEMORY = frozenset({1037, 1038, 1041})
# a value does not fit its column: that was altered, or a limit is above it
UNFIT = frozenset({1366, 1406})
READ_ONLY = frozenset({1290, 1836})
# Deadlock, record changed, lock wait.
ROLLED_BACK = frozenset({1213, 1020, 1205}) | READ_ONLY | FULL | NO_MEMORY
# Connection lost (with TLS: 2026), killed, out of step; interrupted; error in COMMIT;
# server stops; network.
AMBIGUOUS = frozenset(
    {
        2006,
        2013,
        2014,
        2026,
        2027,
        2055,
        1317,
        1927,
        1969,
        3024,
        4031,
        1180,
        1053,
        1158,
        1159,
        1160,
        1161,
    }
)
# the whole connection is gone, and most likely its siblings
LOST = AMBIGUOUS - {1317, 1969, 3024, 1180}
_TABLE = "The table is missing or was altered: restore it, then run manage.py verify on its topic."
# 28 "No space …, errno 28 - No …
_NO_SPACE = re.compile(r"(?<!=)\b28 [\"-]|quota exceeded", re.IGNORECASE)
# SQLite has no number for each
_ALTERED = ("no such table", "no such column", "has no column named")
_RIGHT = "The node's account lacks a right: manage.py grants prints what it needs."
_DENIED = frozenset({1044, 1142, 1143, 1227, 1370})
# no such table or column, another number of them
_MISFIT = frozenset({1146, 1054, 1136, 1364, 1932})
REMEDIES = {
    **dict.fromkeys(_MISFIT, _TABLE),
    **dict.fromkeys(_DENIED, _RIGHT),
    1049: "The node's database is gone: restore it, then run manage.py adopt_restored_node.",
    1197: "The transaction is larger than the node's max_binlog_cache_size: raise it, or "
    "send less at once.",
    1153: "The statement is larger than the node's max_allowed_packet: raise it, or send "
    "less at once.",
}


class RolledBack(NodeUnavailable):
    """Nothing was stored."""


class Refused(RolledBack):
    """The head row refused the write."""


class Duplicate(RolledBack):
    """A primary key exists already."""


class ReadOnly(RolledBack):
    """The server takes no writes."""


class Unreachable(NodeUnavailable):
    """No connection could be made."""


class SlowNode(NodeUnavailable):
    """The answer did not come as soon as the request wanted it; the node may be well."""


class NoPartition(RolledBack):
    """The table has no partition for these offsets yet."""


class Ambiguous(OutcomeUnknown):
    """The end of the statement was not seen; `lost`: because the connection broke or was
    silent too long.
    """

    lost = False


class Final(StoreCorrupt):
    """The node cannot run this statement at all."""


class Altered(Final):
    """A table is missing or was altered."""


class Denied(Final):
    """The account lacks a right."""


_BY_NUMBER = {
    REFUSED: Refused,
    DUPLICATE: Duplicate,
    NO_PARTITION: NoPartition,
    **dict.fromkeys(READ_ONLY, ReadOnly),
}


def is_full(number: int, text: str) -> bool:
    """Return True if a MySQL error says that a disk of the node is full.

    >>> is_full(3, 'Error writing file ... (Errcode: 28 "No space left on device")')
    True
    >>> is_full(1030,
    ...     'Got error 168 "Unknown (generic) error from engine" from storage engine InnoDB')
    False
    """
    return number in FULL or (number in UNWRITTEN and _NO_SPACE.search(text) is not None)


def from_mysql(number: int, text: str, node: str) -> RolledBack | Ambiguous | Final:
    """The fault of a MySQL error number, before any ROLLBACK was tried."""
    detail = f"Node {node} answered {number}: {text}"
    if number in _BY_NUMBER:
        return _BY_NUMBER[number](detail)
    if is_full(number, text):
        return RolledBack(
            f"{detail}. Free or add disk space on the node.", code=Code.NODE_FULL
        )
    if number in ROLLED_BACK:
        return RolledBack(detail)
    if number in AMBIGUOUS:
        fault = Ambiguous(detail)
        fault.lost = number in LOST
        return fault
    kind = Altered if number in _MISFIT else Denied if number in _DENIED else Final
    return kind(f"{detail}. {REMEDIES[number]}" if number in REMEDIES else detail)


def from_sqlite(error: sqlite3.Error, node: str) -> RolledBack | Ambiguous | Final:
    """The fault of an SQLite error."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    detail = f"Node {node} answered {getattr(error, 'sqlite_errorname', 'SQLITE_ERROR')}: {error}"
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM):
        return RolledBack(detail)
    if code == sqlite3.SQLITE_FULL:
        return RolledBack(f"{detail}. Free disk space.", code=Code.NODE_FULL)
    if code == sqlite3.SQLITE_CONSTRAINT:
        return Duplicate(detail)
    if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_INTERRUPT):
        return Ambiguous(detail)
    if code == sqlite3.SQLITE_ERROR and any(sign in str(error) for sign in _ALTERED):
        return Altered(f"{detail}. {_TABLE}")
    return Final(detail)
