"""Consumers: subscriptions, members and the history of rebalances, of all groups."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from metadata.listing import consumer_lists, topic_lists
from metadata.listing.consumer_lists import ConsumerRow, RebalanceRow
from metadata.listing.topic_lists import SubscriptionRow
from portal.auth.access import actor
from portal.kit import pages, places, rows
from portal.kit.pages import Link, to
from portal.kit.tables import (
    Column,
    Columns,
    Empty,
    code,
    lasting,
    listed,
    number,
    spark,
    text,
    wanted,
    when,
)


def subscriptions(request: HttpRequest) -> HttpResponse:
    """Show which group reads which topic."""
    internal = request.GET.get("kind") == "internal"
    found = topic_lists.subscriptions(
        query=wanted(request), actor=actor(request), internal=internal
    )
    columns: Columns[SubscriptionRow] = [
        Column(_("Group"), lambda one: rows.group(one.group), "group"),
        Column(_("Topic"), lambda one: rows.topic(one.topic), "topic"),
        Column(_("State"), rows.subscription),
        Column(_("Unread"), lambda one: number(one.lag), "lag", right=True),
        Column(_("Oldest unread"), lambda one: rows.age(one.lag_ms), "age", right=True),
        Column(_("Handled, last 30 min"), lambda one: spark(one.minutes)),
        Column(_("Since"), lambda one: when(one.created_at_ms)),
    ]
    hint = Empty(_("No matching subscriptions"), "catmq subscribe billing orders")
    table = listed(request, columns, found, empty=hint)
    filters = []
    if (
        hidden := topic_lists.count_internal_subscriptions(actor=actor(request))
    ) or internal:
        url = to("subscriptions")
        filters = [
            Link(_("Subscriptions"), url, "" if internal else "on"),
            Link(
                _("Internal topics"),
                f"{url}?kind=internal",
                "on" if internal else "",
                hidden,
            ),
        ]
    return pages.list_page(
        request, _("Subscriptions"), table, section="subscriptions", filters=filters
    )


def consumers(request: HttpRequest) -> HttpResponse:
    found = consumer_lists.consumers(query=wanted(request), actor=actor(request))
    columns: Columns[ConsumerRow] = [
        Column(_("Consumer"), lambda one: text(one.name), "name"),
        Column(_("Group"), lambda one: rows.group(one.group), "group"),
        Column(_("Queues"), lambda one: number(one.queues), right=True),
        Column(
            _("Last heartbeat"),
            lambda one: rows.silence(one.silent_ms, one.timeout_ms),
            "heard",
            right=True,
        ),
        Column(_("Address"), lambda one: code(one.address)),
        Column(_("Client"), lambda one: text(one.sdk or None)),
        Column(_("Since"), lambda one: when(one.joined_at_ms), "joined"),
    ]
    hint = Empty(
        _("No consumer is connected. Start one:"), "catmq consume orders --group billing"
    )
    return pages.list_page(
        request,
        _("Consumers"),
        listed(request, columns, found, empty=hint),
        section="consumers",
    )


def rebalances(request: HttpRequest) -> HttpResponse:
    """Show the rebalances, their causes, and how long queues stood still for them."""
    found = consumer_lists.rebalances(query=wanted(request), actor=actor(request))
    columns: Columns[RebalanceRow] = [
        Column(_("When"), lambda one: when(one.at_ms), "at"),
        Column(_("Group"), lambda one: rows.group(one.group), "group"),
        Column(_("Cause"), lambda one: text(rows.cause(one.cause))),
        Column(_("Generation"), lambda one: number(one.generation), right=True),
        Column(_("Queues moved"), lambda one: number(one.moved), right=True),
        Column(_("Longest pause"), lambda one: lasting(one.pause_ms), "pause", right=True),
    ]
    hint = Empty(_("No rebalances yet. They happen when consumers join or leave."))
    table = listed(request, columns, found, empty=hint)
    place = places.of_list(request, "rebalances", name=request.GET.get("q", ""))
    return pages.list_page(
        request, _("Rebalances"), table, **{"section": "rebalances", **place}
    )
