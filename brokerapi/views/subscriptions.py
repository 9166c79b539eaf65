"""Subscriptions: the topics a group reads."""

from __future__ import annotations

from django.http import HttpResponse

from brokerapi.endpoint import Call, Endpoint
from brokerapi.schema import list_of, operation
from brokerapi.shapes.base import TagsQuery
from brokerapi.shapes.subscription_shapes import (
    SubscriptionAnswer,
    SubscriptionChange,
    SubscriptionCreate,
)
from messagestore.inspect import tag_preview
from messagestore.topology import subscriptions
from metadata.groups import groups, subscription_rows


class Subscriptions(Endpoint):
    @operation(
        "listSubscriptions",
        tag="groups",
        answer=list_of("subscriptions", SubscriptionAnswer),
    )
    def get(self, call: Call, group: str) -> HttpResponse:
        """The topics a group reads."""
        group_view = groups.describe(name=group, actor=call.actor)
        return call.answer(
            SubscriptionAnswer.listed("subscriptions", group_view.subscriptions)
        )

    @operation(
        "subscribe",
        tag="groups",
        request=SubscriptionCreate,
        answer=SubscriptionAnswer,
        status=201,
    )
    def post(self, call: Call, group: str) -> HttpResponse:
        """Subscribes a group to a topic, from its earliest or its latest message, or from a
        time.
        """
        fields = call.read_fields(SubscriptionCreate, manages=("group", group))
        subscription = subscriptions.create(group=group, actor=call.actor, **fields)
        return call.created(
            SubscriptionAnswer.from_view(subscription),
            "groups",
            group,
            "subscriptions",
            fields["topic"],
        )


class Subscription(Endpoint):
    @operation("showSubscription", tag="groups", answer=SubscriptionAnswer)
    def get(self, call: Call, group: str, topic: str) -> HttpResponse:
        """Shows a subscription."""
        subscription = subscription_rows.find_subscription(
            group=group, topic=topic, actor=call.actor
        )
        return call.answer(SubscriptionAnswer.from_view(subscription))

    @operation(
        "changeSubscription",
        tag="groups",
        request=SubscriptionChange,
        answer=SubscriptionAnswer,
    )
    def patch(self, call: Call, group: str, topic: str) -> HttpResponse:
        """Pauses or resumes a subscription, or changes its settings."""
        settings = call.read_fields(SubscriptionChange, manages=("group", group))
        subscription = subscription_rows.update(
            group=group, topic=topic, settings=settings, actor=call.actor
        )
        return call.answer(SubscriptionAnswer.from_view(subscription))

    @operation("unsubscribe", tag="groups", status=204)
    def delete(self, call: Call, group: str, topic: str) -> HttpResponse:
        """Ends a subscription and deletes its offsets."""
        subscriptions.delete(group=group, topic=topic, actor=call.actor)
        return call.no_content()


class TagMatches(Endpoint):
    @operation(
        "countTagMatches", tag="topics", query=TagsQuery, answer=tag_preview.TagMatches
    )
    def get(self, call: Call, topic: str) -> HttpResponse:
        """Count the matches of a tag filter and a header filter in the last 1,000 messages
        of a topic.
        """
        return call.answer(
            tag_preview.tag_matches(
                topic=topic, actor=call.actor, **call.query(TagsQuery).filters()
            )
        )
