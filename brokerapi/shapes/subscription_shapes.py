"""The shapes of requests and answers about subscriptions (see management)."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from brokerapi.shapes.fields import Change, Flag, Number, Request, Text


class SubscriptionCreate(Request):
    """A topic for a group to read."""

    topic = Text()
    start = serializers.ChoiceField(choices=["earliest", "latest"], default="earliest")


class SubscriptionChange(Change):
    """Changes to a subscription."""

    stopped = Flag(required=False)
    stopped_queues = serializers.ListField(
        child=Number(), required=False, help_text="ids of queues that are not read for now"
    )
    ordered = Flag(
        required=False, help_text="a failing message holds its queue until its retries are used up"
    )
    retries = Number(required=False, help_text="after the first delivery; then a message is dead")
    retry_delays_s = serializers.ListField(
        child=Number(), required=False, help_text="pauses before retry 1, 2, …; the last one repeats"
    )
    dead_days = Number(required=False, help_text="how long dead messages are kept")
    delay_s = Number(required=False, help_text="a message is served so long after it was stored")
    tags = Text(required=False, help_text="tags joined by || or commas; empty: all messages")
    handler_timeout_ms = Number(required=False, allow_null=True, help_text="null: no limit")
    breaker_failures = Number(
        required=False, allow_null=True, help_text="so many failures in a row pause reading; null: never"
    )
    breaker_pause_s = Number(required=False, help_text="how long, before one message is tried")
    threads = Number(required=False, allow_null=True, help_text="of a member's run(); null: as it says")
    handler_batch = Number(required=False, allow_null=True, help_text="messages a handler gets at once")
    max_poll_records = Number(required=False, allow_null=True)
    fetch_max_wait_ms = Number(required=False, allow_null=True)


class SubscriptionAnswer(serializers.Serializer[Any]):
    """A topic that a group reads."""

    group = Text()
    topic = Text()
    state = Text()
    start = Text()
    stopped = Flag()
    stopped_queues = serializers.ListField(child=Number())
    ordered = Flag()
    retries = Number()
    retry_delays_s = serializers.ListField(child=Number())
    dead_days = Number()
    delay_s = Number()
    tags = Text(help_text="tags joined by || or commas; empty: all messages")
    handler_timeout_ms = Number(allow_null=True)
    breaker_failures = Number(allow_null=True)
    breaker_pause_s = Number()
    threads = Number(allow_null=True)
    handler_batch = Number(allow_null=True)
    max_poll_records = Number(allow_null=True)
    fetch_max_wait_ms = Number(allow_null=True)
    created_at_ms = Number()


class TagMatchesAnswer(serializers.Serializer[Any]):
    """A tag filter, tried on the last messages of a topic."""

    looked_at = Number(help_text="messages, an even share of the last ones of each queue")
    matching = Number(help_text="of them")
    away = serializers.ListField(child=Text(), help_text="nodes that did not answer")
