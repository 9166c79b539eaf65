"""Base classes of the components of a consumer that send requests to brokers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from catmq_client.errors import CatmqError
from catmq_client.http.backoff import Backoff
from catmq_client.http.transport import Transport, api_path
from catmq_client.reading.state import GroupState

log: logging.Logger = logging.getLogger("catmq.consumer")

# Abandoned pulls that still wait at the broker. At this number, interrupt() abandons no
# more, because each of them holds a connection and a thread.
MAX_ABANDONED = 4

ErrorHandler = Callable[[CatmqError, str | None], bool]


class Component:
    """Base class of a component that sends requests and shares the consumer's state."""

    def __init__(
        self,
        *,
        transport: Transport,
        state: GroupState,
        handle_error: ErrorHandler = lambda error, consumer_id: False,
    ) -> None:
        """Store what all components need.

        `handle_error(error, consumer_id)` applies an error to the consumer: it ends the
        membership or the consumer, and returns True. It returns False if a repeat of the
        request may help.
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
        """Send a POST request.

        `timeout_s` defaults to request_timeout_ms; `first` is the broker to try first.
        """
        if timeout_s is None:
            timeout_s = self._options.request_timeout_ms / 1000
        return self._transport.request(
            "POST", api_path(*parts), body=body, timeout_s=timeout_s, first=first
        )


class LongPoll(Component):
    """A component whose requests wait at the broker, never two at a time.

    What must not wait for the end of such a request calls interrupt(): the ticket of the
    request becomes invalid, its answer is dropped, and a new thread sends the next request.
    """

    def __init__(
        self, *, transport: Transport, state: GroupState, handle_error: ErrorHandler
    ) -> None:
        super().__init__(transport=transport, state=state, handle_error=handle_error)
        self._ticket = 0
        self._abandoned = 0
        self._in_pull = False
        # Rises with each change that ends the wait of a back-off.
        self._wake_count = 0

    def run(self) -> None:
        """Pull until the consumer stops, or until interrupt() starts a thread that replaces
        the caller.
        """
        self._pull_until_superseded(self._ticket)

    def interrupt(self) -> None:
        """Abandon the waiting pull and start the next pull in a new thread.

        Called when a seek, a resume or a new queue changes which offsets must be pulled.
        """
        with self._state.changed:
            self._wake_count += 1
            self._state.changed.notify_all()
            if not self._in_pull or self._abandoned >= MAX_ABANDONED:
                return
            self._ticket += 1
            self._abandoned += 1
            self._in_pull = False
            # Python cannot cancel a request that waits in another thread, so that thread is
            # left to end by itself.
            threading.Thread(
                target=self._pull_until_superseded,
                args=(self._ticket,),
                name="catmq-fetcher",
                daemon=True,
            ).start()

    def _pull_until_superseded(self, ticket: int) -> None:
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
                self._pull_once(ticket, backoff)
            except Exception:
                log.exception("internal error while fetching; continuing")
                state.wait(backoff.next_s(), lambda: state.stopping)
        with state.changed:
            self._abandoned -= ticket != self._ticket

    def _pull_once(self, ticket: int, backoff: Backoff) -> None:
        """Make a pull, or wait until a pull is possible."""
        raise NotImplementedError

    def _after_failure(
        self, error: CatmqError, consumer_id: str, *, ticket: int, backoff: Backoff
    ) -> None:
        """Handle the error of a pull, then wait for the back-off unless something changes."""
        state = self._state
        with state.changed:
            is_current = ticket == self._ticket
            if is_current:
                self._in_pull = False
            wake_count = self._wake_count
        # An error of an abandoned pull does not concern the current pull, but it may end
        # the membership.
        if self._handle_error(error, consumer_id) or not is_current:
            return
        # A broker that drains is no problem: the next request goes to another broker.
        log.log(
            logging.INFO if error.code == "draining" else logging.WARNING,
            "fetching failed: %s",
            error,
        )
        state.wait(
            backoff.next_s(error), lambda: state.stopping or self._wake_count != wake_count
        )
