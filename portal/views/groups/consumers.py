"""Consumers: subscriptions, members and the history of rebalances, of all groups."""

from __future__ import annotations

from collections.abc import Sequence

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from metadata.listing import consumer_lists, topic_lists
from metadata.listing.consumer_lists import ConsumerRow, RebalanceRow
from metadata.listing.topic_lists import SubscriptionRow
from portal.auth.access import actor
from portal.kit import pages, rows
from portal.kit.tables import (
    Cell,
    Column,
    Empty,
    badge,
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
    found = topic_lists.subscriptions(wanted=wanted(request), actor=actor(request))
    columns = (
        Column(_("Group"), "group"),
        Column(_("Topic"), "topic"),
        Column(_("State")),
        Column(_("Unread"), "lag", right=True),
        Column(_("Oldest unread"), "age", right=True),
        Column(_("Handled, last 30 min")),
        Column(_("Since")),
    )
    hint = Empty(_("No subscription is here, or none fits the search."), "catmq subscribe billing orders")
    table = listed(request, columns, found, row=_subscription, empty=hint)
    return pages.list_page(request, _("Subscriptions"), table, section="subscriptions")


def _subscription(row: SubscriptionRow) -> Sequence[Cell]:
    return (
        rows.group(row.group),
        rows.topic(row.topic),
        _state(row),
        rows.lag(row.lag),
        rows.age(row.lag_ms),
        spark(row.minutes),
        when(row.created_at_ms),
    )


def _state(row: SubscriptionRow) -> Cell:
    """Return the state of a subscription, or which part of it is not read."""
    if row.stopped and row.state == "ready":
        return rows.state("stopped")
    if row.stopped_queues:
        what = ngettext("%d queue stopped", "%d queues stopped", row.stopped_queues)
        return badge(what % row.stopped_queues, "warn")
    return rows.state(row.state)


def consumers(request: HttpRequest) -> HttpResponse:
    """All members of all groups."""
    found = consumer_lists.consumers(wanted=wanted(request), actor=actor(request))
    columns = (
        Column(_("Consumer"), "name"),
        Column(_("Group"), "group"),
        Column(_("Queues"), right=True),
        Column(_("Heard"), "heard", right=True),
        Column(_("Address")),
        Column(_("Client")),
        Column(_("Since"), "joined"),
    )
    hint = Empty(_("No consumer is connected. Start one:"), "catmq consume orders --group billing")
    table = listed(request, columns, found, row=_consumer, empty=hint)
    return pages.list_page(request, _("Consumers"), table, section="consumers")


def _consumer(row: ConsumerRow) -> Sequence[Cell]:
    late = row.silent_ms is not None and row.silent_ms > row.timeout_ms
    return (
        text(row.name),
        rows.group(row.group),
        number(row.queues),
        lasting(row.silent_ms, "bad" if late else ""),
        code(row.address),
        text(row.sdk or None),
        when(row.joined_at_ms),
    )


def rebalances(request: HttpRequest) -> HttpResponse:
    """Show the rebalances, their causes, and how long queues stood still for them."""
    found = consumer_lists.rebalances(wanted=wanted(request), actor=actor(request))
    columns = (
        Column(_("When (UTC)"), "at"),
        Column(_("Group"), "group"),
        Column(_("Cause")),
        Column(_("Generation"), right=True),
        Column(_("Queues moved"), right=True),
        Column(_("Longest pause"), "pause", right=True),
    )
    hint = Empty(_("Nothing was shared anew yet: that happens when consumers come and go."))
    table = listed(request, columns, found, row=_rebalance, empty=hint)
    return pages.list_page(request, _("Rebalances"), table, section="rebalances")


def _rebalance(row: RebalanceRow) -> Sequence[Cell]:
    return (
        when(row.at_ms),
        rows.group(row.group),
        text(row.cause),
        number(row.generation),
        number(row.moved),
        lasting(row.pause_ms),
    )
