"""Delivery of messages to a group, as heartbeats tell its members: the settings of subscriptions."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from msgspec import UNSET, UnsetType

from brokerapi.shapes.base import Answer
from metadata.cache import snapshot
from metadata.rules.groups.delivery import Delivery


class DeliverySettings(Answer, kw_only=True, omit_defaults=True):
    """Settings of a subscription; what is left out, the member decides by its own options.

    A filter by `tags` and the delay are at work at the broker.
    """

    ordered: bool
    retries: int
    retry_delays_s: list[int]
    delay_s: int
    tags: list[str]
    breaker_pause_s: int
    handler_timeout_ms: int | UnsetType = UNSET
    breaker_failures: int | UnsetType = UNSET
    threads: int | UnsetType = UNSET
    handler_batch: int | UnsetType = UNSET
    max_poll_records: int | UnsetType = UNSET
    fetch_max_wait_ms: int | UnsetType = UNSET


def delivery_settings(group_id: int, topics: Iterable[str]) -> dict[str, DeliverySettings]:
    """The settings of a group's subscriptions to some topics, by topic, as the snapshot has them.

    What failed of a topic comes by the settings of that topic, so those stand for its failure topic.
    """
    known = snapshot.current()
    found: dict[str, DeliverySettings] = {}
    for name in topics:
        topic = known.topic(name)
        if topic is not None and topic.failure_of is not None:
            topic = known.topics.get(topic.failure_of)
        if topic is not None and topic.name not in found:
            found[topic.name] = _settings(known.delivery(group_id, topic.id))
    return found


@lru_cache(maxsize=1_000)
def _settings(delivery: Delivery) -> DeliverySettings:
    # Heartbeats come by the hundred a second, and most subscriptions are alike.
    return DeliverySettings(
        ordered=delivery.ordered,
        retries=delivery.retries,
        retry_delays_s=list(delivery.retry_delays_s),
        delay_s=delivery.delay_s,
        tags=list(delivery.tags),
        breaker_pause_s=delivery.breaker_pause_s,
        handler_timeout_ms=_given(delivery.handler_timeout_ms),
        breaker_failures=_given(delivery.breaker_failures),
        threads=_given(delivery.threads),
        handler_batch=_given(delivery.handler_batch),
        max_poll_records=_given(delivery.max_poll_records),
        fetch_max_wait_ms=_given(delivery.fetch_max_wait_ms),
    )


def _given(value: int | None) -> int | UnsetType:
    return UNSET if value is None else value
