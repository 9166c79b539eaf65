"""A log line when something begins to fail and one when it works again, however often it is
tried.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from catmq_client.errors import CatmqError, ConnectFailed

AGAIN_S = 60.0  # between two lines about a failure that lasts


# Where an application gives the URLs of brokers.
URLS_FROM = "CATMQ_URL or the first argument"


def broker_hint(urls_from: str, urls: Iterable[str]) -> str:
    """Return what to ask when no broker can be reached; `urls_from` names the source of
    `urls`.
    """
    return f"Is a broker running there? {urls_from} says {', '.join(urls)}"


def with_hint(error: CatmqError, transport: object) -> str:
    """Return the text of a transport's error, with the question if no broker could be
    reached.
    """
    urls = getattr(transport, "urls", ())
    if not isinstance(error, ConnectFailed) or not urls:
        return str(error)
    return f"{error}\n  {broker_hint(getattr(transport, 'urls_from', URLS_FROM), urls)}"


class FailureLog:
    """One thing that is tried again and again. Two threads that use one may say a line
    twice.
    """

    def __init__(self, log: logging.Logger, what: str) -> None:
        """`what` fails or works, as "group g: the heartbeat"."""
        self._log = log
        self._what = what
        self._since: float | None = None
        self._told_at = 0.0

    def failed(self, error: object, *, level: int = logging.WARNING) -> None:
        """It failed; said at the begin and every AGAIN_S."""
        now = time.monotonic()
        if self._since is None:
            self._since = self._told_at = now
            self._log.log(level, "%s failed: %s", self._what, error)
        elif now - self._told_at >= AGAIN_S:
            self._told_at = now
            self._log.log(
                level,
                "%s still fails after %.0f s: %s",
                self._what,
                now - self._since,
                error,
            )
        else:
            self._log.debug("%s failed: %s", self._what, error)

    def ended(self) -> None:
        if self._since is not None:
            self._log.info(
                "%s works again after %.1f s", self._what, time.monotonic() - self._since
            )
            self._since = None
