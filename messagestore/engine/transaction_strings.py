"""The strings in which the statements of a transaction are sent to MySQL and MariaDB.

A plain string is START TRANSACTION, the statements and COMMIT, and each is answered. On Galera
a string is one compound statement. Galera rolls a transaction back at any time, if it conflicts
with one of another member. If that is after the answer to a statement and before the next
statement of the same string, MariaDB goes on outside of a transaction: it runs and keeps the next
statement, and acknowledges a COMMIT that commits nothing. Inside of a compound statement the
conflict is an error (1213). tests/clusters/test_outcomes.py shows both.

A transaction that exceeds `max_allowed_packet`, or needs answers in between, is several strings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

# A compound statement shows the rows of its SELECTs, but no counts. They are kept in a local
# variable, whose assignment does not change ROW_COUNT().
_DECLARE_COUNTS = b"DECLARE catmq_counts LONGTEXT DEFAULT ''"
_NOTE_COUNTS = (
    b"SET catmq_counts = CONCAT(catmq_counts, ROW_COUNT(), ' ', LAST_INSERT_ID(), ' ')"
)
_SHOW_COUNTS = b"SELECT catmq_counts"
_IN_TRANSACTION = (
    b"IF NOT @@in_transaction THEN SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213,"
    b" MESSAGE_TEXT = 'the cluster rolled the transaction back'; END IF"
)
# What is added to a string, and to each of its statements, is shorter.
_BYTES_AROUND = 1_000
_BYTES_BETWEEN = 100


class Rendered(NamedTuple):
    """The text of a single statement, and whether its result has rows."""

    text: bytes
    has_rows: bool


class Result(NamedTuple):
    """Result of a statement: its rows, or the number of rows that it matched.

    `number` is its LAST_INSERT_ID(), if it set one.
    """

    rows: Sequence[tuple[Any, ...]]
    matched: int
    number: int = 0


class Composed(NamedTuple):
    """A string, and the number of results that the server answers."""

    text: bytes
    answers: int


def packed(statements: Sequence[Rendered], *, max_packet: int) -> list[list[Rendered]]:
    """Split statements into as few strings as fit a packet each.

    A statement that does not fit is a string of its own: the server refuses it and says why.
    """
    strings: list[list[Rendered]] = [[]]
    size = _BYTES_AROUND
    for statement in statements:
        statement_size = len(statement.text) + _BYTES_BETWEEN
        if strings[-1] and size + statement_size > max_packet:
            strings.append([])
            size = _BYTES_AROUND
        strings[-1].append(statement)
        size += statement_size
    return strings


def plain(statements: Sequence[Rendered], *, ends: bool, goes_on: bytes | None) -> Composed:
    """Return a plain string. `goes_on`: instead of START TRANSACTION, in a later string."""
    texts = [goes_on or b"START TRANSACTION"]
    texts += [statement.text for statement in statements]
    if ends:
        texts.append(b"COMMIT")
    return Composed(b";".join(texts), len(texts))


def plain_results(
    statements: Sequence[Rendered], answered: Sequence[Result]
) -> Sequence[Result]:
    """Return the results of the statements from the answers to a plain string."""
    return answered[1 : 1 + len(statements)]


def compound(
    statements: Sequence[Rendered], *, ends: bool, goes_on: bytes | None
) -> Composed:
    """Return a compound statement, as `plain` returns a plain string."""
    texts = [_DECLARE_COUNTS]
    texts += [_IN_TRANSACTION, goes_on] if goes_on else [b"START TRANSACTION"]
    for statement in statements:
        texts.append(statement.text)
        if not statement.has_rows:
            texts.append(_NOTE_COUNTS)
    texts.append(_SHOW_COUNTS)
    # COMMIT is the last statement: one after it could be refused (1047, the member has lost its
    # majority meanwhile), which would be taken for a transaction that is not stored.
    if ends:
        texts.append(b"COMMIT")
    # The rows, the counts, and the end of the compound statement.
    answers = sum(statement.has_rows for statement in statements) + 2
    return Composed(b"BEGIN NOT ATOMIC %b; END" % b"; ".join(texts), answers)


def compound_results(
    statements: Sequence[Rendered], answered: Sequence[Result]
) -> Sequence[Result]:
    """Return the results of the statements from the answers to a compound statement."""
    *selected, counts, _end = answered
    rows = iter(selected)
    numbers = map(int, counts.rows[0][0].split())
    return [
        next(rows) if statement.has_rows else Result((), next(numbers), next(numbers))
        for statement in statements
    ]
