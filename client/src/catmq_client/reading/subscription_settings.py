"""Delivery settings of a group's subscriptions, which heartbeats bring.

They are set by operators and take precedence over the options of this consumer. The options
apply to settings that they leave open.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from catmq_client.options import ConsumerOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a subscription. None: the option of the consumer applies."""

    # A failed message holds up its queue (in run(order="key") its key) until it succeeds or
    # its retries are used up.
    ordered: bool = False
    # Retries after the first delivery. Then the message becomes a dead letter.
    retries: int = 16
    # Pauses before retry 1, 2, …, s. The last pause repeats.
    retry_delays_s: tuple[int, ...] = (10, 30, 60, 300, 600, 1_800, 3_600)
    # Delay between the store and the delivery of a message, s. The broker applies it, as it
    # does the filters.
    delay_s: int = 0
    tags: tuple[str, ...] = ()
    # Accepted values of headers, by header name.
    headers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # A handler that takes longer has failed, ms. None: no limit.
    handler_timeout_ms: int | None = None
    # Number of failures in a row that pause the subscription for breaker_pause_s. None:
    # never.
    breaker_failures: int | None = None
    breaker_pause_s: int = 30
    # Limits of the whole consumer: see Limits.
    threads: int | None = None
    handler_batch: int | None = None
    max_poll_records: int | None = None
    fetch_max_wait_ms: int | None = None
    # Share of the messages that are traced, %.
    trace_percent: int = 0

    @classmethod
    def from_answer(cls, answer: Mapping[str, Any]) -> Settings:
        """Read the settings of a topic. Missing settings have their default."""
        settings: dict[str, Any] = {
            name: answer[name] for name in _FIELD_NAMES if answer.get(name) is not None
        }
        for name in ("retry_delays_s", "tags"):
            if name in settings:
                settings[name] = tuple(settings[name])
        settings["headers"] = {
            name: tuple(values) for name, values in settings.get("headers", {}).items()
        }
        return cls(**settings)

    @classmethod
    def by_topic(cls, answer: Mapping[str, Any]) -> dict[str, Settings]:
        return {
            topic: cls.from_answer(settings)
            for topic, settings in answer.get("subscriptions", {}).items()
        }

    def same_filter(self, other: Settings) -> bool:
        return (self.tags, self.headers) == (other.tags, other.headers)

    def takes(self, tag: str | None, headers: Mapping[str, str] | None) -> bool:
        """Return True if a message has any of the tags, and any of the values of each
        header.

        >>> Settings(headers={"region": ("eu", "us")}).takes(None, {"region": "us"})
        True
        """
        return (not self.tags or tag in self.tags) and all(
            (headers or {}).get(name) in values for name, values in self.headers.items()
        )

    def pause_s(self, retry: int) -> float:
        """Return the pause before the retry with this number, counted from 1.

        >>> [Settings(retry_delays_s=(10, 30)).pause_s(retry) for retry in (1, 2, 3)]
        [10, 30, 30]
        """
        delays = self.retry_delays_s
        return delays[min(retry, len(delays)) - 1] if delays else 0


_FIELD_NAMES = tuple(field.name for field in fields(Settings))
DEFAULTS = Settings()


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the whole consumer.

    `threads` and `handler_batch` None: the arguments of run() apply.
    """

    threads: int | None
    handler_batch: int | None
    max_poll_records: int
    fetch_max_wait_ms: int


def limits(options: ConsumerOptions, settings: Iterable[Settings]) -> Limits:
    """Return the limits of a consumer: the most threads and the least of all else that is
    set.

    >>> limits(ConsumerOptions(), [Settings(threads=2, max_poll_records=9), Settings(threads=4)])
    Limits(threads=4, handler_batch=None, max_poll_records=9, fetch_max_wait_ms=30000)
    """
    subscriptions = list(settings)
    batches = [s.handler_batch for s in subscriptions if s.handler_batch is not None]
    records = [s.max_poll_records for s in subscriptions if s.max_poll_records is not None]
    waits = [s.fetch_max_wait_ms for s in subscriptions if s.fetch_max_wait_ms is not None]
    return Limits(
        threads=max(
            (s.threads for s in subscriptions if s.threads is not None), default=None
        ),
        handler_batch=min(batches, default=None),
        max_poll_records=min(records, default=options.max_poll_records),
        fetch_max_wait_ms=min(waits, default=options.fetch_max_wait_ms),
    )
