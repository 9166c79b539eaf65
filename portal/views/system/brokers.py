"""Brokers: which there are, pulled in and out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from metadata.brokers import broker_rows, discovery
from metadata.brokers.discovery import BrokerView
from metadata.listing.pages import Listed
from portal.actions.action import Action, Preview
from portal.actions.toggle import Toggle
from portal.auth.access import actor, may
from portal.kit import pages, rows
from portal.kit.pages import to
from portal.kit.tables import Cell, Column, Empty, Text, code, listed, text, when
from portal.views.topics.topic_actions import Confirm


def brokers_list(request: HttpRequest) -> HttpResponse:
    """All brokers."""
    views = discovery.listed(actor=actor(request))
    admin = may(request, "admin")
    columns = [
        Column(_("Broker")),
        Column(_("Heard")),
        Column(_("State")),
        Column(_("Address")),
        Column(_("Version")),
        Column(_("Started (UTC)")),
        Column(_("Last seen (UTC)")),
    ]
    if admin:
        columns.append(Column(_("Change")))
    found = Listed(views, len(views), 1, 1)
    table = listed(
        request,
        columns,
        found,
        row=lambda one: _row(one, admin),
        empty=Empty(_("No broker is registered.")),
    )
    intro = _("A broker that is pulled out finishes what it began; clients go to the others.")
    return pages.list_page(request, _("Brokers"), table, section="brokers", intro=intro, searched=False)


def _row(one: BrokerView, admin: bool) -> Sequence[Cell]:
    cells = [
        text(one.name),
        rows.state("alive" if one.alive else "dead"),
        rows.state(one.state),
        code(one.url),
        text(one.version or None),
        when(one.started_at_ms),
        when(one.last_seen_at_ms),
    ]
    if not admin:
        return cells
    if not one.alive:
        return [*cells, text(_("forget"), to("broker-forget", one.name))]
    return [*cells, text(_("pull out") if one.state == "in" else _("pull in"), to("broker-state", one.name))]


class BrokerAction(Action):
    """Something done to one broker."""

    right = "admin"
    what = "broker"
    section = "brokers"

    @property
    def name(self) -> str:
        """The broker's name."""
        return self.word("name")

    def back(self) -> str:
        """The list."""
        return to("brokers")


class SetBrokerState(Toggle, BrokerAction):
    """Pulls a broker in or out."""

    danger = True
    button = lazy("Do it")

    def heading(self) -> Text:
        """The page's title."""
        return _("Broker %s") % self.name

    def other(self) -> str:
        """Out if it is in."""
        return "out" if discovery.named(name=self.name, actor=self.actor).state == "in" else "in"

    def preview(self, fields: dict[str, Any]) -> Preview:
        """Describe what clients notice."""
        if fields["state"] == "out":
            return Preview(
                effects=[_("The broker takes no new work; clients go to the others within seconds.")]
            )
        return Preview(effects=[_("The broker takes work again.")])

    def run(self, fields: dict[str, Any]) -> Text:
        """Does it."""
        done = broker_rows.set_state(name=self.name, state=fields["state"], actor=self.actor)
        return (
            _("Broker %s was pulled out.") if done.state == "out" else _("Broker %s is in again.")
        ) % self.name


class ForgetBroker(BrokerAction):
    """Takes a dead broker out of the registry."""

    form_class = Confirm
    danger = True

    def heading(self) -> Text:
        """The page's title."""
        return _("Forget broker %s") % self.name

    def preview(self, fields: dict[str, Any]) -> Preview:
        """Describe what is forgotten."""
        return Preview(effects=[_("Its row goes; if it comes back, it registers anew.")])

    def run(self, fields: dict[str, Any]) -> Text:
        """Forgets it."""
        broker_rows.forget(name=self.name, confirm=fields["confirm"], actor=self.actor)
        return _("Broker %s was forgotten.") % self.name
