"""Consumer groups: the list, and one group with who reads which queue and how far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from messagestore.consume import group_lag
from messagestore.consume.group_lag import QueueLag
from messagestore.inspect import lag_causes
from metadata.groups import groups
from metadata.groups.groups import GroupView, MemberView
from metadata.groups.subscription_rows import SubscriptionView
from metadata.listing import chart_marks, topic_lists
from metadata.listing.topic_lists import GroupRow
from metadata.monitoring import dead_letter_counts, metrics_history
from metadata.monitoring.dead_letter_counts import GroupDeadLetters
from metadata.monitoring.lag_trends import GroupProgress
from metadata.monitoring.metrics_history import Pace
from metadata.rules.groups.lag_causes import LONG_MS
from metadata.rules.membership.process_report import ProcessReport
from metadata.rules.settings import GROUP, LIMITS, SHARE
from metadata.rules.topics.names import failure_name
from portal.auth.access import actor, may
from portal.kit import causes, charts, outages, pages, places, progress, rows
from portal.kit.pages import Fact, Link, to
from portal.kit.setting_fields import facts
from portal.kit.tables import (
    PART,
    Cell,
    Column,
    Columns,
    Empty,
    Table,
    badge,
    code,
    lasting,
    listed,
    number,
    part,
    text,
    wanted,
    when,
)
from portal.templatetags.shapes import at
from portal.views.groups import leases, resetting


class Matrix(NamedTuple):
    """The queues of a topic as a group reads them, and those of its retry topic; None:
    there is none.
    """

    topic: str
    table: Table
    subscription: SubscriptionView | None
    retries: Table | None
    retry_topic: str
    waiting: int  # messages that are unread in the retry topic


def groups_list(request: HttpRequest) -> HttpResponse:
    found = topic_lists.groups(query=wanted(request), actor=actor(request))
    dead = dead_letter_counts.read_group_counts([row.pk for row in found.items])
    *figures, minutes = rows.GROUP
    columns: Columns[GroupRow] = [
        *figures,
        Column(
            _("Dead letters"),
            lambda one: _dead_count(dead.get(one.pk)),
            right=True,
            lead=True,
        ),
        Column(_("Topics"), lambda one: number(one.topics), right=True),
        minutes,
        Column(_("Owners"), lambda one: text(one.owners or None)),
    ]
    hint = Empty(
        _(
            "No matching groups. A consumer creates its group when it starts. To create "
            "one by hand:"
        ),
        "catmq group create billing && catmq subscribe billing orders",
        to("group-create"),
        _("Create a group"),
    )
    table = listed(request, columns, found, empty=hint)
    actions = [Link(_("Create a group"), to("group-create"))]
    return pages.list_page(
        request, _("Consumer groups"), table, section="groups", actions=actions
    )


def group(request: HttpRequest, name: str) -> HttpResponse:
    view = groups.describe(name=name, actor=actor(request))
    offsets, found = group_lag.standing(group=name, actor=actor(request))
    whose: dict[str, Any] = {
        "group_id": view.id,
        "sent_to": [one.topic_id for one in view.subscriptions],
    }
    span = charts.span(request, **whose)
    points = metrics_history.read_points(for_s=span.for_s, **whose)
    marks = chart_marks.list_marks(for_s=span.for_s, group=name, actor=actor(request))
    manages = may(request, "manage", name, what="group")
    reasons = lag_causes.explain_lag(
        view=view, offsets=offsets, found=found, actor=actor(request)
    )
    return pages.show(
        request,
        "groups/group",
        name,
        **places.of_group(request, name, "group"),
        live=True,
        actions=_actions(view) if manages else [],
        tiles=_tiles(
            view, offsets, metrics_history.read_pace(**whose), found, manages=manages
        ),
        leases=leases.of(view, offsets, manages=manages, actor=actor(request)),
        rates=charts.rates(points, marks),
        lags=charts.lags(points, marks),
        spans=charts.spans(span),
        matrices=_matrices(request, view, offsets),
        members=_members(request, view),
        processes=_processes(request, view),
        moves=resetting.latest(group=name, manages=manages, actor=actor(request)),
        facts=_facts(view),
        causes=causes.said(reasons, group=name, manages=manages),
        away=outages.of(one.queue for one in offsets if one.head is None),
        manages=manages,
    )


def _actions(view: GroupView) -> list[Link]:
    switch = (
        Link(_("Resume"), to("group-start", view.name))
        if view.stopped
        else Link(_("Pause"), to("group-stop", view.name))
    )
    return [
        switch,
        Link(_("Subscribe"), to("subscribe", view.name)),
        Link(_("Reset offsets"), to("group-reset", view.name)),
        *(
            []
            if view.mode == "share"
            else [Link(_("Rebalance"), to("group-rebalance", view.name))]
        ),
        Link(_("Settings"), to("group-settings", view.name)),
        Link(_("Delete"), to("group-delete", view.name), "danger"),
    ]


def _tiles(
    view: GroupView,
    offsets: Sequence[QueueLag],
    now: Pace,
    found: GroupProgress | None,
    *,
    manages: bool,
) -> list[Fact]:
    oldest = max((one.lag_ms or 0 for one in offsets), default=0) or None
    state, tone, trend = progress.state(found)
    dead = dead_letter_counts.read_group_count(view.id)
    if dead is not None and dead.unseen and tone == "ok":
        tone = "warn"  # it reads, but not all of it was handled
    return [
        Fact(_("State"), state, tone=tone, kind="words", note=trend),
        Fact(_("Handled per second"), now.handled, kind="rate"),
        Fact(_("Pulled per second"), now.pulled, kind="rate"),
        Fact(_("Sent per second"), now.sent, kind="rate"),
        Fact(_("Unread messages"), sum(one.lag or 0 for one in offsets), kind="number"),
        Fact(
            _("Oldest unread"),
            oldest,
            kind="lasts",
            tone="warn" if (oldest or 0) > rows.LATE_MS else "",
        ),
        *(leases.tiles(offsets) if view.mode == "share" else []),
        Fact(_("Members"), len(view.members), kind="number"),
        *_dead_letters(view.name, dead, manages=manages),
    ]


def _dead_count(dead: GroupDeadLetters | None) -> Cell:
    """Return the number of a group's dead letters, red until somebody has seen all."""
    if dead is None:
        return number(0)
    return number(dead.messages, to("group", dead.group), "bad" if dead.unseen else "")


def _dead_letters(
    group: str, dead: GroupDeadLetters | None, *, manages: bool
) -> list[Fact]:
    """Return the tile of a group's dead letters; none for a group without any."""
    if dead is None:
        return []
    tone = "bad" if dead.unseen else "warn"
    newest = _("the newest: %s") % at(dead.newest_at_ms)
    href = to("failures", group) if manages else ""
    return [Fact(_("Dead letters"), dead.messages, href, tone, kind="number", note=newest)]


def _matrices(
    request: HttpRequest, view: GroupView, offsets: Sequence[QueueLag]
) -> list[Matrix]:
    """Return each topic with its queues, their owners and positions; its retry topic is
    folded into it.
    """
    known = {one.topic: one for one in view.subscriptions}
    heard = {member.name: member for member in view.members}
    shares = view.mode == "share"
    held = leases.columns() if shares else _owner(heard)
    fence: Columns[QueueLag] = (
        [] if shares else [Column(_("Epoch"), lambda one: code(one.epoch))]
    )
    mine = {
        topic: list(found) for topic, found in groupby(offsets, key=lambda one: one.topic)
    }
    retries = {topic: failure_name(view.name, topic) for topic in mine}
    found = []
    for topic in sorted(mine.keys() - set(retries.values())):
        after = mine.get(retries[topic])
        found.append(
            Matrix(
                topic,
                _matrix(mine[topic], known.get(topic), held, fence, request=request),
                known.get(topic),
                _matrix(after, None, held, fence, request=request) if after else None,
                retries[topic],
                sum(one.lag or 0 for one in after or ()),
            )
        )
    return found


def _matrix(
    offsets: Sequence[QueueLag],
    subscription: SubscriptionView | None,
    held: Columns[QueueLag],
    fence: Columns[QueueLag],
    *,
    request: HttpRequest,
) -> Table:
    stopped = set(subscription.stopped_queues) if subscription else set()
    columns: Columns[QueueLag] = [
        Column(_("Queue"), _position),
        *held[:1],
        Column(_("Unread"), lambda one: number(one.lag), right=True),
        Column(_("Oldest unread"), lambda one: rows.age(one.lag_ms), right=True),
        Column(_("Position"), lambda one: number(one.committed), right=True),
        Column(_("Log end offset"), lambda one: number(one.head), right=True),
        Column(_("Log start offset"), lambda one: number(one.low), right=True),
        *held[1:],
        *fence,
        Column(_("State"), lambda one: _queue_state(one, stopped)),
    ]
    if len(offsets) > PART:  # so that the first page has what is late
        offsets = sorted(offsets, key=lambda one: -(one.lag or 0))
    return part(request, columns, offsets, Empty(_("No queues.")), word="queues")


def _owner(heard: Mapping[str, MemberView]) -> Columns[QueueLag]:
    return [
        Column(_("Owner"), _reader),
        Column(
            _("Last heartbeat"),
            lambda one: lasting(_silent_ms(heard.get(one.owner or ""))),
            right=True,
        ),
    ]


def _position(one: QueueLag) -> Cell:
    place = f"?topic={one.topic}&queue={one.queue}&offset={one.committed or 0}"
    return rows.queue(one.queue, to("messages") + place)


def _queue_state(one: QueueLag, stopped: set[int]) -> Cell:
    """Describe whether the queue can be read, which does not say that its messages are
    handled.
    """
    if one.head is None or one.queue in stopped:
        return rows.state("away" if one.head is None else "stopped")
    return badge(_("open"))


def _silent_ms(member: MemberView | None) -> int | None:
    return member.heartbeat_age_ms if member else None


def _reader(one: QueueLag) -> Cell:
    if not one.owner:
        return badge(_("nobody"), "warn" if one.lag else "")
    return text(f"{one.owner} ({one.instance})" if one.instance else one.owner)


def _members(request: HttpRequest, view: GroupView) -> Table:
    columns: Columns[MemberView] = [
        Column(_("Member"), lambda one: text(one.name)),
        Column(
            _("Last heartbeat"),
            lambda one: rows.silence(one.heartbeat_age_ms, view.session_timeout_ms),
            right=True,
        ),
        Column(_("Queues"), lambda one: number(len(one.queues)), right=True),
        Column(
            _("State"),
            lambda one: badge(_("reads"), "ok") if one.active else badge(_("stands by")),
        ),
        Column(_("Address"), lambda one: code(one.address)),
        Column(_("Client"), lambda one: text(one.sdk or None)),
        Column(_("Since"), lambda one: when(one.joined_at_ms)),
    ]
    hint = Empty(
        _("No members. Start a consumer:"), f"catmq consume --group {view.name} TOPIC"
    )
    return part(request, columns, view.members, hint, word="members")


def _processes(request: HttpRequest, view: GroupView) -> Table | None:
    """Return what the members' processes say of themselves; None if none of them does."""
    reporting = [(one, one.process) for one in view.members if one.process is not None]
    columns: Columns[tuple[MemberView, ProcessReport]] = [
        Column(_("Member"), lambda one: text(one[0].name)),
        Column(_("Threads at work"), lambda one: _threads(one[1]), right=True),
        Column(_("Slowest handler"), lambda one: rows.place_of_handler(one[1].slowest)),
        Column(_("Running for"), lambda one: _running(one[1]), right=True),
        Column(_("Buffered messages"), lambda one: number(one[1].buffered), right=True),
        Column(
            _("Buffered bytes"), lambda one: Cell(one[1].buffered_bytes, "size"), right=True
        ),
        Column(_("Handled since start"), lambda one: number(one[1].handled), right=True),
        Column(_("Failed attempts"), lambda one: number(one[1].failed), right=True),
        Column(_("Reported"), lambda one: lasting(one[0].process_age_ms), right=True),
    ]
    return (
        part(request, columns, reporting, Empty(""), word="processes")
        if reporting
        else None
    )


def _threads(one: ProcessReport) -> Cell:
    words = {"busy": one.busy, "threads": one.threads}
    return text(_("%(busy)s of %(threads)s") % words)


def _running(one: ProcessReport) -> Cell:
    if one.slowest is None:
        return lasting(None)
    return lasting(
        one.slowest.running_ms, "warn" if one.slowest.running_ms >= LONG_MS else ""
    )


def _facts(view: GroupView) -> list[Fact]:
    return [
        Fact(_("Mode"), rows.state(view.mode).value),
        Fact(
            _("Generation"),
            view.generation,
            f"{to('rebalances')}?q={view.name}&of=group",
            kind="number",
        ),
        *facts(
            GROUP, view, without=["stopped", *(LIMITS if view.mode == "share" else SHARE)]
        ),
        Fact(_("Created"), view.created_at_ms, kind="when"),
        Fact(_("Changes"), _("audit log"), f"{to('audit')}?name={view.name}"),
        Fact(_("Rebalances"), _("history"), f"{to('rebalances')}?q={view.name}"),
    ]
