"""Parts of a consumer that speak to brokers, in threads of their own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from catmq_client.errors import CatmqError
from catmq_client.http.backoff import Backoff
from catmq_client.http.transport import Transport, api_path
from catmq_client.reading.state import GroupState

log = logging.getLogger("catmq.consumer")

# Pulls that were given up but still wait at the broker; while there are so many, none is
# given up.
MAX_ABANDONED = 4

ErrorHandler = Callable[[CatmqError, str | None], bool]


class Part:
    """Base of all; they share the state."""

    def __init__(
        self,
        *,
        transport: Transport,
        state: GroupState,
        handle_error: ErrorHandler = lambda error, consumer_id: False,
    ) -> None:
        """`handle_error(error, consumer_id)` draws the consequences of an error; False: trying
        again may help.
        """
        self._transport = transport
        self._state = state
        self._handle_error = handle_error
        self._options = state.options

    def _post(
        self,
        *parts: str,
        body: dict[str, Any],
        timeout_s: float | None = None,
        first: str | None = None,
    ) -> dict[str, Any]:
        limit_s = (
            self._options.request_timeout_ms / 1000 if timeout_s is None else timeout_s
        )
        path = api_path(*parts)
        return self._transport.request(
            "POST", path, body=body, timeout_s=limit_s, first=first
        )


class LongPoll(Part):
    """A part whose requests wait at the broker, one at a time; what must not wait for that
    gives one up.

    Then the request's ticket no longer counts, and another thread goes on.
    """

    def __init__(
        self, *, transport: Transport, state: GroupState, handle_error: ErrorHandler
    ) -> None:
        super().__init__(transport=transport, state=state, handle_error=handle_error)
        self._ticket = 0
        self._abandoned = 0
        self._in_pull = False
        # Rises when something changed that a back-off must not outlast.
        self._pokes = 0

    def run(self) -> None:
        """Bring messages until the consumer stops; a thread that is given up starts the
        next one.
        """
        self._run(self._ticket)

    def interrupt(self) -> None:
        """Make a waiting pull count for nothing, so that what just changed is fetched at
        once.
        """
        with self._state.changed:
            self._pokes += 1
            self._state.changed.notify_all()
            if not self._in_pull or self._abandoned >= MAX_ABANDONED:
                return
            self._ticket += 1
            self._abandoned += 1
            self._in_pull = False
            ticket = self._ticket
            threading.Thread(
                target=self._run, args=(ticket,), name="catmq-fetcher", daemon=True
            ).start()

    def _run(self, ticket: int) -> None:
        state, options = self._state, self._options
        backoff = Backoff(
            base_ms=options.retry_backoff_ms,
            max_ms=min(2_000, options.retry_backoff_max_ms),
        )
        while (
            ticket == self._ticket
            and not state.closed
            and not state.stopping
            and state.fatal is None
        ):
            try:
                self._step(ticket, backoff)
            except Exception:
                log.exception("internal error while fetching; continuing")
                state.wait(backoff.next_s(), lambda: state.stopping)
        with state.changed:
            self._abandoned -= ticket != self._ticket

    def _step(self, ticket: int, backoff: Backoff) -> None:
        """Make one pull, or wait until one is possible."""
        raise NotImplementedError

    def _after_failure(
        self, error: CatmqError, consumer_id: str, *, ticket: int, backoff: Backoff
    ) -> None:
        state = self._state
        with state.changed:
            current = ticket == self._ticket
            if current:
                self._in_pull = False
            pokes = self._pokes
        if self._handle_error(error, consumer_id) or not current:
            return
        # A broker that is stopping says so: nothing is wrong.
        log.log(
            logging.INFO if error.code == "draining" else logging.WARNING,
            "fetching failed: %s",
            error,
        )
        state.wait(backoff.next_s(error), lambda: state.stopping or self._pokes != pokes)
