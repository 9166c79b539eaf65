"""Delays before another try."""

from __future__ import annotations

import random

from catmq_client.errors import CatmqError

RATE_LIMITED = "rate_limited"


class Backoff:
    """Delays in seconds that double from `base_ms` to `max_ms`, each shortened by up to half at random.

    The jitter keeps many clients that lost the same broker from coming back at the same instant.
    """

    def __init__(self, *, base_ms: int = 100, max_ms: int = 10_000) -> None:
        self._base_s = base_ms / 1000
        self._max_s = max_ms / 1000
        self._tries = 0

    def reset(self) -> None:
        """Starts again at `base_ms`: something succeeded."""
        self._tries = 0

    def next_s(self, error: CatmqError | None = None) -> float:
        """The next delay; at least what the broker asked for in `retry_after_ms`.

        Who sends too much is told when there is room again, so the delay is about that and does not grow.
        """
        if error is not None and error.code == RATE_LIMITED and error.retry_after_ms is not None:
            return error.retry_after_ms / 1000 * random.uniform(1.0, 1.25)
        # 2 ** 20 is past any max_ms; without the cap a long outage would build huge integers.
        full: float = min(self._max_s, self._base_s * (1 << min(self._tries, 20)))
        self._tries += 1
        asked_s = (error.retry_after_ms or 0) / 1000 if error is not None else 0.0
        return max(asked_s, full * random.uniform(0.5, 1.0))
