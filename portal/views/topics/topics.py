"""Topics: the list, and one topic with its queues, groups and settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from messagestore.topology import drains
from messagestore.topology.drains import QueueDrain
from metadata.listing import chart_marks, topic_lists
from metadata.listing.pages import Wanted
from metadata.listing.topic_lists import SubscriptionRow, TopicRow
from metadata.monitoring import metrics_history
from metadata.rules.settings import TOPIC
from metadata.topics import producers, topic_rows
from metadata.topics.producers import ProducerView
from metadata.topics.topic_rows import TopicView
from portal.auth.access import actor, may
from portal.kit import cells, charts, navigation, outages, pages
from portal.kit.pages import Fact, Link, page_url
from portal.kit.setting_fields import setting_facts
from portal.kit.tables import (
    Cell,
    Column,
    Columns,
    EmptyHint,
    Table,
    code,
    list_table,
    number,
    parse_list_query,
    share,
    simple_table,
    spark,
    split_table,
    text,
    timestamp,
)

MAX_GROUPS = 200


def topics_list(request: HttpRequest) -> HttpResponse:
    kind = request.GET.get("kind", "")
    kind = kind if kind in ("internal", "failure") else "normal"
    found = topic_lists.topics(
        wanted=parse_list_query(request), kind=kind, actor=actor(request)
    )
    columns: Columns[TopicRow] = [
        Column(_("Topic"), lambda row: cells.topic(row.name), "name"),
        Column(_("State"), lambda row: cells.state(row.state)),
        Column(_("Maximum unread"), lambda row: number(row.lag), "lag", right=True),
        Column(_("Oldest unread"), lambda row: cells.age(row.lag_ms), "age", right=True),
        Column(_("Sent, last 30 min"), lambda row: spark(row.minutes)),
        Column(_("Queues"), lambda row: number(row.queues), right=True),
        Column(_("Size"), lambda row: Cell(row.bytes, "size"), right=True),
        Column(_("Groups"), lambda row: number(row.groups), right=True),
        Column(
            _("Retention, days"), lambda row: number(row.retention_days), "days", right=True
        ),
        Column(_("Owners"), lambda row: text(row.owners or None)),
    ]
    hint = EmptyHint(
        _("No matching topics. To create one:"),
        "catmq topic create orders --queues 4",
        page_url("topic-create"),
        _("Create a topic"),
    )
    actions = [
        Link(_("Create a topic"), page_url("topic-create")),
        Link(_("Export"), page_url("export")),
        Link(_("Import"), page_url("import")),
    ]
    table = list_table(request, columns, found, empty=hint)
    filters = _kinds(kind, topic_lists.count_by_kind(actor=actor(request)))
    return pages.render_list(
        request, _("Topics"), table, section="topics", actions=actions, filters=filters
    )


def _kinds(chosen: str, counts: Mapping[str, int]) -> list[Link]:
    """Return the tabs of the list: what it leaves out is counted beside the tab that shows
    it.
    """
    internal, retry = counts["internal"], counts["failure"]
    links = {
        "normal": Link(_("Topics"), page_url("topics")),
        "internal": Link(
            _("Internal topics"), f"{page_url('topics')}?kind=internal", count=internal
        ),
        "failure": Link(
            _("Retry topics"), f"{page_url('topics')}?kind=failure", count=retry
        ),
    }
    if not internal and chosen != "internal":
        del links["internal"]
    return [
        replace(link, tone="on" if kind == chosen else "") for kind, link in links.items()
    ]


def topic(request: HttpRequest, name: str) -> HttpResponse:
    view = topic_rows.named(name=name, actor=actor(request))
    queues = drains.describe(topic=name, actor=actor(request))
    every = Wanted(rows=MAX_GROUPS)
    groups = topic_lists.subscriptions(wanted=every, actor=actor(request), topic=name).items
    span = charts.chosen_span(request, topic_id=view.id)
    points = metrics_history.points(for_s=span.length_s, topic_id=view.id)
    marks = chart_marks.marks(for_s=span.length_s, topic=name, actor=actor(request))
    manages = may(request, "manage", name)
    return pages.render_page(
        request,
        "topics/topic",
        name,
        **navigation.for_topic(name, "topic"),
        live=True,
        actions=_actions(name) if manages else [],
        tiles=_tiles(view, queues, metrics_history.pace(topic_id=view.id).sent),
        rates=charts.rate_chart(points, marks),
        lags=charts.lag_chart(points, marks),
        spans=charts.span_links(span),
        queues=_queues(request, name, queues, manages),
        groups=_groups(groups, name),
        producers=_producers(producers.of_topic(topic=name, actor=actor(request)), name),
        facts=_facts(view),
        away=outages.silent_nodes_of_topic(queues),
    )


def _messages(name: str) -> str:
    return f"{page_url('messages')}?topic={name}"


def _actions(name: str) -> list[Link]:
    return [
        Link(_("Send"), page_url("send", name), "primary"),
        Link(_("Settings"), page_url("topic-settings", name)),
        Link(_("Send tokens"), page_url("topic-tokens", name)),
        Link(_("Expand"), page_url("topic-expand", name)),
        Link(_("Shrink"), page_url("topic-shrink", name)),
        Link(_("Clean now"), page_url("topic-clean", name)),
        Link(_("Delete"), page_url("topic-delete", name), "danger"),
    ]


def _tiles(view: TopicView, queues: Sequence[QueueDrain], sent: float) -> list[Fact]:
    known = [one for one in queues if one.head is not None]
    return [
        Fact(_("Sent per second"), sent, kind="rate"),
        Fact(_("Total sent"), sum(one.head or 0 for one in known), kind="number"),
        Fact(
            _("Kept"),
            sum((one.head or 0) - (one.low or 0) for one in known),
            _messages(view.name),
            kind="number",
        ),
        Fact(_("Size"), _size(queues), kind="size", note=_("measured every hour")),
        Fact(
            _("Queues"), sum(one.queue.state != "retired" for one in queues), kind="number"
        ),
        Fact(_("Retention, days"), view.retention_days, kind="number"),
    ]


def _size(queues: Sequence[QueueDrain]) -> int | None:
    known = [one.queue.bytes for one in queues if one.queue.bytes is not None]
    return sum(known) if known else None


def _queues(
    request: HttpRequest, name: str, queues: Sequence[QueueDrain], manages: bool
) -> Table:
    where = f"{page_url('messages')}?topic={name}&queue="
    columns: list[Column[QueueDrain]] = [
        Column(
            _("Queue"),
            lambda row: cells.queue(row.queue.queue, f"{where}{row.queue.queue}"),
        ),
        Column(_("State"), _state),
        Column(_("Node"), lambda row: text(row.queue.node)),
        Column(_("Share of keys"), lambda row: share(row.slots / 1024), right=True),
        Column(_("Log start offset"), lambda row: number(row.low), right=True),
        Column(_("Log end offset"), lambda row: number(row.head), right=True),
        Column(_("Size"), lambda row: Cell(row.queue.bytes, "size"), right=True),
        Column(_("Unread by"), _unread),
        Column(_("ID"), lambda row: code(row.queue.queue)),
    ]
    if manages:
        columns.append(Column(_("Change"), lambda row: _change(name, row)))
    return split_table(
        request, columns, queues, EmptyHint(_("No queues yet.")), parameter="queues"
    )


def _state(one: QueueDrain) -> Cell:
    return cells.state(
        "away" if one.head is None else "draining" if one.draining else one.queue.state
    )


def _unread(one: QueueDrain) -> Cell:
    unread = [f"{group.group}: {group.messages}" for group in one.unread if group.messages]
    return text(", ".join(unread) or _("nobody"))


def _change(name: str, one: QueueDrain) -> Cell:
    where = page_url("queue-state", name, one.queue.queue)
    if one.queue.state == "read_write":
        return text(_("close"), where)
    if one.queue.state == "read_only" and not one.draining:
        return text(_("open"), where)
    return text(None)


def _groups(found: Sequence[SubscriptionRow], name: str) -> Table:
    columns: Columns[SubscriptionRow] = [
        Column(_("Group"), lambda row: cells.group(row.group)),
        Column(_("State"), cells.subscription_state),
        Column(_("Unread"), lambda row: number(row.lag), right=True),
        Column(_("Oldest unread"), lambda row: cells.age(row.lag_ms), right=True),
        Column(_("Since"), lambda row: timestamp(row.created_at_ms)),
    ]
    hint = EmptyHint(
        _("No group subscribes to this topic. Subscribe one:"),
        f"catmq subscribe GROUP {name}",
    )
    return simple_table(columns, found, hint)


def _producers(found: Sequence[ProducerView], name: str) -> Table:
    columns: Columns[ProducerView] = [
        Column(_("Producer"), lambda row: text(row.name)),
        Column(_("Address"), lambda row: code(row.address or None)),
        Column(_("Client"), lambda row: text(row.sdk or None)),
        Column(
            _("Messages, last hour"), lambda row: number(row.messages_last_hour), right=True
        ),
        Column(_("Last message"), lambda row: timestamp(row.last_seen_at_ms)),
        Column(_("First message"), lambda row: timestamp(row.first_seen_at_ms)),
    ]
    hint = EmptyHint(
        _("Nobody has sent to this topic in the last seven days."),
        f"catmq send {name} 'hello'",
    )
    return simple_table(columns, found, hint)


def _facts(view: TopicView) -> list[Any]:
    state = cells.state(view.state)
    return [
        Fact(_("State"), state.value, kind="badge", tone=state.tone),
        Fact(_("Kind"), cells.state(view.kind).value),
        *setting_facts(TOPIC, view),
        Fact(_("Layout version"), view.layout_version),
        Fact(_("Created"), view.created_at_ms, kind="when"),
        Fact(_("Changes"), _("audit log"), f"{page_url('audit')}?name={view.name}"),
    ]
