"""Delays between tries."""

from __future__ import annotations

import random

from catmq_client.errors import CatmqError

RATE_LIMITED = "rate_limited"
# The broker answers, and asks the node every second or few. A longer delay would only add to
# the outage: after 20 s it would be that of the node plus 10 s.
NODE_ERRORS = ("node_unavailable", "outcome_unknown")
MAX_NODE_DELAY_S = 2.0


def delay_s(failures: int, *, base_s: float, max_s: float) -> float:
    """Return the delay after `failures` earlier failures in a row, in seconds.

    It doubles from `base_s` to `max_s`, less a random part of up to half. The jitter keeps
    many clients that lost the same broker from returning at the same instant.
    """
    # 2 ** 20 is past any maximum; without the cap a long outage would build huge integers.
    return min(max_s, base_s * (1 << min(failures, 20))) * random.uniform(0.5, 1.0)


class Backoff:
    """Delays in seconds from `base_ms` to `max_ms`; see `delay_s`."""

    def __init__(self, *, base_ms: int = 100, max_ms: int = 10_000) -> None:
        self._base_s = base_ms / 1000
        self._max_s = max_ms / 1000
        self._tries = 0

    def reset(self) -> None:
        self._tries = 0

    def next_s(self, error: CatmqError | None = None) -> float:
        """Return the next delay, at least the broker's `retry_after_ms`.

        At a rate limit the broker states when there is room again. The delay then follows
        its answer and does not grow. While a node is away it grows to MAX_NODE_DELAY_S.
        """
        if (
            error is not None
            and error.code == RATE_LIMITED
            and error.retry_after_ms is not None
        ):
            return error.retry_after_ms / 1000 * random.uniform(1.0, 1.25)
        retry_after_s = (error.retry_after_ms or 0) / 1000 if error is not None else 0.0
        is_node_away = error is not None and error.code in NODE_ERRORS
        max_s = min(self._max_s, MAX_NODE_DELAY_S) if is_node_away else self._max_s
        self._tries += 1
        return max(
            retry_after_s, delay_s(self._tries - 1, base_s=self._base_s, max_s=max_s)
        )
