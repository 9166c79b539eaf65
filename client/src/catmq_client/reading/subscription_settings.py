"""Delivery settings of a group's subscriptions, as the broker tells them while we run.

They are the operators' and win over the options of this consumer; what they leave open, the
options decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from catmq_client.options import ConsumerOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Those of one subscription; None: the consumer's own options decide."""

    # A message that fails holds its queue (in run(order="key") its key) until its retries
    # are used up.
    ordered: bool = False
    # Retries after the first delivery; then the message is a dead letter.
    retries: int = 16
    # Pauses before retry 1, 2, …; the last one repeats, s.
    retry_delays_s: tuple[int, ...] = (10, 30, 60, 300, 600, 1_800, 3_600)
    # A message comes so long after it was stored, s; at work at the broker, as are the
    # filters.
    delay_s: int = 0
    tags: tuple[str, ...] = ()
    # Names of headers, each with the values that are taken.
    headers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # A handler that takes longer has failed, ms; None: no limit.
    handler_timeout_ms: int | None = None
    # So many failures in a row pause the subscription for breaker_pause_s; None: never.
    breaker_failures: int | None = None
    breaker_pause_s: int = 30
    # Of the whole consumer: see Limits.
    threads: int | None = None
    handler_batch: int | None = None
    max_poll_records: int | None = None
    fetch_max_wait_ms: int | None = None
    # Share of the messages whose handling is reported, %.
    trace_percent: int = 0

    @classmethod
    def from_answer(cls, given: Mapping[str, Any]) -> Settings:
        """Read the settings from a heartbeat's answer; what it leaves out is the default."""
        known: dict[str, Any] = {
            name: given[name] for name in _NAMES if given.get(name) is not None
        }
        for name in ("retry_delays_s", "tags"):
            if name in known:
                known[name] = tuple(known[name])
        known["headers"] = {
            name: tuple(values) for name, values in known.get("headers", {}).items()
        }
        return cls(**known)

    def same_filter(self, other: Settings) -> bool:
        """Return True if both take the same messages."""
        return (self.tags, self.headers) == (other.tags, other.headers)

    def takes(self, tag: str | None, headers: Mapping[str, str] | None) -> bool:
        """Return True for a message with one of the tags, and with one of the values of
        each header.

        >>> Settings(headers={"region": ("eu", "us")}).takes(None, {"region": "us"})
        True
        """
        carried = headers or {}
        of_headers = all(
            carried.get(name) in values for name, values in self.headers.items()
        )
        return of_headers and (not self.tags or tag in self.tags)

    def pause_s(self, retry: int) -> float:
        """The pause before the retry with this number, from 1 on.

        >>> [Settings(retry_delays_s=(10, 30)).pause_s(retry) for retry in (1, 2, 3)]
        [10, 30, 30]
        """
        return (
            self.retry_delays_s[min(retry, len(self.retry_delays_s)) - 1]
            if self.retry_delays_s
            else 0
        )


_NAMES = tuple(field.name for field in fields(Settings))
DEFAULTS = Settings()


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the whole consumer. `threads` and `handler_batch` None: as run() was told."""

    threads: int | None
    handler_batch: int | None
    max_poll_records: int
    fetch_max_wait_ms: int


def limits(options: ConsumerOptions, settings: Iterable[Settings]) -> Limits:
    """The limits of a consumer: of several subscriptions the most threads, and the least of
    everything else.

    >>> limits(ConsumerOptions(), [Settings(threads=2, max_poll_records=9), Settings(threads=4)])
    Limits(threads=4, handler_batch=None, max_poll_records=9, fetch_max_wait_ms=30000)
    """
    known = list(settings)
    batches = [one.handler_batch for one in known if one.handler_batch is not None]
    records = [one.max_poll_records for one in known if one.max_poll_records is not None]
    waits = [one.fetch_max_wait_ms for one in known if one.fetch_max_wait_ms is not None]
    return Limits(
        threads=max(
            (one.threads for one in known if one.threads is not None), default=None
        ),
        handler_batch=min(batches, default=None),
        max_poll_records=min(records, default=options.max_poll_records),
        fetch_max_wait_ms=min(waits, default=options.fetch_max_wait_ms),
    )
