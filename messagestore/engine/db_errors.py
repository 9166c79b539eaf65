"""Translation of a node's database errors into product errors.

    RolledBack     nothing was stored: repeat, or send to another queue
      Refused      the head row refused the write (missing, read-only, another node epoch)
      Duplicate    the primary key exists already: do not repeat blindly
      ReadOnly     the server takes no writes
      NotReady     a member of a cluster ran nothing
    Unreachable    no connection could be made, so nothing was sent
      NoPartition  the table has no partition for these offsets yet
    SlowNode       the caller stopped waiting; only for requests that may be repeated
    Ambiguous      unknown outcome: repeat only the same batch id to the same queue
    Final          a repeat cannot help: an operator has to act
      Altered      a table is missing or was altered
      NotInPlace   the server cannot alter the table in place
      NoIndex      the statement names an index that the table lacks
      Denied       the account lacks a right

All of them are product errors, so an unhandled error still gives the client a correct answer.
The numbers are those of MySQL and MariaDB. An unlisted number is Final, because an unknown
error is a bug.
"""

from __future__ import annotations

import re
import sqlite3

from metadata.errors import Code, NodeUnavailable, OutcomeUnknown, StoreCorrupt

# ER_BAD_NULL_ERROR: @b is NULL because the UPDATE of the head row matched no row.
REFUSED = 1048
DUPLICATE = 1062
NO_PARTITION = 1526
# The change is not possible in place. On MariaDB also: after a crash during an ALTER TABLE, a
# partition has other indexes than the definition of its table.
NOT_IN_PLACE = 1846
# FORCE INDEX names an index that the table lacks.
NO_INDEX = 1176
# A build of an index ends if its record of concurrent writes exceeds
# innodb_online_alter_log_max_size. It is rolled back.
LOG_OVERFLOW = frozenset({1799})
FULL = frozenset({1114, 1021})
# A file could not be written, usually in the server's tmpdir (binary log cache, sort). The
# disk is full only if the text has the system error 28 (ENOSPC).
FILE_ERRORS = frozenset({3, 1026, 1030})
NO_MEMORY = frozenset({1037, 1038, 1041})
# A value does not fit its column: the column was altered, or a limit allows too much.
VALUE_TOO_LARGE = frozenset({1366, 1406})
# --read-only, read-only mode, read-only transaction (a reader of a managed cluster)
READ_ONLY = frozenset({1290, 1836, 1792})
# ER_DATA_OUT_OF_RANGE: the first statement of a string that continues a transaction, on another
# connection than the one that began it (engine/mysql_session.py).
OUT_OF_RANGE = 1690
# A member of a Galera cluster runs no statement at all while it has no majority or is not
# synced, ROLLBACK included.
NOT_READY = 1047
# A member of a MySQL group refuses to begin a transaction, and the ROLLBACK as well: it is a
# new primary that still applies what the former one sent (3781 to 3783), the wait of
# group_replication_consistency failed, or the plugin stops.
GROUP_REFUSED = frozenset({3781, 3782, 3783, 3796, 3797, 3798, 3799})
# Deadlock (and a certification failure, also in COMMIT), record changed since the last read,
# lock wait timeout.
ROLLED_BACK = frozenset({1213, 1020, 1205}) | READ_ONLY | FULL | NO_MEMORY | LOG_OVERFLOW
# An answer that cannot be read (0), connection lost (2026 with TLS) or killed, commands out of
# sync, statement interrupted, error during COMMIT, server shutdown, network error.
#
# 1180 (Galera), 3100 and 3101 (MySQL group) end a COMMIT whose server lost its majority. The
# server has rolled back and may even acknowledge a ROLLBACK; but it may have sent the
# transaction before, and the other members have committed it then.
AMBIGUOUS = frozenset(
    {
        0,
        3100,
        3101,
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
# The connection is gone, and most likely all others to the server.
LOST = AMBIGUOUS - {1317, 1969, 3024, 1180, 3100, 3101}
_TABLE_REMEDY = (
    "The table is missing or was altered: restore it, "
    "then run manage.py verify on its topic."
)
# Two spellings: `28 "No space …"` and `errno 28 - No …`. A 28 after `=` is
# something else, such as the id of a space.
_NO_SPACE = re.compile(r"(?<!=)\b28 [\"-]|quota exceeded", re.IGNORECASE)
# SQLite reports these as SQLITE_ERROR, so only the text tells them apart.
_ALTERED_TEXTS = ("no such table", "no such column", "has no column named")
_RIGHT_REMEDY = (
    "The node's account lacks a right: manage.py grants prints what it needs (manage.py grants "
    "group, too, on a MySQL group)."
)
_DENIED = frozenset({1044, 1142, 1143, 1227, 1370})
# No such table or column, or another number of columns.
_WRONG_TABLE = frozenset({1146, 1054, 1136, 1364, 1932})
REMEDIES = {
    **dict.fromkeys(_WRONG_TABLE, _TABLE_REMEDY),
    **dict.fromkeys(_DENIED, _RIGHT_REMEDY),
    3098: "A table of the node has no primary key, or is not in InnoDB. Group Replication "
    "refuses writes to it: restore the table.",
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


class NotReady(ReadOnly):
    """A member of a cluster ran nothing: it has no majority, or has not caught up.

    An open transaction stays open, and ends with the connection. It is never committed.
    """


class Unreachable(NodeUnavailable):
    """No connection could be made."""


class SlowNode(NodeUnavailable):
    """The answer did not begin within the request's time limit; the node may be healthy."""


class NoPartition(RolledBack):
    """The table has no partition for these offsets yet."""


class Ambiguous(OutcomeUnknown):
    """The outcome of a statement is unknown.

    `lost`: because the connection broke, or stayed silent for too long.
    """

    lost = False


class Final(StoreCorrupt):
    """The node cannot run this statement at all."""


class Altered(Final):
    """A table is missing or was altered."""


class NotInPlace(Final):
    """The server cannot alter the table in place."""


class NoIndex(Final):
    """The statement names an index that the table lacks."""


class Denied(Final):
    """The account lacks a right."""


_BY_NUMBER: dict[int, type[RolledBack | Final]] = {
    REFUSED: Refused,
    DUPLICATE: Duplicate,
    NO_PARTITION: NoPartition,
    NOT_READY: NotReady,
    **dict.fromkeys(GROUP_REFUSED, NotReady),
    NOT_IN_PLACE: NotInPlace,
    NO_INDEX: NoIndex,
    **dict.fromkeys(READ_ONLY, ReadOnly),
}


def is_full(number: int, text: str) -> bool:
    """Return True if a MySQL error means that a disk of the node is full.

    >>> is_full(3, 'Error writing file ... (Errcode: 28 "No space left on device")')
    True
    >>> is_full(1030,
    ...     'Got error 168 "Unknown (generic) error from engine" from storage engine InnoDB')
    False
    """
    return number in FULL or (number in FILE_ERRORS and _NO_SPACE.search(text) is not None)


def from_mysql(number: int, text: str, node: str) -> RolledBack | Ambiguous | Final:
    """Return the error for a MySQL error number, as it is before any ROLLBACK."""
    detail = f"Node {node} answered {number}: {text}"
    if number in _BY_NUMBER:
        return _BY_NUMBER[number](detail)
    if is_full(number, text):
        return RolledBack(
            f"{detail}. Free or add disk space on the node.", code=Code.NODE_FULL
        )
    if number in ROLLED_BACK:
        return RolledBack(detail)
    if number == OUT_OF_RANGE and "catmq_session" in text:
        # Unknown, because the proxy may end the transaction on the former server as it likes.
        return Ambiguous(
            f"Node {node} is behind a proxy that has changed the server in the middle of a "
            "transaction. Give the address of the server itself."
        )
    if number in AMBIGUOUS:
        error = Ambiguous(detail)
        error.lost = number in LOST
        return error
    error_class = (
        Altered if number in _WRONG_TABLE else Denied if number in _DENIED else Final
    )
    return error_class(f"{detail}. {REMEDIES[number]}" if number in REMEDIES else detail)


def from_sqlite(error: sqlite3.Error, node: str) -> RolledBack | Ambiguous | Final:
    """Return the error for an SQLite error."""
    # The low byte is the primary result code; the rest only refines it.
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
    if code == sqlite3.SQLITE_ERROR and any(text in str(error) for text in _ALTERED_TEXTS):
        return Altered(f"{detail}. {_TABLE_REMEDY}")
    if code == sqlite3.SQLITE_ERROR and "no such index" in str(error):
        return NoIndex(detail)
    return Final(detail)
