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
from portal.kit import charts, outages, pages, progress, rows
from portal.kit.pages import Fact, to
from portal.kit.problems import problems
from portal.kit.tables import Column, Columns, Empty, Table, code, number, plain, text, when
from portal.templatetags.shapes import count


def overview(request: HttpRequest) -> HttpResponse:
    """The page `/`."""
    known = overview_lists.overview(actor=actor(request))
    span = charts.span(request)
    points = metrics_history.read_points(for_s=span.for_s)
    now = (
        metrics_history.pace_of_series(points)
        if span.for_s <= metrics_history.LIVE_S
        else metrics_history.read_pace()
    )
    marks = chart_marks.list_marks(for_s=span.for_s, actor=actor(request))
    found = problems(known, actor(request))
    return pages.show(
        request,
        "system/overview",
        _("Overview"),
        section="overview",
        live=True,
        problems=found,
        verdict=min((one.tone for one in found), default="ok"),
        quiet=_quiet(known),
        tiles=_tiles(known, now, actor(request), may(request, "admin")),
        rates=charts.rates(points, marks),
        lags=charts.lags(points, marks),
        spans=charts.spans(span),
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
        said.append(words % count(known.acknowledged_count))
    seen = known.dead.groups - len(known.dead.unseen)
    if seen > 0:
        words = ngettext(
            "The dead letters of %s group were seen.",
            "The dead letters of %s groups were seen.",
            seen,
        )
        said.append(words % count(seen))
    return " ".join(said)


def _tiles(known: Overview, now: Pace, who: Actor, admin: bool) -> list[Fact]:
    all_nodes = snapshot.current().nodes
    away = len(outages.silent()) + len(outages.offline())
    alive = [one for one in discovery.list_brokers(actor=who) if one.alive]
    answering = f"{len(all_nodes) - away} / {len(all_nodes)}"
    oldest = max((one.lag_ms or 0 for one in known.behind), default=0) or None
    return [
        Fact(_("Sent per second"), now.sent, to("topics"), kind="rate"),
        Fact(_("Pulled per second"), now.pulled, to("groups"), kind="rate"),
        Fact(_("Handled per second"), now.handled, to("groups"), kind="rate"),
        Fact(_("Unread messages"), known.lag, to("groups") + "?sort=-lag", kind="number",
             note=progress.of_all((one.name, one.progress) for one in known.behind)),
        Fact(_("Oldest unread"), oldest, to("groups") + "?sort=-age", kind="lasts",
             tone="warn" if (oldest or 0) > rows.LATE_MS else ""),
        Fact(_("Dead letters"), known.dead.messages, "#dead", kind="number",
             tone="warn" if known.dead.unseen else ""),
        Fact(_("Alarms"), known.alarm_count + known.acknowledged_count, to("alarms"), kind="number",
             tone="bad" if known.alarm_count else "ok"),
        Fact(_("Nodes"), answering, to("nodes") if admin else "", "bad" if away else "ok"),
        Fact(_("Brokers alive"), len(alive), to("brokers"), kind="number",
        tone="" if alive else "bad"),
        Fact(_("Topics"), known.topics, to("topics"), kind="number"),
        Fact(_("Consumer groups"), known.groups, to("groups"), kind="number"),
        Fact(_("Consumers"), known.members, to("consumers"), kind="number"),
    ]  # fmt: skip


def _behind(known: Overview) -> Table:
    return plain(rows.GROUP, known.behind, Empty(_("No group has unread messages")))


def _dead(request: HttpRequest, known: Overview) -> Table:
    def href(one: GroupDeadLetters) -> str:
        return to(
            "failures" if may(request, "manage", one.group, what="group") else "group",
            one.group,
        )

    columns: Columns[GroupDeadLetters] = [
        Column(_("Group"), lambda one: code(one.group, href(one))),
        Column(
            _("Dead letters"),
            lambda one: number(one.messages, href(one), "bad" if one.unseen else ""),
            right=True,
        ),
        Column(_("Last hour"), lambda one: number(one.last_hour), right=True),
        Column(_("Newest"), lambda one: when(one.newest_at_ms)),
        Column(
            _("State"),
            lambda one: text(_("new") if one.unseen else _("seen by %s") % one.seen_by),
        ),
    ]
    return plain(columns, known.dead.rows, Empty(_("No dead letters")))
