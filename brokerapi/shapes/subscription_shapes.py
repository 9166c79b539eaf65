"""Subscriptions of a group, and filters tried on messages."""

from __future__ import annotations

from brokerapi.shapes.fields import Answer, Change, Number, Request, Text, choice_of
from metadata.groups.subscription_rows import SubscriptionView
from metadata.rules.groups.states import Start
from metadata.rules.settings import DELIVERY, SUBSCRIPTION


class SubscriptionCreate(Request):
    """A topic for a group to read."""

    topic = Text()
    start = choice_of(Start, default=Start.EARLIEST)
    start_at_ms = Number(
        required=False,
        help_text="start at the first message stored at this time or later, ms since 1970 UTC",
    )
    start_ago_ms = Number(required=False, help_text="the same, ms back from now")


class SubscriptionChange(Change):
    """Changes to a subscription."""

    settings = SUBSCRIPTION


# The view has the delivery settings in an object, and ids.
class SubscriptionAnswer(Answer):
    """A topic that a group reads."""

    settings = SUBSCRIPTION
    settings_required = True
    view = SubscriptionView
    view_fields = "group topic state start created_at_ms"
    start_at_ms = Number(
        allow_null=True,
        help_text="it started at what was stored then or later; null: `start` says it",
    )

    def source_options(self, setting: str) -> dict[str, str]:
        """Return the options of Shape.source_options(): the view has the delivery settings
        in an object of their own.
        """
        return {"source": f"delivery.{setting}"} if setting in DELIVERY else {}
