"""Subscriptions of a group, and tag filters tried on messages."""

from __future__ import annotations

from rest_framework import serializers

from brokerapi.shapes.fields import Answer, Change, Number, Request, Text, texts
from metadata.rules.settings import DELIVERY, SUBSCRIPTION


class SubscriptionCreate(Request):
    """A topic for a group to read."""

    topic = Text()
    start = serializers.ChoiceField(choices=["earliest", "latest"], default="earliest")


class SubscriptionChange(Change):
    """Changes to a subscription."""

    settings = SUBSCRIPTION


class SubscriptionAnswer(Answer):
    """A topic that a group reads."""

    settings = SUBSCRIPTION
    settings_required = True
    group = Text()
    topic = Text()
    state = Text()
    start = Text()
    created_at_ms = Number()

    def place(self, setting: str) -> dict[str, str]:
        """Return options that say where a setting stands in the view, if not at its own name."""
        return {"source": f"delivery.{setting}"} if setting in DELIVERY else {}


class TagMatchesAnswer(Answer):
    """A tag filter, tried on the last messages of a topic."""

    looked_at = Number(help_text="messages, an even share of the last ones of each queue")
    matching = Number(help_text="of them")
    away = texts(help_text="nodes that did not answer")
