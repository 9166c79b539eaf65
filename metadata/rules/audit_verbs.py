"""Verbs of the audit log. Their values are stored."""

from __future__ import annotations

from enum import StrEnum


class Verb(StrEnum):
    CREATE = "create"
    DELETE = "delete"
    UPDATE = "update"
    REMOVE = "remove"  # an object whose tables are gone
    RUN = "run"
    UPGRADE = "upgrade"
    STOP = "stop"  # a redrive
    SHRINK = "shrink"
    SET_READER = "set_reader"
    SET_ACCOUNT = "set_account"
    SAVE = "save"  # a filter of a portal page
    SAW = "saw"  # marked dead letters as seen
    RETIRE = "retire"  # a queue that all groups have read
    REQUIRE = "require"  # a node's schema version, as the least that brokers accept
    REPAIR = "repair"
    RELEASE = "release"  # leases of a share group
    REDRIVE = "redrive"
    REBALANCE = "rebalance"
    RAISE_IDS = "raise_ids"  # the next ids, after a restore
    QUARANTINE = "quarantine"
    PROMOTE = "promote"
    INDEX = "index"  # the key indexes of a topic
    KEEP = "keep"  # a report
    FINISH = "finish"  # a redrive
    EXPAND = "expand"
    DROP = "drop"  # dead letters
    CLEAN = "clean"
    CHANGE_PASSWORD = "change_password"  # noqa: S105 - no secret  # noqa: S105 - no secret
    CANCEL = "cancel"
    ADOPT = "adopt"  # a restored node
    FOLLOW = "follow"  # a node whose writer is another server now
    ACKNOWLEDGE = "acknowledge"
    ADD_TOKEN = "add token"  # noqa: S105 - no secret  # noqa: S105 - no secret
    DELETE_TOKEN = "delete token"  # noqa: S105 - no secret  # noqa: S105 - no secret
    ACCEPT_KEYS = "accept_keys"
    RESET = "reset"
    SEND = "send"
    RECALL = "recall"  # a delayed message
    GIVE_UP = "give up"  # a topic or layout whose tables could not be created
    LAY_OUT = "lay out"
    BEGIN_PROMOTE = "begin_promote"  # followed by promote
    BEGIN_ADOPT = "begin_adopt"  # followed by adopt
    UNDO = "undo"  # a reset of offsets
