"""Nodes: the databases that hold messages. For administrators."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from messagestore.nodes import disks, registry
from messagestore.pool import node_pools
from metadata.cache import snapshot
from metadata.db import access
from metadata.db.paging import Window
from metadata.errors import NodeUnavailable
from metadata.listing.pages import Listed
from metadata.nodes import node_rows, size_rows
from metadata.nodes.node_rows import NodeView
from metadata.nodes.size_rows import Growth
from metadata.rules.growth import days_left
from metadata.rules.tls import MODES
from portal.auth import error_texts
from portal.auth.access import actor
from portal.kit import cells, charts, outages, pages
from portal.kit.pages import Fact, Link, page_url
from portal.kit.tables import (
    Cell,
    Column,
    Columns,
    EmptyHint,
    code,
    duration,
    list_table,
    number,
    parse_list_query,
    text,
)
from portal.templatetags.formats import DASH, DAY, format_duration, format_size

MAX_NODES = 1000
MAX_FORECAST_DAYS = 3650  # a node that lasts longer is not said to become full


def nodes_list(request: HttpRequest) -> HttpResponse:
    access.require(actor(request), "admin", "*", what="node")
    window = Window(search=parse_list_query(request).search, limit=MAX_NODES)
    found = node_rows.page(window=window, actor=actor(request)).items
    latencies, away, growing = (
        registry.latencies(),
        set(outages.silent_nodes()),
        size_rows.growth(),
    )

    def held(one: NodeView) -> int | None:
        growth = growing.get(one.id)
        return growth.bytes if growth else None

    columns: Columns[NodeView] = [
        Column(_("Node"), lambda row: code(row.name, page_url("node", row.name))),
        Column(
            _("State"), lambda row: cells.state("away" if row.name in away else row.state)
        ),
        Column(_("Kind"), lambda row: cells.state(row.kind)),
        Column(_("Engine"), lambda row: code(row.engine)),
        Column(_("Where"), lambda row: code(_where(row))),
        Column(
            _("Response time"),
            lambda row: duration(_ms(latencies.get(row.name))),
            right=True,
        ),
        Column(_("Queues"), lambda row: number(row.queues), right=True),
        Column(_("Size"), lambda row: Cell(held(row), "size"), right=True),
        Column(_("Growth per day"), lambda row: text(describe_growth(growing.get(row.id)))),
        Column(_("Disk space"), lambda row: cells.state(row.disk)),
    ]
    hint = EmptyHint(_("No matching nodes"), "python manage.py register_node --help")
    table = list_table(request, columns, Listed(found, len(found), 1, 1), empty=hint)
    actions = [Link(_("Register a node"), page_url("node-register"))]
    return pages.render_list(request, _("Nodes"), table, section="nodes", actions=actions)


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def describe_growth(growth: Growth | None) -> str | None:
    """Return a node's growth in a day, with its sign; None if that is not known yet."""
    if growth is None or growth.per_day is None:
        return None
    return f"{'-' if growth.per_day < 0 else '+'}{format_size(abs(round(growth.per_day)))}"


def _where(one: NodeView) -> str:
    return (
        one.database
        if one.engine == "sqlite"
        else f"{one.host}:{one.port or 3306}/{one.database}"
    )


def node(request: HttpRequest, name: str) -> HttpResponse:
    view = node_rows.named(name=name, actor=actor(request))
    latency, room, why = _measured(view)
    growth = size_rows.growth().get(view.id)
    return pages.render_page(
        request,
        "system/node",
        name,
        section="nodes",
        live=True,
        actions=_actions(view),
        why=why,
        quarantined=view.quarantined,
        tiles=_tiles(view, latency, room, growth),
        facts=_facts(view, growth),
        sizes=charts.size_chart(size_rows.history(node=name, actor=actor(request))),
    )


def _measured(view: NodeView) -> tuple[float | None, disks.Space | None, str]:
    """(ms of a smallest question, its room, why it does not answer)."""
    if view.state == "offline":
        return None, None, ""
    try:
        latency = registry.ping(view.id) * 1000
        with node_pools.node(view.id).reading() as session:
            return latency, disks.measure(session, snapshot.node_by_id(view.id)), ""
    except NodeUnavailable as error:
        return None, None, error_texts.describe_error(error)


def _actions(view: NodeView) -> list[Link]:
    name = view.name
    of_server = [
        Link(_("Account"), page_url("node-account", name)),
        Link(_("Reader account"), page_url("node-reader", name)),
        Link(_("Promote the replica"), page_url("node-promote", name), "danger"),
    ]
    return [
        Link(_("Test the connection"), page_url("node-test", name)),
        Link(_("Settings"), page_url("node-settings", name)),
        *(of_server if view.engine == "mysql" else ()),
        Link(_("Adopt restored data"), page_url("node-adopt", name), "danger"),
        Link(_("Remove"), page_url("node-delete", name), "danger"),
    ]


def _tiles(
    view: NodeView, latency: float | None, room: disks.Space | None, growth: Growth | None
) -> list[Fact]:
    state = cells.state(
        view.state if latency is not None or view.state == "offline" else "away"
    )
    return [
        Fact(_("State"), state.value, tone=state.tone),
        Fact(_("Response time"), latency, kind="lasts"),
        Fact(_("Queues"), view.queues, f"{page_url('topics')}", kind="number"),
        Fact(_("Size"), growth and growth.bytes, kind="size"),
        Fact(_("Growth per day"), describe_growth(growth) or DASH),
        Fact(_("Free space"), format_size(room.free) if room else _("not known")),
        Fact(
            _("Free"),
            f"{room.free_percent:.0f} %" if room else DASH,
            tone=cells.state(view.disk).tone,
        ),
        Fact(_("Full in"), _full_in(room, growth)),
    ]


def _full_in(room: disks.Space | None, growth: Growth | None) -> str:
    left = days_left(room.usable, growth.per_day) if room and growth else None
    return DASH if left is None or left > MAX_FORECAST_DAYS else format_duration(left * DAY)


def _schema(view: NodeView) -> str | None:
    version = registry.schema_version(view.id)
    if version is None or not registry.can_be_upgraded(view.id):
        return None if version is None else str(version)
    command = f"manage.py upgrade_nodes --node {view.name}"
    return _("%(version)d, can be upgraded: %(command)s") % {
        "version": version,
        "command": command,
    }


def _tls(view: NodeView) -> str | None:
    if view.engine == "sqlite":
        return None
    return _(MODES[view.tls])


def _facts(view: NodeView, growth: Growth | None) -> list[Fact]:
    replica = (
        f"{view.replica_host}:{view.replica_port or 3306}" if view.replica_host else None
    )
    return [
        Fact(_("Kind"), cells.state(view.kind).value),
        Fact(_("Engine"), view.engine),
        Fact(_("Where"), _where(view), kind="code"),
        Fact(_("TLS"), _tls(view)),
        *(
            [Fact(_("CA file"), view.tls_ca or _("the CAs of the system"))]
            if view.tls == "verify"
            else ()
        ),
        Fact(_("Account"), view.username or None),
        Fact(_("Reader account"), view.reader_username or None),
        Fact(_("Tables of queues"), growth and growth.tables),
        Fact(_("Epoch"), view.epoch),
        Fact(_("Schema version"), _schema(view)),
        Fact(_("Chosen for new queues"), _("no") if view.dedicated else _("yes")),
        Fact(_("Capacity, GB"), view.capacity_gb),
        Fact(_("Replica"), replica, kind="code"),
        Fact(_("Registered"), view.created_at_ms, kind="when"),
        Fact(_("Changes"), _("audit log"), f"{page_url('audit')}?name={view.name}"),
    ]
