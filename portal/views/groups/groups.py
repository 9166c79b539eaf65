"""Consumer groups: the list, and one group with who reads which queue and how far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from messagestore.consume import lag
from messagestore.consume.lag import QueueLag
from messagestore.inspect import lag_causes
from metadata.groups import groups
from metadata.groups.groups import GroupView, MemberView
from metadata.groups.subscription_rows import SubscriptionView
from metadata.listing import chart_marks, topic_lists
from metadata.listing.topic_lists import GroupRow
from metadata.monitoring import dead_letter_counts, metrics_history
from metadata.monitoring.dead_letter_counts import GroupDeadLetters
from metadata.monitoring.metrics_history import Pace
from metadata.monitoring.progress import GroupProgress
from metadata.rules.groups.lagging import LONG_MS
from metadata.rules.membership.process_report import ProcessReport
from metadata.rules.settings import GROUP, LIMITS, SHARE
from metadata.rules.topics.names import failure_name
from portal.auth.access import actor, may
from portal.kit import causes, cells, charts, navigation, outages, pages, progress
from portal.kit.pages import Fact, Link, page_url
from portal.kit.setting_fields import setting_facts
from portal.kit.tables import (
    ROWS_PER_PAGE,
    Cell,
    Column,
    Columns,
    EmptyHint,
    Table,
    badge,
    code,
    duration,
    list_table,
    number,
    parse_list_query,
    split_table,
    text,
    timestamp,
)
from portal.templatetags.formats import format_time
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
    found = topic_lists.groups(wanted=parse_list_query(request), actor=actor(request))
    dead = dead_letter_counts.of_groups([row.pk for row in found.items])
    *figures, minutes = cells.GROUP_COLUMNS
    columns: Columns[GroupRow] = [
        *figures,
        Column(
            _("Dead letters"),
            lambda row: _dead_count(dead.get(row.pk)),
            right=True,
            lead=True,
        ),
        Column(_("Topics"), lambda row: number(row.topics), right=True),
        minutes,
        Column(_("Owners"), lambda row: text(row.owners or None)),
    ]
    hint = EmptyHint(
        _(
            "No matching groups. A consumer creates its group when it starts. To create "
            "one by hand:"
        ),
        "catmq group create billing && catmq subscribe billing orders",
        page_url("group-create"),
        _("Create a group"),
    )
    table = list_table(request, columns, found, empty=hint)
    actions = [Link(_("Create a group"), page_url("group-create"))]
    return pages.render_list(
        request, _("Consumer groups"), table, section="groups", actions=actions
    )


def group(request: HttpRequest, name: str) -> HttpResponse:
    view = groups.describe(name=name, actor=actor(request))
    offsets, found = lag.standing(group=name, actor=actor(request))
    whose: dict[str, Any] = {
        "group_id": view.id,
        "sent_to": [one.topic_id for one in view.subscriptions],
    }
    span = charts.chosen_span(request, **whose)
    points = metrics_history.points(for_s=span.length_s, **whose)
    marks = chart_marks.marks(for_s=span.length_s, group=name, actor=actor(request))
    manages = may(request, "manage", name, what="group")
    reasons = lag_causes.of_group(
        view=view, offsets=offsets, found=found, actor=actor(request)
    )
    return pages.render_page(
        request,
        "groups/group",
        name,
        **navigation.for_group(request, name, "group"),
        live=True,
        actions=_actions(view) if manages else [],
        tiles=_tiles(view, offsets, metrics_history.pace(**whose), found, manages=manages),
        leases=leases.find_leases(view, offsets, manages=manages, actor=actor(request)),
        rates=charts.rate_chart(points, marks),
        lags=charts.lag_chart(points, marks),
        spans=charts.span_links(span),
        matrices=_matrices(request, view, offsets),
        members=_members(request, view),
        processes=_processes(request, view),
        moves=resetting.latest_moves(group=name, manages=manages, actor=actor(request)),
        facts=_facts(view),
        causes=causes.describe_causes(reasons, group=name, manages=manages),
        away=outages.names_of_nodes(one.queue for one in offsets if one.head is None),
        manages=manages,
    )


def _actions(view: GroupView) -> list[Link]:
    switch = (
        Link(_("Resume"), page_url("group-start", view.name))
        if view.stopped
        else Link(_("Pause"), page_url("group-stop", view.name))
    )
    return [
        switch,
        Link(_("Subscribe"), page_url("subscribe", view.name)),
        Link(_("Reset offsets"), page_url("group-reset", view.name)),
        *(
            []
            if view.mode == "share"
            else [Link(_("Rebalance"), page_url("group-rebalance", view.name))]
        ),
        Link(_("Settings"), page_url("group-settings", view.name)),
        Link(_("Delete"), page_url("group-delete", view.name), "danger"),
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
    state, tone, trend = progress.group_state(found)
    dead = dead_letter_counts.of_group(view.id)
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
            tone="warn" if (oldest or 0) > cells.LATE_MS else "",
        ),
        *(leases.lease_tiles(offsets) if view.mode == "share" else []),
        Fact(_("Members"), len(view.members), kind="number"),
        *_dead_letters(view.name, dead, manages=manages),
    ]


def _dead_count(dead: GroupDeadLetters | None) -> Cell:
    """Return the number of a group's dead letters, red until somebody has seen all."""
    if dead is None:
        return number(0)
    return number(
        dead.messages, page_url("group", dead.group), "bad" if dead.unseen else ""
    )


def _dead_letters(
    group: str, dead: GroupDeadLetters | None, *, manages: bool
) -> list[Fact]:
    """Return the tile of a group's dead letters; none for a group without any."""
    if dead is None:
        return []
    tone = "bad" if dead.unseen else "warn"
    newest = _("the newest: %s") % format_time(dead.newest_at_ms)
    href = page_url("failures", group) if manages else ""
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
    held = leases.lease_columns() if shares else _owner(heard)
    fence: Columns[QueueLag] = (
        [] if shares else [Column(_("Epoch"), lambda row: code(row.epoch))]
    )
    mine = {
        topic: list(found) for topic, found in groupby(offsets, key=lambda row: row.topic)
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
        Column(_("Unread"), lambda row: number(row.lag), right=True),
        Column(_("Oldest unread"), lambda row: cells.age(row.lag_ms), right=True),
        Column(_("Position"), lambda row: number(row.committed), right=True),
        Column(_("Log end offset"), lambda row: number(row.head), right=True),
        Column(_("Log start offset"), lambda row: number(row.low), right=True),
        *held[1:],
        *fence,
        Column(_("State"), lambda row: _queue_state(row, stopped)),
    ]
    if len(offsets) > ROWS_PER_PAGE:  # so that the first page has what is late
        offsets = sorted(offsets, key=lambda row: -(row.lag or 0))
    return split_table(
        request, columns, offsets, EmptyHint(_("No queues.")), parameter="queues"
    )


def _owner(heard: Mapping[str, MemberView]) -> Columns[QueueLag]:
    return [
        Column(_("Owner"), _reader),
        Column(
            _("Last heartbeat"),
            lambda row: duration(_silent_ms(heard.get(row.owner or ""))),
            right=True,
        ),
    ]


def _position(one: QueueLag) -> Cell:
    place = f"?topic={one.topic}&queue={one.queue}&offset={one.committed or 0}"
    return cells.queue(one.queue, page_url("messages") + place)


def _queue_state(one: QueueLag, stopped: set[int]) -> Cell:
    """Describe whether the queue can be read, which does not say that its messages are
    handled.
    """
    if one.head is None or one.queue in stopped:
        return cells.state("away" if one.head is None else "stopped")
    return badge(_("open"))


def _silent_ms(member: MemberView | None) -> int | None:
    return member.heartbeat_age_ms if member else None


def _reader(one: QueueLag) -> Cell:
    if not one.owner:
        return badge(_("nobody"), "warn" if one.lag else "")
    return text(f"{one.owner} ({one.instance})" if one.instance else one.owner)


def _members(request: HttpRequest, view: GroupView) -> Table:
    columns: Columns[MemberView] = [
        Column(_("Member"), lambda row: text(row.name)),
        Column(
            _("Last heartbeat"),
            lambda row: cells.heartbeat_age(row.heartbeat_age_ms, view.session_timeout_ms),
            right=True,
        ),
        Column(_("Queues"), lambda row: number(len(row.queues)), right=True),
        Column(
            _("State"),
            lambda row: badge(_("reads"), "ok") if row.active else badge(_("stands by")),
        ),
        Column(_("Address"), lambda row: code(row.address)),
        Column(_("Client"), lambda row: text(row.sdk or None)),
        Column(_("Since"), lambda row: timestamp(row.joined_at_ms)),
    ]
    hint = EmptyHint(
        _("No members. Start a consumer:"), f"catmq consume --group {view.name} TOPIC"
    )
    return split_table(request, columns, view.members, hint, parameter="members")


def _processes(request: HttpRequest, view: GroupView) -> Table | None:
    """Return what the members' processes say of themselves; None if none of them does."""
    reporting = [(one, one.process) for one in view.members if one.process is not None]
    columns: Columns[tuple[MemberView, ProcessReport]] = [
        Column(_("Member"), lambda row: text(row[0].name)),
        Column(_("Threads at work"), lambda row: _threads(row[1]), right=True),
        Column(_("Slowest handler"), lambda row: cells.handled_message(row[1].slowest)),
        Column(_("Running for"), lambda row: _running(row[1]), right=True),
        Column(_("Buffered messages"), lambda row: number(row[1].buffered), right=True),
        Column(
            _("Buffered bytes"), lambda row: Cell(row[1].buffered_bytes, "size"), right=True
        ),
        Column(_("Handled since start"), lambda row: number(row[1].handled), right=True),
        Column(_("Failed attempts"), lambda row: number(row[1].failed), right=True),
        Column(_("Reported"), lambda row: duration(row[0].process_age_ms), right=True),
    ]
    return (
        split_table(request, columns, reporting, EmptyHint(""), parameter="processes")
        if reporting
        else None
    )


def _threads(one: ProcessReport) -> Cell:
    words = {"busy": one.busy, "threads": one.threads}
    return text(_("%(busy)s of %(threads)s") % words)


def _running(one: ProcessReport) -> Cell:
    if one.slowest is None:
        return duration(None)
    return duration(
        one.slowest.running_ms, "warn" if one.slowest.running_ms >= LONG_MS else ""
    )


def _facts(view: GroupView) -> list[Fact]:
    return [
        Fact(_("Mode"), cells.state(view.mode).value),
        Fact(
            _("Generation"),
            view.generation,
            f"{page_url('rebalances')}?q={view.name}&of=group",
            kind="number",
        ),
        *setting_facts(
            GROUP, view, without=["stopped", *(LIMITS if view.mode == "share" else SHARE)]
        ),
        Fact(_("Created"), view.created_at_ms, kind="when"),
        Fact(_("Changes"), _("audit log"), f"{page_url('audit')}?name={view.name}"),
        Fact(_("Rebalances"), _("history"), f"{page_url('rebalances')}?q={view.name}"),
    ]
