"""Kinds, engines and states of nodes. Their values are stored and sent."""

from __future__ import annotations

from enum import StrEnum


class NodeKind(StrEnum):
    NORMAL = "normal"
    FAILURE = "failure"  # holds only failure topics


class Engine(StrEnum):
    MYSQL = "mysql"  # or MariaDB
    SQLITE = "sqlite"


class NodeState(StrEnum):
    READ_WRITE = "read_write"
    READ_ONLY = "read_only"  # sends go to other nodes
    OFFLINE = "offline"  # neither sends nor reads
