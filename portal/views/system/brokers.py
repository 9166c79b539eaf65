"""Brokers: the list, drain and enable, and the Java clients that called."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from metadata.brokers import broker_rows, discovery, java_callers
from metadata.brokers.discovery import BrokerView
from metadata.brokers.java_callers import CallerView
from metadata.listing.pages import ListPage
from metadata.rules.membership.brokers import BrokerState
from metadata.rules.rights import Right
from portal.actions.action import Action, Delete, Preview
from portal.actions.toggle import Toggle
from portal.auth.access import actor, may
from portal.kit import cells, pages
from portal.kit.pages import Link, page_url
from portal.kit.tables import (
    Column,
    EmptyHint,
    Text,
    code,
    list_table,
    number,
    text,
    timestamp,
)


def brokers_list(request: HttpRequest) -> HttpResponse:
    """Show the brokers."""
    views = discovery.list_brokers(actor=actor(request))
    # Brokers are few, so the list has no search.
    columns: list[Column[BrokerView]] = [
        Column(_("Broker"), lambda row: text(row.name)),
        Column(
            _("Last heartbeat"), lambda row: cells.state("alive" if row.alive else "dead")
        ),
        Column(_("State"), lambda row: cells.state(row.state)),
        Column(_("Address"), lambda row: code(row.url)),
        Column(_("Version"), lambda row: text(row.version or None)),
        Column(_("Started"), lambda row: timestamp(row.started_at_ms)),
        Column(_("Last seen"), lambda row: timestamp(row.last_seen_at_ms)),
    ]
    if may(request, Right.ADMIN):
        columns.append(
            Column(
                _("Change"),
                lambda row: (
                    text(_("forget"), page_url("broker-forget", row.name))
                    if not row.alive
                    else text(
                        _("Drain")
                        if row.state == BrokerState.IN
                        else _("Return to service"),
                        page_url("broker-state", row.name),
                    )
                ),
            )
        )
    hint = EmptyHint(_("No broker is registered."))
    table = list_table(request, columns, ListPage(views, len(views), 1, 1), empty=hint)
    actions = (
        [Link(_("Java clients"), page_url("java-clients"))]
        if may(request, Right.ADMIN)
        else []
    )
    intro = _(
        "A drained broker completes its running requests. Clients switch to other brokers."
    )
    return pages.render_list(
        request,
        _("Brokers"),
        table,
        section="brokers",
        intro=intro,
        actions=actions,
        searched=False,
    )


def java_clients(request: HttpRequest) -> HttpResponse:
    """Show the Java clients, which have no API key, by address and client."""
    callers = java_callers.list_callers(actor=actor(request))
    columns: list[Column[CallerView]] = [
        Column(_("Address"), lambda row: code(row.address)),
        Column(_("Client"), lambda row: text(row.sdk or None)),
        Column(_("Answered, last hour"), lambda row: number(row.answered), right=True),
        Column(_("Refused"), lambda row: number(row.refused), right=True),
        Column(_("Rate limited"), lambda row: number(row.limited), right=True),
        Column(_("Last seen"), lambda row: timestamp(row.last_seen_at_ms)),
    ]
    hint = EmptyHint(_("No Java client has called in the last seven days."))
    table = list_table(
        request, columns, ListPage(tuple(callers), len(callers), 1, 1), empty=hint
    )
    intro = _("A request without a client was refused before it was read.")
    return pages.render_list(
        request, _("Java clients"), table, section="brokers", intro=intro, searched=False
    )


class BrokerAction(Action):
    right = Right.ADMIN
    object_kind = "broker"
    section = "brokers"
    back_to = ("brokers",)


class SetBrokerState(Toggle, BrokerAction):
    danger = True
    button = lazy("Confirm")
    title = lazy("Broker %(name)s")

    def offered_state(self) -> str:
        return (
            BrokerState.OUT
            if discovery.find_broker(name=self.name, actor=self.actor).state
            == BrokerState.IN
            else BrokerState.IN
        )

    def preview(self, fields: dict[str, Any]) -> Preview:
        if fields["state"] == BrokerState.OUT:
            return Preview(
                effects=[
                    _(
                        "The broker will accept no new requests. Clients switch to other brokers "
                        "within seconds."
                    )
                ]
            )
        return Preview(effects=[_("The broker will accept requests again.")])

    def run(self, fields: dict[str, Any]) -> Text:
        # Brokers and clients notice the new state within seconds.
        broker = broker_rows.set_state(
            name=self.name, state=fields["state"], actor=self.actor
        )
        return (
            _("Broker %s is drained.")
            if broker.state == BrokerState.OUT
            else _("Broker %s is enabled.")
        ) % self.name


class ForgetBroker(Delete, BrokerAction):
    title = lazy("Forget broker %(name)s")
    effect = lazy("The broker is removed from the list. It registers again when it starts.")

    def run(self, fields: dict[str, Any]) -> Text:
        broker_rows.forget_broker(
            name=self.name, confirm=fields["confirm"], actor=self.actor
        )
        return _("Broker %s was removed from the list.") % self.name
