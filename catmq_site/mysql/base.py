"""The backend itself; Django finds it by this module's name."""

from __future__ import annotations

import os
import time
from contextlib import closing
from typing import Any

from django.db.backends.mysql import base
from django.db.backends.utils import debug_transaction

from catmq_site.mysql.idle import idle
from metadata.db.transactions import note_connection
from metadata.rules import tls

_MODES = {"REQUIRED": "on", "VERIFY_IDENTITY": "verify"}  # as tls.arguments() has them
MAX_AGE_S = 300  # no connection is kept longer, so that a moved server is found


class DatabaseWrapper(base.DatabaseWrapper):
    """One thread's connection, taken from the idle ones and given back by close().

    `last_words` are statements that a transaction sends together with its COMMIT, in one
    string: a lock that they take is held while the server works, and not while this process
    waits.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.last_words: list[str] = []

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        """An idle connection made with the same parameters, else a new one."""
        note_connection()
        # The isolation level is part of the session but not of conn_params: without it the
        # aliases `default`
        # and `snapshot` would exchange their connections, and snapshots would be torn.
        self._kind = repr(
            (self.isolation_level, sorted(conn_params.items(), key=lambda item: item[0]))
        )
        self._seasoned = (raw := idle.take(self._kind)) is not None
        if raw is None:
            mode = _MODES.get(conn_params.get("ssl_mode", ""), "off")
            try:
                host = conn_params.get("host", "localhost")
                tls.check_driver(mode, host, self.Database.get_client_info(), os.environ)
                raw = super().get_new_connection(conn_params)
                if tls.is_plain(mode, raw.server_capabilities):
                    raw.close()
                    raise tls.PlainText
            except tls.Refused as refusal:
                raise self.Database.OperationalError(*refusal.args) from None
            raw.born = time.monotonic()
        return raw

    def init_connection_state(self) -> None:
        """Set up the session; one from the pool is already."""
        if not self._seasoned:
            super().init_connection_state()

    def set_autocommit(self, autocommit: bool, *more: bool, **named: bool) -> None:
        """As Django's, but a pooled connection is known to be in autocommit mode: no round
        trip for that.
        """
        # it may have been lost in its transaction
        known = self.connection is not None and self._seasoned
        if (
            known
            and autocommit
            and self.run_on_commit == []
            and self.connection.get_autocommit()
        ):
            self.autocommit = True
            return
        super().set_autocommit(autocommit, *more, **named)

    def _commit(self) -> None:
        if not self.last_words:
            super()._commit()  # type: ignore[misc]  # the stubs lack it
            return
        text, self.last_words = "; ".join([*self.last_words, "COMMIT"]), []
        # What an error in the middle leaves open the caller rolls back, as after any COMMIT
        # that failed.
        with (
            debug_transaction(self, "COMMIT"),
            self.wrap_database_errors,
            closing(self.connection.cursor()) as cursor,
        ):
            cursor.execute(text)
            while cursor.nextset():
                pass

    def _rollback(self) -> None:
        self.last_words = []
        super()._rollback()  # type: ignore[misc]  # the stubs lack it

    def _close(self) -> None:
        self.last_words = []
        if self.connection is None:
            return
        young = time.monotonic() - self.connection.born < MAX_AGE_S
        clean = not self.in_atomic_block and not self.errors_occurred and self.autocommit
        if self.errors_occurred:
            idle.drop(self._kind)
        if not (young and clean and idle.give(self._kind, self.connection)):
            super()._close()  # type: ignore[misc]  # the stubs lack it
