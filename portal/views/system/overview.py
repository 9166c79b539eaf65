"""The first page: is anything wrong, and where."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from metadata.actors import Actor
from metadata.brokers import discovery
from metadata.cache import snapshot
from metadata.listing import chart_marks, overview_lists
from metadata.listing.overview_lists import Overview
from metadata.monitoring import metrics_history
from metadata.monitoring.dead_letter_counts import GroupDeadLetters
from metadata.monitoring.metrics_history import Pace
from portal.auth.access import actor, may
from portal.kit import cells, charts, outages, pages, progress
from portal.kit.pages import Fact, page_url
from portal.kit.problems import list_problems
from portal.kit.tables import (
    Column,
    Columns,
    EmptyHint,
    Table,
    code,
    number,
    simple_table,
    text,
    timestamp,
)
from portal.templatetags.formats import format_count


def overview(request: HttpRequest) -> HttpResponse:
    """The page `/`."""
    known = overview_lists.overview(actor=actor(request))
    span = charts.chosen_span(request)
    points = metrics_history.points(for_s=span.length_s)
    now = (
        metrics_history.pace_of(points)
        if span.length_s <= metrics_history.LIVE_S
        else metrics_history.pace()
    )
    marks = chart_marks.marks(for_s=span.length_s, actor=actor(request))
    found = list_problems(known, actor(request))
    return pages.render_page(
        request,
        "system/overview",
        _("Overview"),
        section="overview",
        live=True,
        problems=found,
        verdict=min((one.tone for one in found), default="ok"),
        quiet=_quiet(known),
        tiles=_tiles(known, now, actor(request), may(request, "admin")),
        rates=charts.rate_chart(points, marks),
        lags=charts.lag_chart(points, marks),
        spans=charts.span_links(span),
        behind=_behind(known),
        dead=_dead(request, known),
        empty=not known.topics,
    )


def _quiet(known: Overview) -> str:
    """Describe what is known and looked after; '' if nothing is."""
    said = []
    if known.acknowledged_count:
        words = ngettext(
            "%s alarm is acknowledged.",
            "%s alarms are acknowledged.",
            known.acknowledged_count,
        )
        said.append(words % format_count(known.acknowledged_count))
    seen = known.dead.groups - len(known.dead.unseen)
    if seen > 0:
        words = ngettext(
            "The dead letters of %s group were seen.",
            "The dead letters of %s groups were seen.",
            seen,
        )
        said.append(words % format_count(seen))
    return " ".join(said)


def _tiles(known: Overview, now: Pace, who: Actor, admin: bool) -> list[Fact]:
    all_nodes = snapshot.current().nodes
    away = len(outages.silent_nodes()) + len(outages.offline_nodes())
    alive = [one for one in discovery.listed(actor=who) if one.alive]
    answering = f"{len(all_nodes) - away} / {len(all_nodes)}"
    oldest = max((one.lag_ms or 0 for one in known.behind), default=0) or None
    return [
        Fact(_("Sent per second"), now.sent, page_url("topics"), kind="rate"),
        Fact(_("Pulled per second"), now.pulled, page_url("groups"), kind="rate"),
        Fact(_("Handled per second"), now.handled, page_url("groups"), kind="rate"),
        Fact(_("Unread messages"), known.lag, page_url("groups") + "?sort=-lag", kind="number",
             note=progress.describe_slowest((one.name, one.progress) for one in known.behind)),
        Fact(_("Oldest unread"), oldest, page_url("groups") + "?sort=-age", kind="lasts",
             tone="warn" if (oldest or 0) > cells.LATE_MS else ""),
        Fact(_("Dead letters"), known.dead.messages, "#dead", kind="number",
             tone="warn" if known.dead.unseen else ""),
        Fact(_("Alarms"), known.alarm_count + known.acknowledged_count, page_url("alarms"),
             kind="number", tone="bad" if known.alarm_count else "ok"),
        Fact(_("Nodes"), answering, page_url("nodes") if admin else "", "bad" if away else "ok"),
        Fact(_("Brokers alive"), len(alive), page_url("brokers"), kind="number",
        tone="" if alive else "bad"),
        Fact(_("Topics"), known.topics, page_url("topics"), kind="number"),
        Fact(_("Consumer groups"), known.groups, page_url("groups"), kind="number"),
        Fact(_("Consumers"), known.members, page_url("consumers"), kind="number"),
    ]  # fmt: skip


def _behind(known: Overview) -> Table:
    return simple_table(
        cells.GROUP_COLUMNS, known.behind, EmptyHint(_("No group has unread messages"))
    )


def _dead(request: HttpRequest, known: Overview) -> Table:
    def href(one: GroupDeadLetters) -> str:
        return page_url(
            "failures" if may(request, "manage", one.group, what="group") else "group",
            one.group,
        )

    columns: Columns[GroupDeadLetters] = [
        Column(_("Group"), lambda row: code(row.group, href(row))),
        Column(
            _("Dead letters"),
            lambda row: number(row.messages, href(row), "bad" if row.unseen else ""),
            right=True,
        ),
        Column(_("Last hour"), lambda row: number(row.last_hour), right=True),
        Column(_("Newest"), lambda row: timestamp(row.newest_at_ms)),
        Column(
            _("State"),
            lambda row: text(_("new") if row.unseen else _("seen by %s") % row.seen_by),
        ),
    ]
    return simple_table(columns, known.dead.rows, EmptyHint(_("No dead letters")))
