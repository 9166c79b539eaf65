"""A MySQL backend for Django whose connections come from a pool. Django finds it by this
module's name.
"""

from __future__ import annotations

import os
import time
from contextlib import closing
from typing import Any

from django.db.backends.mysql import base
from django.db.backends.utils import debug_transaction

from catmq_site.mysql import galera, servers
from catmq_site.mysql.idle import idle
from metadata.db.transactions import note_connection
from metadata.rules import tls
from metadata.rules.addresses import is_list
from metadata.rules.tls import TlsMode

_TLS_MODES = {
    "REQUIRED": TlsMode.ON,
    "VERIFY_IDENTITY": TlsMode.VERIFY,
}  # tls.connect_arguments() maps them the other way
MAX_AGE_S = 300  # connections are renewed, so that a moved server is found


class DatabaseWrapper(base.DatabaseWrapper):
    """A thread's connection, taken from the idle connections and given back by close().

    `last_words` are statements that a transaction sends together with its COMMIT, in a
    single string. A lock that they take is then held only while the server works, not while
    this process waits for a round trip.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.last_words: list[str] = []

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        """Return an idle connection with the same parameters, or a new connection.

        Of several servers it goes to that which accepts writes.
        """
        own_servers = writer = None
        if is_list(conn_params.get("host", "")):
            own_servers = servers.of_list(self.Database, conn_params["host"])
            writer = own_servers.find_writer(conn_params)
            place = writer.address
            note_connection(str(place))
            # Part of the key below: connections to a former writer are not used again.
            conn_params = {**conn_params, "host": place.host, "port": place.port}
        else:
            note_connection("")
        # The isolation level belongs to the session but not to conn_params. Without it the
        # aliases `default` and `snapshot` would exchange connections, and a snapshot would
        # not be consistent.
        self._pool_key = repr(
            (self.isolation_level, sorted(conn_params.items(), key=lambda item: item[0]))
        )
        self._is_pooled = (raw := idle.take(self._pool_key)) is not None
        if raw is None:
            mode = _TLS_MODES.get(conn_params.get("ssl_mode", ""), TlsMode.OFF)
            try:
                host = conn_params.get("host", "localhost")
                tls.check_driver(mode, host, self.Database.get_client_info(), os.environ)
                raw = super().get_new_connection(conn_params)
                if tls.is_plain(mode, raw.server_capabilities):
                    raw.close()
                    raise tls.PlainText
                raw.is_galera = galera.set_up(raw)
                if own_servers is not None and writer is not None:
                    own_servers.settle(raw, writer)
            except tls.Refused as refusal:
                raise self.Database.OperationalError(*refusal.args) from None
            except self.Database.Error:
                if own_servers is not None:
                    own_servers.forget()
                if raw is not None:  # connected, but its server does not catch up
                    raw.close()
                raise
            raw.born = time.monotonic()
        return raw

    def init_connection_state(self) -> None:
        """Set up a new session. That of a pooled connection is set up already."""
        if not self._is_pooled:
            super().init_connection_state()

    def set_autocommit(self, autocommit: bool, *args: bool, **kwargs: bool) -> None:
        """Do as Django does, but save the round trip where a pooled connection is in
        autocommit mode.
        """
        # None if the connection was lost in its transaction
        state_is_known = self.connection is not None and self._is_pooled
        if (
            state_is_known
            and autocommit
            and self.run_on_commit == []
            and self.connection.get_autocommit()
        ):
            self.autocommit = True
            return
        super().set_autocommit(autocommit, *args, **kwargs)

    def _commit(self) -> None:
        if not self.last_words:
            super()._commit()  # type: ignore[misc]  # the stubs lack it
            return
        statements, self.last_words = [*self.last_words, "COMMIT"], []
        text = (
            galera.as_one_statement(statements)
            if self.connection.is_galera
            else "; ".join(statements)
        )
        # After an error in the middle the caller rolls back, as after any failed COMMIT.
        with (
            debug_transaction(self, "COMMIT"),
            self.wrap_database_errors,
            closing(self.connection.cursor()) as cursor,
        ):
            cursor.execute(text)
            # Each statement has a result. The next statement after an unread result would
            # raise 2014 (commands out of sync).
            while cursor.nextset():
                pass

    def _rollback(self) -> None:
        self.last_words = []
        super()._rollback()  # type: ignore[misc]  # the stubs lack it

    def _close(self) -> None:
        self.last_words = []
        if self.connection is None:
            return
        is_young = time.monotonic() - self.connection.born < MAX_AGE_S
        is_clean = not self.in_atomic_block and not self.errors_occurred and self.autocommit
        # The server may have failed, and the idle connections with it.
        if self.errors_occurred:
            idle.drop(self._pool_key)
        if not (is_young and is_clean and idle.give(self._pool_key, self.connection)):
            super()._close()  # type: ignore[misc]  # the stubs lack it
