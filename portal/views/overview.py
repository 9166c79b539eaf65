"""The first page: is anything wrong, and where."""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from messagestore import nodes
from metadata import brokers, series, snapshot
from metadata.actors import Actor
from metadata.listing import overview as listing
from metadata.listing.overview import Overview
from portal import charts, outages, pages, rows
from portal.access import actor, may
from portal.pages import Fact, to
from portal.tables import Column, Empty, Table, Text, plain

LATE_MS = 15 * 60_000  # an unread message older than that makes a group worth a look


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that a person should look at; `tone` is bad or warn."""

    tone: str
    text: Text
    href: str


def overview(request: HttpRequest) -> HttpResponse:
    """The page `/`."""
    known = listing.overview(actor=actor(request))
    points = series.points(for_s=charts.span(request).for_s)
    problems = _problems(known, actor(request), node_href=to("nodes") if may(request, "admin") else "")
    return pages.show(
        request,
        "overview",
        _("Overview"),
        section="overview",
        live=True,
        problems=problems,
        verdict=min((one.tone for one in problems), default="ok"),
        tiles=_tiles(known, series.pace(), actor(request), may(request, "admin")),
        rates=charts.rates(points),
        lags=charts.lags(points),
        spans=charts.spans(request),
        behind=_behind(known),
        empty=not known.topics,
    )


def _tiles(known: Overview, now: tuple[float, float], who: Actor, admin: bool) -> list[Fact]:
    all_nodes = snapshot.current().nodes
    away = len(outages.silent()) + len(outages.offline())
    alive = [one for one in brokers.listed(actor=who) if one.alive]
    node_tone = "bad" if away else "ok"
    return [
        Fact(_("Sent per second"), now[0], to("topics"), kind="rate"),
        Fact(_("Pulled per second"), now[1], to("groups"), kind="rate"),
        Fact(_("Unread messages"), known.lag, to("groups") + "?sort=-lag", kind="number"),
        Fact(_("Topics"), known.topics, to("topics"), kind="number"),
        Fact(_("Consumer groups"), known.groups, to("groups"), kind="number"),
        Fact(_("Consumers"), known.members, to("consumers"), kind="number"),
        Fact(
            _("Nodes"), f"{len(all_nodes) - away} / {len(all_nodes)}", to("nodes") if admin else "", node_tone
        ),
        Fact(_("Brokers alive"), len(alive), to("brokers"), kind="number", tone="" if alive else "bad"),
        Fact(
            _("Alarms"),
            known.alarm_count,
            to("alarms") + "?lasting=1",
            kind="number",
            tone="bad" if known.alarm_count else "ok",
        ),
    ]


def _problems(known: Overview, who: Actor, *, node_href: str) -> list[Problem]:
    found = _of_nodes(node_href)
    found += [
        Problem("bad", _("Alarm %(kind)s at %(name)s: %(detail)s") % _words(one), to("alarms") + "?lasting=1")
        for one in known.alarms
    ]
    found += [
        Problem(
            "warn", _("Group %s has unread messages in queues that nobody reads.") % name, to("group", name)
        )
        for name in known.unread
    ]
    found += [
        Problem("warn", _("Group %s is late: its oldest unread message waits for long.") % one.name,
                to("group", one.name))
        for one in known.behind
        if (one.lag_ms or 0) > LATE_MS and one.name not in known.unread
    ]  # fmt: skip
    if known.failed_job_count:
        what = ngettext(
            "%d run of a job failed in the last day.",
            "%d runs of jobs failed in the last day.",
            known.failed_job_count,
        )
        found.append(Problem("warn", what % known.failed_job_count, to("jobs") + "?q=failed"))
    return found


def _words(alarm: object) -> dict[str, str]:
    return {
        "kind": str(rows.alarm_kind(alarm.kind)),  # type: ignore[attr-defined]
        "name": alarm.name,  # type: ignore[attr-defined]
        "detail": alarm.detail,  # type: ignore[attr-defined]
    }


def _of_nodes(href: str) -> list[Problem]:
    found = [Problem("bad", _("Node %s does not answer.") % name, href) for name in outages.silent()]
    found += [
        Problem("warn", _("Node %s is offline: what is on it is neither read nor written.") % name, href)
        for name in outages.offline()
    ]
    found += [
        Problem("bad", _("Node %(name)s is barred: %(why)s") % {"name": name, "why": why}, href)
        for name, why in nodes.barred().items()
    ]
    for info in snapshot.current().nodes.values():
        if info.disk != "ok":
            tone = "bad" if info.disk == "full" else "warn"
            found.append(Problem(tone, _("Node %s runs out of room.") % info.name, href))
    return found


def _behind(known: Overview) -> Table:
    columns = (
        Column(_("Group")),
        Column(_("Unread"), right=True),
        Column(_("Oldest unread"), right=True),
        Column(_("Members"), right=True),
        Column(_("Last 30 min")),
    )
    return plain(
        columns, [rows.behind(one) for one in known.behind], Empty(_("Every group has read everything."))
    )
