"""Logs a repeated failure once at its start, once a minute, and once at its end."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from catmq_client.errors import CatmqError, ConnectFailed

# Time between two lines about a failure that lasts.
AGAIN_S = 60.0


# Where an application configures the URLs of brokers.
URLS_FROM = "CATMQ_URL or the first argument"


def broker_hint(urls_from: str, urls: Iterable[str]) -> str:
    """Return the question to ask when no broker can be reached.

    `urls_from` names the place where `urls` are configured.
    """
    return f"Is a broker running there? {urls_from} says {', '.join(urls)}"


def with_hint(error: CatmqError, transport: object) -> str:
    """Return the text of a transport's error, with broker_hint() if no broker was reached."""
    urls = getattr(transport, "urls", ())
    if not isinstance(error, ConnectFailed) or not urls:
        return str(error)
    return f"{error}\n  {broker_hint(getattr(transport, 'urls_from', URLS_FROM), urls)}"


class FailureLog:
    """The log lines of a repeated action.

    Not locked: two threads that share a FailureLog may log a line twice.
    """

    def __init__(self, log: logging.Logger, action: str) -> None:
        """`action` is the subject of the log lines, as "group g: the heartbeat"."""
        self._log = log
        self._action = action
        self._failing_since: float | None = None
        self._logged_at = 0.0

    def failed(self, error: object, *, level: int = logging.WARNING) -> None:
        """Log a failure if the last line is AGAIN_S old; others at debug level."""
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = self._logged_at = now
            self._log.log(level, "%s failed: %s", self._action, error)
        elif now - self._logged_at >= AGAIN_S:
            self._logged_at = now
            self._log.log(
                level,
                "%s still fails after %.0f s: %s",
                self._action,
                now - self._failing_since,
                error,
            )
        else:
            self._log.debug("%s failed: %s", self._action, error)

    def ended(self) -> None:
        if self._failing_since is not None:
            self._log.info(
                "%s works again after %.1f s",
                self._action,
                time.monotonic() - self._failing_since,
            )
            self._failing_since = None
