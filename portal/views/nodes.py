"""Nodes: the databases that hold messages. For administrators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from messagestore import connections, disks, nodes
from metadata import access, snapshot
from metadata import nodes as node_rows
from metadata.errors import CatmqError, NodeUnavailable
from metadata.listing.pages import Listed
from metadata.nodes import NodeView
from metadata.pages import Window
from portal import outages, pages, rows
from portal.access import actor
from portal.actions import Action, NoFields, Preview
from portal.fields import changes, given
from portal.pages import Fact, Link, to
from portal.tables import Cell, Column, Empty, Text, code, lasting, listed, number, wanted
from portal.templatetags.shapes import DASH, size
from portal.views.topic_actions import Confirm

MOST = 1000


def nodes_list(request: HttpRequest) -> HttpResponse:
    """All nodes."""
    access.require(actor(request), "admin", "*", what="node")
    window = Window(search=wanted(request).search, limit=MOST)
    found = node_rows.page(window=window, actor=actor(request)).items
    latencies, away = nodes.latencies(), set(outages.silent())
    columns = (
        Column(_("Node")),
        Column(_("State")),
        Column(_("Kind")),
        Column(_("Engine")),
        Column(_("Where")),
        Column(_("Answers in"), right=True),
        Column(_("Queues"), right=True),
        Column(_("Room")),
    )
    hint = Empty(_("No node is here, or none fits the search."), "python manage.py register_node --help")
    rows_of = Listed(found, len(found), 1, 1)
    table = listed(
        request, columns, rows_of, row=lambda one: _row(one, latencies.get(one.name), away), empty=hint
    )
    actions = [Link(_("Register a node"), to("node-register"))]
    return pages.list_page(request, _("Nodes"), table, section="nodes", actions=actions)


def _row(one: NodeView, latency_s: float | None, away: set[str]) -> Sequence[Cell]:
    return (
        code(one.name, to("node", one.name)),
        rows.state("away" if one.name in away else one.state),
        rows.state(one.kind),
        code(one.engine),
        code(_where(one)),
        lasting(None if latency_s is None else round(latency_s * 1000)),
        number(one.queues),
        rows.state(one.disk),
    )


def _where(one: NodeView) -> str:
    return one.database if one.engine == "sqlite" else f"{one.host}:{one.port or 3306}/{one.database}"


def node(request: HttpRequest, name: str) -> HttpResponse:
    """One node."""
    view = node_rows.named(name=name, actor=actor(request))
    latency, room, why = _measured(view)
    return pages.show(
        request,
        "node",
        name,
        section="nodes",
        live=True,
        actions=_actions(name),
        why=why,
        barred=view.barred,
        name=name,
        tiles=_tiles(view, latency, room),
        facts=_facts(view),
    )


def _measured(view: NodeView) -> tuple[float | None, disks.Space | None, str]:
    """(ms of a smallest question, its room, why it does not answer)."""
    if view.state == "offline":
        return None, None, ""
    try:
        latency = nodes.ping(view.id) * 1000
        with connections.node(view.id).reading() as session:
            return latency, disks.measure(session, snapshot.node_by_id(view.id)), ""
    except NodeUnavailable as error:
        return None, None, error.detail


def _actions(name: str) -> list[Link]:
    return [
        Link(_("Test the connection"), to("node-test", name)),
        Link(_("Settings"), to("node-settings", name)),
        Link(_("Remove"), to("node-delete", name), "danger"),
    ]


def _tiles(view: NodeView, latency: float | None, room: disks.Space | None) -> list[Fact]:
    state = rows.state(view.state if latency is not None or view.state == "offline" else "away")
    return [
        Fact(_("State"), state.value, tone=state.tone),
        Fact(_("Answers in"), latency, kind="lasts"),
        Fact(_("Queues"), view.queues, f"{to('topics')}", kind="number"),
        Fact(_("Room free"), size(room.free) if room else _("not known")),
        Fact(_("Free"), f"{room.free_percent:.0f} %" if room else DASH, tone=rows.state(view.disk).tone),
    ]


def _facts(view: NodeView) -> list[Fact]:
    replica = f"{view.replica_host}:{view.replica_port or 3306}" if view.replica_host else None
    return [
        Fact(_("Kind"), rows.state(view.kind).value),
        Fact(_("Engine"), view.engine),
        Fact(_("Where"), _where(view), kind="code"),
        Fact(_("Account"), view.username or None),
        Fact(_("Epoch"), view.epoch),
        Fact(_("Chosen for new queues"), _("no") if view.special else _("yes")),
        Fact(_("Capacity, GB"), view.capacity_gb),
        Fact(_("Replica"), replica, kind="code"),
        Fact(_("Registered"), view.created_at_ms, kind="when"),
        Fact(_("Changes"), _("audit log"), f"{to('audit')}?name={view.name}"),
    ]


class NewNode(forms.Form):
    """A database to be registered."""

    name = forms.CharField(label=lazy("Name"), max_length=100)
    engine = forms.ChoiceField(
        label=lazy("Engine"), choices=(("mysql", "MySQL / MariaDB"), ("sqlite", lazy("SQLite (embedded)")))
    )
    kind = forms.ChoiceField(
        label=lazy("Kind"),
        choices=(("normal", lazy("normal")), ("failure", lazy("failure: only failed messages"))),
    )
    host = forms.CharField(label=lazy("Host"), required=False, max_length=255)
    port = forms.IntegerField(label=lazy("Port"), required=False, min_value=1, max_value=65_535)
    database = forms.CharField(
        label=lazy("Database"),
        max_length=1000,
        help_text=lazy("The schema, or the file of an embedded node."),
    )
    username = forms.CharField(label=lazy("Account"), required=False, max_length=200)
    password = forms.CharField(
        label=lazy("Password"),
        required=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
    )
    capacity_gb = forms.IntegerField(
        label=lazy("Capacity, GB"), required=False, min_value=1,
        help_text=lazy("Without one nobody can say when it runs full."),
    )  # fmt: skip
    special = forms.BooleanField(label=lazy("Never chosen by itself for new queues"), required=False)


class RegisterNode(Action):
    """Registers a node; it must prove that it can serve, so there is nothing to preview: it is tried."""

    form_class = NewNode
    right = "admin"
    what = "node"
    section = "nodes"

    def heading(self) -> Text:
        """The page's title."""
        return _("Register a node")

    def back(self) -> str:
        """The list."""
        return to("nodes")

    def post(self, request: HttpRequest, **words: Any) -> HttpResponse:
        """Tries it at once: a preview would send the password back to the browser."""
        form = NewNode(request.POST)
        if not form.is_valid():
            return self._show(form, status=400)
        try:
            return self.done(self.run(form.cleaned_data))
        except CatmqError as error:
            return self._refuse(form, error)

    def run(self, fields: dict[str, Any]) -> Text:
        """Proves and registers it."""
        nodes.register(**fields, actor=self.actor)
        return _("Node %s was tried and registered.") % str(fields["name"])


class NodeAction(Action):
    """Something done to one node."""

    right = "admin"
    what = "node"
    section = "nodes"

    @property
    def name(self) -> str:
        """The node's name."""
        return self.word("name")

    def back(self) -> str:
        """The node's page."""
        return to("node", self.name)


class NodeSettings(forms.Form):
    """Settings of a node."""

    state = forms.ChoiceField(
        label=lazy("State"),
        choices=(
            ("read_write", lazy("open")),
            ("read_only", lazy("read-only: sends go to other nodes")),
            ("offline", lazy("offline: nothing goes there")),
        ),
    )
    special = forms.BooleanField(label=lazy("Never chosen by itself for new queues"), required=False)
    capacity_gb = forms.IntegerField(label=lazy("Capacity, GB"), required=False, min_value=1)


class ChangeNode(NodeAction):
    """Changes settings."""

    form_class = NodeSettings

    def heading(self) -> Text:
        """The page's title."""
        return _("Settings of %s") % self.name

    def initial(self) -> dict[str, Any]:
        """As they are."""
        view = node_rows.named(name=self.name, actor=self.actor)
        return {field: getattr(view, field) for field in NodeSettings.base_fields}

    def preview(self, fields: dict[str, Any]) -> Preview:
        """What changes."""
        return changes(NodeSettings, self.initial(), given(fields))

    def run(self, fields: dict[str, Any]) -> Text:
        """Changes them."""
        nodes.update(name=self.name, settings=given(fields), actor=self.actor)
        return _("The settings of %s were changed.") % self.name


class TryNode(NodeAction):
    """Asks a node a smallest question."""

    form_class = NoFields
    button = lazy("Test again")
    says = lazy("What it answered")

    def heading(self) -> Text:
        """The page's title."""
        return _("Test of %s") % self.name

    def preview(self, fields: dict[str, Any]) -> Preview:
        """What it answered."""
        view = node_rows.named(name=self.name, actor=self.actor)
        return Preview(effects=[_("It answered in %.1f ms.") % (nodes.ping(view.id) * 1000)])

    def run(self, fields: dict[str, Any]) -> Text:
        """The same once more."""
        return self.preview(fields).effects[0]


class DeleteNode(NodeAction):
    """Takes a node out of the registry."""

    form_class = Confirm
    danger = True

    def heading(self) -> Text:
        """The page's title."""
        return _("Remove node %s") % self.name

    def preview(self, fields: dict[str, Any]) -> Preview:
        """What is forgotten."""
        return Preview(effects=[_("The node is forgotten; its database stays as it is.")])

    def run(self, fields: dict[str, Any]) -> Text:
        """Forgets it."""
        node_rows.delete(name=self.name, confirm=fields["confirm"], actor=self.actor)
        return _("Node %s was removed.") % self.name

    def done(self, said: Text) -> Any:
        """Its page is gone: to the list."""
        self.kwargs = {}
        return super().done(said)

    def back(self) -> str:
        """The node, or once it is gone the list."""
        return to("node", self.name) if self.kwargs else to("nodes")
