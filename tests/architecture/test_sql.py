"""SQL for MySQL 8.4 and 9.7 and for MariaDB 10.11 and 11.8: the functions, variables and
names they share.

A server says only when a statement runs that it lacks a function, and some statements run
for the first time after weeks: MySQL 9.7 has no SHA1() and no MD5(), and with it no
partition was ever added. So a function or a variable is put on a list here after all four
servers were asked.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from messagestore.tables import statements
from metadata.rules.nodes import Engine
from tests.support.environment import ROOT

PACKAGES = (
    "messagestore",
    "metadata",
    "catmq_site",
    "portal",
    "brokerapi",
    "client/src",
    "spark_tasks",
)


def words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


# FROM_UNIXTIME is missing on purpose: of 0 it is 1970 on MySQL and MariaDB 10.11, and NULL
# on MariaDB 11.8.
EVERYWHERE = words(
    """
    CAST CHAR_LENGTH COALESCE CONCAT CONCAT_WS CONNECTION_ID CONVERT_TZ COUNT CURRENT_ROLE
    CURRENT_USER
    DATABASE GET_LOCK GREATEST IF INSTR LAG LAST_INSERT_ID LEAST LEFT LENGTH MAX MIN ROW_COUNT
    SHA2 SUBSTRING
    SUM TIMESTAMPDIFF UNIX_TIMESTAMP UTC_TIMESTAMP VERSION
    """
)
# a bracket follows these, too
TYPES = frozenset({"BINARY", "DATETIME", "VARBINARY", "VARCHAR"})
ELSEWHERE = frozenset({"STRFTIME", "STATEMENT_TIMESTAMP"})  # of SQLite and PostgreSQL
VARIABLES = words(
    """
    binlog_format character_set_database collation_database hostname
    innodb_flush_log_at_trx_commit log_bin
    max_allowed_packet port read_only server_id sync_binlog version_comment
    in_transaction gtid_binlog_pos gtid_executed gtid_mode proxy_version
    """
)
# What only one of the two has: sessions.py asks which it is, a /*M! comment hides it from
# MySQL, and tables/promotion_sql.py goes on without it.
SETTINGS = words(
    """
    autocommit innodb_flush_log_at_trx_commit innodb_lock_wait_timeout lock_wait_timeout
    read_only sql_mode
    sync_binlog time_zone wait_timeout
    idle_transaction_timeout idle_write_transaction_timeout information_schema_stats_expiry
    super_read_only wsrep_retry_autocommit
    """
)
DROPPED_BY_DJANGO = frozenset({"MD5", "SHA1", "SHA224"})  # django.db.models.functions
RESERVED = words((Path(__file__).parent / "reserved_words.txt").read_text())

FUNCTION = re.compile(r"\b([A-Z][A-Z0-9_]+)\(")
VARIABLE = re.compile(r"@@(?:global\.|session\.)?(\w+)", re.IGNORECASE)
SETTING = re.compile(r"\b(\w+) ?= ?(?:'[^']*'|\d+|\{)")
LITERAL = re.compile(r"'[^']*'|(?<![:\w]):[a-z_]+|\{[a-z_]+\}|@\w+")
NAME = re.compile(r"\b[a-z][a-z0-9_]*\b(?!\()")


def sql_of_files() -> Iterator[tuple[str, str]]:
    """(name, text) of every statement for MySQL and MariaDB."""
    for name, statement in statements.load(Engine.MYSQL).items():
        yield name, statement.text


def sql_of_code() -> Iterator[tuple[str, str]]:
    """(place, text) of every string of the product that is not a docstring."""
    for path in sorted(
        path for package in PACKAGES for path in (ROOT / package).rglob("*.py")
    ):
        tree = ast.parse(path.read_text())
        prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and id(node) not in prose:
                text = (
                    node.value.decode("latin1")
                    if isinstance(node.value, bytes)
                    else node.value
                )
                if isinstance(text, str):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", text


def unknown(text: str) -> set[str]:
    """The functions and variables in a text that some server may lack."""
    functions = set(FUNCTION.findall(text)) - EVERYWHERE - TYPES - ELSEWHERE
    return functions | {
        name for name in VARIABLE.findall(text) if name.lower() not in VARIABLES
    }


def settings(text: str) -> set[str]:
    """The variables that a text sets and that some server may lack."""
    found = re.findall(r"\bSET (?:SESSION|GLOBAL) (?!TRANSACTION)([^;]*)", text)
    return {name for one in found for name in SETTING.findall(one)} - SETTINGS


def reserved(text: str) -> set[str]:
    """The names in a statement, which are in small letters, that are reserved words
    somewhere.
    """
    return set(NAME.findall(LITERAL.sub(" ", text))) & RESERVED


@pytest.mark.parametrize("source", [sql_of_files, sql_of_code])
def test_sql_uses_only_functions_and_variables_that_every_server_has(
    source: object,
) -> None:
    assert callable(source)
    guilty = {
        where: found
        for where, text in source()
        if (found := unknown(text) | settings(text))
    }
    assert guilty == {}


def test_no_name_in_a_statement_is_a_reserved_word_of_a_server() -> None:
    # Proxies answer this one when it is written as the client of MySQL does.
    files = [
        (name, text) for name, text in sql_of_files() if name != "select_version_comment"
    ]
    assert {name: found for name, text in files if (found := reserved(text))} == {}


def test_no_function_of_django_needs_one_that_a_server_lacks() -> None:
    guilty = [
        f"{path.relative_to(ROOT)}: {alias.name}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "django.db.models.functions"
        for alias in node.names
        if alias.name in DROPPED_BY_DJANGO
    ]
    assert guilty == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("SELECT SHA1(DATABASE())", {"SHA1"}),
        ("SELECT @@tx_isolation", {"tx_isolation"}),
        ("WHERE stored_at >= FROM_UNIXTIME(:since_ms / 1000)", {"FROM_UNIXTIME"}),
        ("SET SESSION query_cache_type=0, time_zone='+00:00'", {"query_cache_type"}),
        ("SELECT offset, system FROM {table}", {"offset", "system"}),
    ],
)
def test_what_a_server_lacks_is_seen(text: str, found: set[str]) -> None:
    assert unknown(text) | settings(text) | reserved(text) == found
