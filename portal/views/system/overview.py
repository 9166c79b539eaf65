"""The first page: whether anything is wrong, and where."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from metadata.brokers import discovery
from metadata.cache import snapshot
from metadata.listing import chart_marks, overview_lists
from metadata.listing.overview_lists import Overview
from metadata.monitoring import metrics_history
from metadata.monitoring.dead_letter_counts import GroupDeadLetters
from metadata.rules.rights import Right
from portal.auth.access import actor, may
from portal.kit import cells, charts, outages, pages, progress
from portal.kit.pages import Fact, page_url
from portal.kit.problems import list_problems
from portal.kit.tables import (
    Column,
    Columns,
    EmptyHint,
    code,
    number,
    simple_table,
    text,
    timestamp,
)
from portal.templatetags.formats import format_count, format_rate


def overview(request: HttpRequest) -> HttpResponse:
    """Show problems, figures and charts of the whole installation."""
    summary = overview_lists.overview(actor=actor(request))
    span, points = charts.read_series(request)
    # The points of a short span contain the current rates. For a long one they are read
    # apart.
    rates = (
        metrics_history.pace_of_series(points)
        if span.length_s <= metrics_history.LIVE_S
        else metrics_history.read_pace()
    )
    marks = chart_marks.list_marks(for_s=span.length_s, actor=actor(request))
    problem_list = list_problems(summary, actor(request))
    nodes = snapshot.current().nodes
    # Offline nodes do not answer either.
    silent_count = len(outages.silent_nodes()) + len(outages.offline_nodes())
    alive_brokers = [
        broker for broker in discovery.list_brokers(actor=actor(request)) if broker.alive
    ]
    answering_nodes = f"{len(nodes) - silent_count} / {len(nodes)}"
    oldest = max((broker.lag_ms or 0 for broker in summary.behind), default=0) or None

    def dead_letters_url(row: GroupDeadLetters) -> str:
        manages = may(request, Right.MANAGE, row.group, what="group")
        return page_url("failures" if manages else "group", row.group)

    dead_columns: Columns[GroupDeadLetters] = [
        Column(_("Group"), lambda row: code(row.group, dead_letters_url(row))),
        Column(
            _("Dead letters"),
            lambda row: number(
                row.messages, dead_letters_url(row), "bad" if row.unseen else ""
            ),
            right=True,
        ),
        Column(_("Last hour"), lambda row: number(row.last_hour), right=True),
        Column(_("Newest"), lambda row: timestamp(row.newest_at_ms)),
        Column(
            _("State"),
            lambda row: text(_("new") if row.unseen else _("seen by %s") % row.seen_by),
        ),
    ]
    return pages.render_page(
        request,
        "system/overview",
        _("Overview"),
        section="overview",
        live=True,
        problems=problem_list,
        verdict=min((problem.tone for problem in problem_list), default="ok"),
        quiet=_describe_handled_problems(summary),
        tiles=[
            Fact(
                _("Sent per second"),
                rates.sent,
                page_url("topics"),
                kind="rate",
                trend=charts.trend(points, lambda point: point.sent),
            ),
            Fact(
                _("Handled per second"),
                rates.handled,
                page_url("groups"),
                kind="rate",
                # More are pulled than handled if messages are retried or handlers are slow.
                note=_("pulled: %s") % format_rate(rates.pulled),
                trend=charts.trend(points, lambda point: point.handled),
            ),
            Fact(
                _("Unread messages"),
                summary.lag,
                page_url("groups") + "?sort=-lag",
                kind="number",
                note=progress.describe_slowest(
                    (row.name, row.progress) for row in summary.behind
                ),
                trend=charts.trend(points, lambda point: point.lag),
            ),
            Fact(
                _("Oldest unread"),
                oldest,
                page_url("groups") + "?sort=-age",
                kind="lasts",
                tone="warn" if (oldest or 0) > cells.LATE_MS else "",
                trend=charts.trend(points, lambda point: point.lag_ms),
            ),
            Fact(
                _("Dead letters"),
                summary.dead.messages,
                "#dead",
                kind="number",
                tone="warn" if summary.dead.unseen else "",
                # Dead letters are counted by a job that keeps no series.
                note=_("last hour: %s")
                % format_count(sum(row.last_hour for row in summary.dead.rows)),
            ),
        ],
        inventory=[
            Fact(
                _("Alarms"),
                format_count(summary.alarm_count + summary.acknowledged_count),
                page_url("alarms"),
                tone="bad" if summary.alarm_count else "",
            ),
            Fact(
                _("Nodes"),
                answering_nodes,
                page_url("nodes") if may(request, Right.ADMIN) else "",
                tone="bad" if silent_count else "",
            ),
            Fact(
                _("Brokers alive"),
                format_count(len(alive_brokers)),
                page_url("brokers"),
                tone="" if alive_brokers else "bad",
            ),
            Fact(_("Topics"), format_count(summary.topics), page_url("topics")),
            Fact(_("Consumer groups"), format_count(summary.groups), page_url("groups")),
            Fact(_("Consumers"), format_count(summary.members), page_url("consumers")),
        ],
        rates=charts.rate_chart(points, marks),
        lags=charts.lag_chart(points, marks),
        spans=charts.span_links(span),
        behind=simple_table(
            cells.GROUP_COLUMNS,
            summary.behind,
            EmptyHint(_("No group has unread messages")),
        ),
        dead=simple_table(dead_columns, summary.dead.rows, EmptyHint(_("No dead letters"))),
        empty=not summary.topics,
    )


def _describe_handled_problems(summary: Overview) -> str:
    """Describe acknowledged alarms and dead letters marked as seen, '' if there are none."""
    sentences = []
    if summary.acknowledged_count:
        template = ngettext(
            "%s alarm is acknowledged.",
            "%s alarms are acknowledged.",
            summary.acknowledged_count,
        )
        sentences.append(template % format_count(summary.acknowledged_count))
    seen_groups = summary.dead.groups - len(summary.dead.unseen)
    if seen_groups > 0:
        template = ngettext(
            "The dead letters of %s group were seen.",
            "The dead letters of %s groups were seen.",
            seen_groups,
        )
        sentences.append(template % format_count(seen_groups))
    return " ".join(sentences)
