"""Lists of subscriptions, consumers and rebalances of all groups."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from metadata.listing import consumer_lists, topic_lists
from metadata.listing.consumer_lists import ConsumerRow, RebalanceRow
from metadata.listing.topic_lists import SubscriptionRow
from portal.auth.access import actor
from portal.kit import cells, navigation, pages
from portal.kit.pages import Link, page_url
from portal.kit.tables import (
    Column,
    Columns,
    EmptyHint,
    code,
    duration,
    list_table,
    number,
    parse_list_query,
    spark,
    text,
    timestamp,
)


def subscriptions(request: HttpRequest) -> HttpResponse:
    """Show which group reads which topic."""
    shows_internal = request.GET.get("kind") == "internal"
    page = topic_lists.subscriptions(
        query=parse_list_query(request), actor=actor(request), internal=shows_internal
    )
    columns: Columns[SubscriptionRow] = [
        Column(_("Group"), lambda row: cells.group(row.group), "group"),
        Column(_("Topic"), lambda row: cells.topic(row.topic), "topic"),
        Column(_("State"), cells.subscription_state),
        Column(_("Unread"), lambda row: number(row.lag), "lag", right=True),
        Column(_("Oldest unread"), lambda row: cells.age(row.lag_ms), "age", right=True),
        Column(_("Handled, last 30 min"), lambda row: spark(row.minutes)),
        Column(_("Since"), lambda row: timestamp(row.created_at_ms)),
    ]
    hint = EmptyHint(_("No matching subscriptions"), "catmq subscribe billing orders")
    table = list_table(request, columns, page, empty=hint)
    # The tabs appear only if a group reads an internal topic.
    filters = []
    if (
        internal_count := topic_lists.count_internal_subscriptions(actor=actor(request))
    ) or shows_internal:
        url = page_url("subscriptions")
        filters = [
            Link(_("Subscriptions"), url, "" if shows_internal else "on"),
            Link(
                _("Internal topics"),
                f"{url}?kind=internal",
                "on" if shows_internal else "",
                internal_count,
            ),
        ]
    return pages.render_list(
        request, _("Subscriptions"), table, section="subscriptions", filters=filters
    )


def consumers(request: HttpRequest) -> HttpResponse:
    """Show the members of all groups."""
    page = consumer_lists.consumers(query=parse_list_query(request), actor=actor(request))
    columns: Columns[ConsumerRow] = [
        Column(_("Consumer"), lambda row: text(row.name), "name"),
        Column(_("Group"), lambda row: cells.group(row.group), "group"),
        Column(_("Queues"), lambda row: number(row.queues), right=True),
        Column(
            _("Last heartbeat"),
            lambda row: cells.heartbeat_age(row.silent_ms, row.timeout_ms),
            "heard",
            right=True,
        ),
        Column(_("Address"), lambda row: code(row.address)),
        Column(_("Client"), lambda row: text(row.sdk or None)),
        Column(_("Since"), lambda row: timestamp(row.joined_at_ms), "joined"),
    ]
    hint = EmptyHint(
        _("No consumer is connected. Start one:"), "catmq consume orders --group billing"
    )
    return pages.render_list(
        request,
        _("Consumers"),
        list_table(request, columns, page, empty=hint),
        section="consumers",
    )


def rebalances(request: HttpRequest) -> HttpResponse:
    """Show the rebalances, their causes, and how long queues were not read meanwhile."""
    page = consumer_lists.rebalances(query=parse_list_query(request), actor=actor(request))
    columns: Columns[RebalanceRow] = [
        Column(_("When"), lambda row: timestamp(row.at_ms), "at"),
        Column(_("Group"), lambda row: cells.group(row.group), "group"),
        Column(_("Cause"), lambda row: text(cells.describe_rebalance_cause(row.cause))),
        Column(_("Generation"), lambda row: number(row.generation), right=True),
        Column(_("Queues moved"), lambda row: number(row.moved), right=True),
        Column(_("Longest pause"), lambda row: duration(row.pause_ms), "pause", right=True),
    ]
    hint = EmptyHint(_("No rebalances yet. They happen when consumers join or leave."))
    table = list_table(request, columns, page, empty=hint)
    navigation_context = navigation.for_list(
        request, "rebalances", name=request.GET.get("q", "")
    )
    return pages.render_list(
        request, _("Rebalances"), table, **{"section": "rebalances", **navigation_context}
    )
