"""Pages of nodes, the databases that hold messages. For administrators."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from messagestore.nodes import disks, registry
from messagestore.pool import node_pools, writers
from metadata.cache import snapshot
from metadata.db import access
from metadata.db.paging import Window
from metadata.db.transactions import written_on
from metadata.errors import NodeUnavailable
from metadata.installation import name_programs
from metadata.listing.pages import ListPage
from metadata.nodes import node_rows, size_rows
from metadata.nodes.node_rows import NodeView
from metadata.nodes.size_rows import Growth
from metadata.rules.addresses import describe
from metadata.rules.growth import days_left
from metadata.rules.nodes import Engine, NodeState
from metadata.rules.rights import Right
from metadata.rules.tls import MODES, TlsMode
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
    figure,
    list_table,
    number,
    parse_list_query,
)
from portal.templatetags.formats import DASH, DAY, format_duration, format_size

# All nodes are on a single page.
MAX_NODES = 1000
# A node that will be full later than this has no forecast.
MAX_FORECAST_DAYS = 3650


def nodes_list(request: HttpRequest) -> HttpResponse:
    access.require(actor(request), Right.ADMIN, "*", what="node")
    # Administrators have few nodes, so the list is not paged.
    window = Window(search=parse_list_query(request).search, limit=MAX_NODES)
    nodes = node_rows.list_nodes(window=window, actor=actor(request)).items
    latencies_ms = {
        name: None if seconds is None else round(seconds * 1000)
        for name, seconds in registry.latencies().items()
    }
    silent, growth_by_node = set(outages.silent_nodes()), size_rows.read_growth()

    def stored_bytes(view: NodeView) -> int | None:
        growth = growth_by_node.get(view.id)
        return growth.bytes if growth else None

    columns: Columns[NodeView] = [
        Column(_("Node"), lambda row: code(row.name, page_url("node", row.name))),
        Column(
            _("State"), lambda row: cells.state("away" if row.name in silent else row.state)
        ),
        Column(_("Disk space"), lambda row: cells.state(row.disk)),
        Column(_("Kind"), lambda row: cells.state(row.kind)),
        Column(_("Where"), lambda row: code(_location(row))),
        Column(
            _("Response time"),
            lambda row: duration(latencies_ms.get(row.name)),
            right=True,
        ),
        Column(_("Queues"), lambda row: number(row.queues), right=True),
        Column(_("Size"), lambda row: Cell(stored_bytes(row), "size"), right=True),
        Column(
            _("Growth per day"),
            lambda row: figure(describe_growth(growth_by_node.get(row.id))),
            right=True,
        ),
    ]
    hint = EmptyHint(
        _("No matching nodes"), name_programs("python manage.py register_node --help")
    )
    table = list_table(request, columns, ListPage(nodes, len(nodes), 1, 1), empty=hint)
    actions = [Link(_("Register a node"), page_url("node-register"))]
    server = written_on()
    intro = _("Metadata is written on %s.") % server if server else ""
    return pages.render_list(
        request, _("Nodes"), table, section="nodes", actions=actions, intro=intro
    )


def describe_growth(growth: Growth | None) -> str | None:
    """Return a node's growth per day with its sign, None if it is not known yet."""
    if growth is None or growth.per_day is None:
        return None
    return f"{'-' if growth.per_day < 0 else '+'}{format_size(abs(round(growth.per_day)))}"


def _location(view: NodeView) -> str:
    return (
        view.database
        if view.engine == Engine.SQLITE
        else f"{describe(view.host, view.port)}/{view.database}"
    )


def node(request: HttpRequest, name: str) -> HttpResponse:
    view = node_rows.find_node(name=name, actor=actor(request))
    # The page asks the node itself, so that it shows the state of this moment.
    latency, space, error_text = _probe(view)
    growth = size_rows.read_growth().get(view.id)
    name = view.name
    server_actions = [
        Link(_("Account"), page_url("node-account", name)),
        Link(_("Reader account"), page_url("node-reader", name)),
        Link(_("Promote the replica"), page_url("node-promote", name), "danger"),
    ]
    # A replica without a port uses MySQL's default.
    replica = describe(view.replica_host, view.replica_port) if view.replica_host else None
    state_badge = cells.state(
        view.state if latency is not None or view.state == NodeState.OFFLINE else "away"
    )
    remaining_days = days_left(space.usable, growth.per_day) if space and growth else None
    return pages.render_page(
        request,
        "system/node",
        name,
        section="nodes",
        live=True,
        actions=[
            Link(_("Test the connection"), page_url("node-test", name)),
            Link(_("Settings"), page_url("node-settings", name)),
            *(server_actions if view.engine == Engine.MYSQL else ()),
            Link(_("Adopt restored data"), page_url("node-adopt", name), "danger"),
            Link(_("Remove"), page_url("node-delete", name), "danger"),
        ],
        why=error_text,
        quarantined=view.quarantined,
        tiles=[
            Fact(_("State"), state_badge.value, tone=state_badge.tone),
            Fact(_("Response time"), latency, kind="lasts"),
            Fact(_("Queues"), view.queues, f"{page_url('topics')}", kind="number"),
            Fact(_("Size"), growth and growth.bytes, kind="size"),
            Fact(_("Growth per day"), describe_growth(growth) or DASH),
            Fact(_("Free space"), format_size(space.free) if space else DASH),
            Fact(
                _("Free"),
                f"{space.free_percent:.0f} %" if space else DASH,
                tone=cells.state(view.disk).tone,
            ),
            Fact(
                _("Full in"),
                (
                    DASH
                    if remaining_days is None or remaining_days > MAX_FORECAST_DAYS
                    else format_duration(remaining_days * DAY)
                ),
            ),
        ],
        facts=[
            Fact(_("Kind"), cells.state(view.kind).value),
            Fact(_("Engine"), view.engine),
            Fact(_("Where"), _location(view), kind="code"),
            *([Fact(_("Written on"), view.writer, kind="code")] if view.writer else ()),
            Fact(_("TLS"), None if view.engine == Engine.SQLITE else _(MODES[view.tls])),
            *(
                [Fact(_("CA file"), view.tls_ca or _("the CAs of the system"))]
                if view.tls == TlsMode.VERIFY
                else ()
            ),
            Fact(_("Account"), view.username or None),
            Fact(_("Reader account"), view.reader_username or None),
            Fact(_("Tables of queues"), growth and growth.tables),
            Fact(_("Epoch"), view.epoch),
            Fact(_("Schema version"), _schema_version(view)),
            Fact(_("Chosen for new queues"), _("no") if view.dedicated else _("yes")),
            Fact(_("Capacity, GB"), view.capacity_gb),
            Fact(_("Replica"), replica, kind="code"),
            Fact(_("Registered"), view.created_at_ms, kind="when"),
            Fact(_("Changes"), _("audit log"), f"{page_url('audit')}?name={view.name}"),
        ],
        sizes=charts.size_chart(size_rows.read_history(node=name, actor=actor(request))),
    )


def _probe(view: NodeView) -> tuple[float | None, disks.Space | None, str]:
    """Return (response time in ms, disk space, error text) of a node."""
    # An offline node must not be contacted.
    if view.state == NodeState.OFFLINE:
        return None, None, ""
    try:
        latency_ms = registry.ping(view.id) * 1000
        with node_pools.node(view.id).reading() as session:
            return latency_ms, disks.measure(session, snapshot.node_by_id(view.id)), ""
    except NodeUnavailable as error:
        why = writers.why_none(snapshot.node_by_id(view.id))
        return None, None, why or error_texts.describe_error(error)


def _schema_version(view: NodeView) -> str | None:
    """Return the schema version of a node, with the command that upgrades it."""
    version = registry.schema_version(view.id)
    if version is None or not registry.can_be_upgraded(view.id):
        return None if version is None else str(version)
    command = name_programs(f"manage.py upgrade_nodes --node {view.name}")
    return _("%(version)d, can be upgraded: %(command)s") % {
        "version": version,
        "command": command,
    }
