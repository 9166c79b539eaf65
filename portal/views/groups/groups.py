"""Pages of consumer groups: the list, and a group with its queues, members, lag and
settings.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from metadata.monitoring.metrics_history import Pace, Point
from metadata.rules.groups.lag_causes import LONG_MS
from metadata.rules.groups.states import GroupMode
from metadata.rules.membership.process_report import ProcessStatus
from metadata.rules.rights import Right
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
    lag,
    list_table,
    number,
    parse_list_query,
    split_table,
    text,
    timestamp,
)
from portal.templatetags.formats import format_count, format_rate, format_time
from portal.views.groups import leases, resetting

# Unread messages of a full bar, if no queue has more: small lags are normal, so they fill none.
MIN_FULL_BAR = 100


class TopicQueues(NamedTuple):
    """The queues of a topic as a group reads them, and the queues of its retry topic (None
    if there is none).
    """

    topic: str
    table: Table
    subscription: SubscriptionView | None
    retries: Table | None
    retry_topic: str
    # Unread messages in the retry topic.
    unread_retries: int


def groups_list(request: HttpRequest) -> HttpResponse:
    page = topic_lists.groups(query=parse_list_query(request), actor=actor(request))
    dead_letters = dead_letter_counts.read_group_counts([row.pk for row in page.items])
    # The small chart stays to the right of all figures.
    *usual_columns, sparkline = cells.GROUP_COLUMNS
    columns: Columns[GroupRow] = [
        *usual_columns,
        Column(
            _("Dead letters"),
            lambda row: _dead_letters_cell(dead_letters.get(row.pk)),
            right=True,
            lead=True,
        ),
        Column(_("Topics"), lambda row: number(row.topics), right=True),
        sparkline,
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
    table = list_table(request, columns, page, empty=hint)
    actions = [Link(_("Create a group"), page_url("group-create"))]
    return pages.render_list(
        request, _("Consumer groups"), table, section="groups", actions=actions
    )


def _dead_letters_cell(dead_letters: GroupDeadLetters | None) -> Cell:
    """Return the number of a group's dead letters, red until all were marked as seen."""
    if dead_letters is None:
        return number(0)
    tone = "bad" if dead_letters.unseen else ""
    return number(dead_letters.messages, page_url("group", dead_letters.group), tone)


def group(request: HttpRequest, name: str) -> HttpResponse:
    view = groups.describe(name=name, actor=actor(request))
    # A single read of the nodes serves the tiles, the tables and the causes.
    offsets, group_progress = group_lag.standing(group=name, actor=actor(request))
    samples: dict[str, Any] = {
        "group_id": view.id,
        # The charts compare messages sent to the group's topics with those it handled.
        "sent_to": [subscription.topic_id for subscription in view.subscriptions],
    }
    span, points = charts.read_series(request, **samples)
    marks = chart_marks.list_marks(for_s=span.length_s, group=name, actor=actor(request))
    # Users without this right see no links to changes.
    manages = may(request, Right.MANAGE, name, what="group")
    reasons = lag_causes.explain_lag(
        view=view, offsets=offsets, progress=group_progress, actor=actor(request)
    )
    pause_or_resume = (
        Link(_("Resume"), page_url("group-start", view.name))
        if view.stopped
        else Link(_("Pause"), page_url("group-stop", view.name))
    )
    member_columns: Columns[MemberView] = [
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
    own_topics = (row.topic for row in view.subscriptions if not row.to_failures)
    topic = next(own_topics, "TOPIC")
    no_members = EmptyHint(
        _("No members. Start a consumer:"), f"catmq consume --group {view.name} {topic}"
    )
    return pages.render_page(
        request,
        "groups/group",
        name,
        **navigation.for_group(request, name, "group"),
        live=True,
        actions=[
            pause_or_resume,
            Link(_("Subscribe"), page_url("subscribe", view.name)),
            Link(_("Reset offsets"), page_url("group-reset", view.name)),
            *(
                []
                if view.mode == GroupMode.SHARE
                else [Link(_("Rebalance"), page_url("group-rebalance", view.name))]
            ),
            Link(_("Settings"), page_url("group-settings", view.name)),
            Link(_("Delete"), page_url("group-delete", view.name), "danger"),
        ]
        if manages
        else [],
        tiles=_tiles(
            view,
            offsets,
            metrics_history.read_pace(**samples),
            group_progress,
            points=points,
            manages=manages,
        ),
        leases=leases.find_leases(view, offsets, manages=manages, actor=actor(request)),
        rates=charts.rate_chart(points, marks),
        lags=charts.lag_chart(points, marks),
        spans=charts.span_links(span),
        topics=_queues_by_topic(request, view, offsets),
        members=split_table(
            request, member_columns, view.members, no_members, parameter="members"
        ),
        processes=_processes_table(request, view),
        moves=resetting.latest_moves(group=name, manages=manages, actor=actor(request)),
        facts=[
            Fact(_("Mode"), cells.state(view.mode).value),
            Fact(
                _("Generation"),
                view.generation,
                f"{page_url('rebalances')}?q={view.name}&of=group",
                kind="number",
            ),
            *setting_facts(
                GROUP,
                view,
                # The tiles and the actions show whether the group is paused. Settings that
                # have no effect in this mode are left out: members of a share group own no
                # queues, so nothing limits who may own them; other groups have no leases.
                without=["stopped", *(LIMITS if view.mode == GroupMode.SHARE else SHARE)],
            ),
            Fact(_("Created"), view.created_at_ms, kind="when"),
            Fact(_("Changes"), _("audit log"), f"{page_url('audit')}?name={view.name}"),
            Fact(_("Rebalances"), _("history"), f"{page_url('rebalances')}?q={view.name}"),
        ],
        causes=causes.describe_causes(reasons, group=name, manages=manages),
        away=outages.names_of_nodes(
            queue_lag.queue for queue_lag in offsets if queue_lag.head is None
        ),
        manages=manages,
    )


def _tiles(
    view: GroupView,
    offsets: Sequence[QueueLag],
    rates: Pace,
    group_progress: GroupProgress | None,
    *,
    points: Sequence[Point],
    manages: bool,
) -> list[Fact]:
    # A group that has read everything shows a dash instead of 0 ms.
    oldest = max((queue_lag.lag_ms or 0 for queue_lag in offsets), default=0) or None
    state, tone, progress_text = progress.group_state(group_progress)
    dead_letters = dead_letter_counts.read_group_count(view.id)
    if dead_letters is not None and dead_letters.unseen and tone == "ok":
        # The group reads, but some of its messages failed for good.
        tone = "warn"
    tiles = [
        Fact(_("State"), state, tone=tone, kind="words", note=progress_text),
        Fact(
            _("Handled per second"),
            rates.handled,
            kind="rate",
            note=_("sent: %(sent)s, pulled: %(pulled)s")
            % {"sent": format_rate(rates.sent), "pulled": format_rate(rates.pulled)},
            trend=charts.trend(points, lambda point: point.handled),
        ),
        Fact(
            _("Unread messages"),
            sum(queue_lag.lag or 0 for queue_lag in offsets),
            kind="number",
            trend=charts.trend(points, lambda point: point.lag),
        ),
        Fact(
            _("Oldest unread"),
            oldest,
            kind="lasts",
            tone="warn" if (oldest or 0) > cells.LATE_MS else "",
            trend=charts.trend(points, lambda point: point.lag_ms),
        ),
        *(leases.lease_tiles(offsets) if view.mode == GroupMode.SHARE else []),
        Fact(_("Members"), len(view.members), kind="number"),
    ]
    if dead_letters is not None:
        tile = Fact(
            _("Dead letters"),
            dead_letters.messages,
            page_url("failures", view.name) if manages else "",
            "bad" if dead_letters.unseen else "warn",
            kind="number",
            note=_("the newest: %s") % format_time(dead_letters.newest_at_ms),
        )
        tiles.append(tile)
    return tiles


def _queues_by_topic(
    request: HttpRequest, view: GroupView, offsets: Sequence[QueueLag]
) -> list[TopicQueues]:
    """Return each topic with its queues, their owners and positions.

    The queues of a retry topic are part of their topic.
    """
    subscriptions = {
        subscription.topic: subscription for subscription in view.subscriptions
    }
    heartbeat_ages = {member.name: member.heartbeat_age_ms for member in view.members}
    # Members of a share group own no queues: they lease messages of all of them.
    reader_columns: Columns[QueueLag] = (
        leases.lease_columns()
        if view.mode == GroupMode.SHARE
        else [
            Column(_("Owner"), _owner_cell),
            Column(
                _("Last heartbeat"),
                lambda row: duration(heartbeat_ages.get(row.owner or "")),
                right=True,
            ),
        ]
    )
    # All bars of the page have one scale.
    largest_lag = max(MIN_FULL_BAR, max((queue.lag or 0 for queue in offsets), default=0))
    # groupby() joins neighbours only; group_lag.standing() lists the queues by topic.
    lags_by_topic = {
        topic: list(lags) for topic, lags in groupby(offsets, key=lambda row: row.topic)
    }
    # A retry topic is recognised by its name, which follows from the group and the topic.
    retries = {topic: failure_name(view.name, topic) for topic in lags_by_topic}
    topic_queues = []
    for topic in sorted(lags_by_topic.keys() - set(retries.values())):
        retry_lags = lags_by_topic.get(retries[topic])
        topic_queues.append(
            TopicQueues(
                topic,
                _queues_table(
                    lags_by_topic[topic],
                    subscriptions.get(topic),
                    reader_columns,
                    largest_lag=largest_lag,
                    request=request,
                ),
                subscriptions.get(topic),
                _queues_table(
                    retry_lags,
                    None,
                    reader_columns,
                    largest_lag=largest_lag,
                    request=request,
                )
                if retry_lags
                else None,
                retries[topic],
                sum(queue_lag.lag or 0 for queue_lag in retry_lags or ()),
            )
        )
    return topic_queues


def _queues_table(
    offsets: Sequence[QueueLag],
    subscription: SubscriptionView | None,
    reader_columns: Columns[QueueLag],
    *,
    largest_lag: int,
    request: HttpRequest,
) -> Table:
    paused_queues = set(subscription.stopped_queues) if subscription else set()
    columns: Columns[QueueLag] = [
        Column(
            _("Queue"),
            lambda row: cells.queue(
                row.queue,
                f"{page_url('messages')}?topic={row.topic}&queue={row.queue}"
                f"&offset={row.committed or 0}",
            ),
        ),
        Column(_("Unread"), lambda row: _lag_cell(row, largest_lag)),
        Column(_("Oldest unread"), lambda row: cells.age(row.lag_ms), right=True),
        Column(_("Position"), lambda row: number(row.committed), right=True),
        Column(_("Log end offset"), lambda row: number(row.head), right=True),
        *reader_columns,
        Column(
            _("State"),
            lambda row: (
                cells.state("away" if row.head is None else "stopped")
                if row.head is None or row.queue in paused_queues
                else badge(_("open"))
            ),
        ),
    ]
    # Of many queues, the first page shows the queues that lag most.
    if len(offsets) > ROWS_PER_PAGE:
        offsets = sorted(offsets, key=lambda row: -(row.lag or 0))
    return split_table(
        request, columns, offsets, EmptyHint(_("No queues.")), parameter="queues"
    )


def _lag_cell(queue: QueueLag, largest_lag: int) -> Cell:
    """Return the unread messages of a queue with a bar, whose full width is the largest lag
    of a queue of the group.
    """
    label = _("%(unread)s unread messages; a full bar is %(largest)s") % {
        "unread": format_count(queue.lag),
        "largest": format_count(largest_lag),
    }
    is_late = (queue.lag_ms or 0) > cells.LATE_MS
    return lag(queue.lag, largest=largest_lag, is_late=is_late, label=label)


def _owner_cell(queue: QueueLag) -> Cell:
    if not queue.owner:
        return badge(_("nobody"), "warn" if queue.lag else "")
    return text(f"{queue.owner} ({queue.instance})" if queue.instance else queue.owner)


def _processes_table(request: HttpRequest, view: GroupView) -> Table | None:
    """Return the state that the members' processes report, None if none reports."""
    # Not every client reports its process.
    reporting = [
        (member, member.process) for member in view.members if member.process is not None
    ]
    columns: Columns[tuple[MemberView, ProcessStatus]] = [
        Column(_("Member"), lambda row: text(row[0].name)),
        Column(
            _("Threads at work"),
            lambda row: text(
                _("%(busy)s of %(threads)s")
                % {"busy": row[1].busy, "threads": row[1].threads}
            ),
            right=True,
        ),
        Column(_("Slowest handler"), lambda row: cells.handled_message(row[1].slowest)),
        Column(
            _("Running for"),
            lambda row: (
                duration(None)
                if row[1].slowest is None
                else duration(
                    row[1].slowest.running_ms,
                    "warn" if row[1].slowest.running_ms >= LONG_MS else "",
                )
            ),
            right=True,
        ),
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
