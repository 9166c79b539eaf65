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
from metadata.listing.pages import ListQuery
from metadata.listing.topic_lists import SubscriptionRow, TopicRow
from metadata.monitoring import metrics_history
from metadata.rules.settings import TOPIC
from metadata.topics import producers, topic_rows
from metadata.topics.producers import ProducerView
from metadata.topics.topic_rows import TopicView
from portal.auth.access import actor, may
from portal.kit import charts, outages, pages, places, rows
from portal.kit.pages import Fact, Link, to
from portal.kit.setting_fields import facts
from portal.kit.tables import (
    Cell,
    Column,
    Columns,
    Empty,
    Table,
    code,
    listed,
    number,
    part,
    plain,
    share,
    spark,
    text,
    wanted,
    when,
)

MOST_GROUPS = 200


def topics_list(request: HttpRequest) -> HttpResponse:
    kind = request.GET.get("kind", "")
    kind = kind if kind in ("internal", "failure") else "normal"
    found = topic_lists.topics(query=wanted(request), kind=kind, actor=actor(request))
    columns: Columns[TopicRow] = [
        Column(_("Topic"), lambda one: rows.topic(one.name), "name"),
        Column(_("State"), lambda one: rows.state(one.state)),
        Column(_("Maximum unread"), lambda one: number(one.lag), "lag", right=True),
        Column(_("Oldest unread"), lambda one: rows.age(one.lag_ms), "age", right=True),
        Column(_("Sent, last 30 min"), lambda one: spark(one.minutes)),
        Column(_("Queues"), lambda one: number(one.queues), right=True),
        Column(_("Size"), lambda one: Cell(one.bytes, "size"), right=True),
        Column(_("Groups"), lambda one: number(one.groups), right=True),
        Column(
            _("Retention, days"), lambda one: number(one.retention_days), "days", right=True
        ),
        Column(_("Owners"), lambda one: text(one.owners or None)),
    ]
    hint = Empty(
        _("No matching topics. To create one:"),
        "catmq topic create orders --queues 4",
        to("topic-create"),
        _("Create a topic"),
    )
    actions = [
        Link(_("Create a topic"), to("topic-create")),
        Link(_("Export"), to("export")),
        Link(_("Import"), to("import")),
    ]
    table = listed(request, columns, found, empty=hint)
    filters = _kinds(kind, topic_lists.count_by_kind(actor=actor(request)))
    return pages.list_page(
        request, _("Topics"), table, section="topics", actions=actions, filters=filters
    )


def _kinds(chosen: str, counts: Mapping[str, int]) -> list[Link]:
    """Return the tabs of the list: what it leaves out is counted beside the tab that shows
    it.
    """
    internal, retry = counts["internal"], counts["failure"]
    links = {
        "normal": Link(_("Topics"), to("topics")),
        "internal": Link(
            _("Internal topics"), f"{to('topics')}?kind=internal", count=internal
        ),
        "failure": Link(_("Retry topics"), f"{to('topics')}?kind=failure", count=retry),
    }
    if not internal and chosen != "internal":
        del links["internal"]
    return [
        replace(link, tone="on" if kind == chosen else "") for kind, link in links.items()
    ]


def topic(request: HttpRequest, name: str) -> HttpResponse:
    view = topic_rows.find_topic(name=name, actor=actor(request))
    queues = drains.describe(topic=name, actor=actor(request))
    every = ListQuery(rows=MOST_GROUPS)
    groups = topic_lists.subscriptions(query=every, actor=actor(request), topic=name).items
    span = charts.span(request, topic_id=view.id)
    points = metrics_history.read_points(for_s=span.for_s, topic_id=view.id)
    marks = chart_marks.list_marks(for_s=span.for_s, topic=name, actor=actor(request))
    manages = may(request, "manage", name)
    return pages.show(
        request,
        "topics/topic",
        name,
        **places.of_topic(name, "topic"),
        live=True,
        actions=_actions(name) if manages else [],
        tiles=_tiles(view, queues, metrics_history.read_pace(topic_id=view.id).sent),
        rates=charts.rates(points, marks),
        lags=charts.lags(points, marks),
        spans=charts.spans(span),
        queues=_queues(request, name, queues, manages),
        groups=_groups(groups, name),
        producers=_producers(
            producers.list_producers(topic=name, actor=actor(request)), name
        ),
        facts=_facts(view),
        away=outages.of_topic(queues),
    )


def _messages(name: str) -> str:
    return f"{to('messages')}?topic={name}"


def _actions(name: str) -> list[Link]:
    return [
        Link(_("Send"), to("send", name), "primary"),
        Link(_("Settings"), to("topic-settings", name)),
        Link(_("Send tokens"), to("topic-tokens", name)),
        Link(_("Expand"), to("topic-expand", name)),
        Link(_("Shrink"), to("topic-shrink", name)),
        Link(_("Clean now"), to("topic-clean", name)),
        Link(_("Delete"), to("topic-delete", name), "danger"),
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
    where = f"{to('messages')}?topic={name}&queue="
    columns: list[Column[QueueDrain]] = [
        Column(
            _("Queue"), lambda one: rows.queue(one.queue.queue, f"{where}{one.queue.queue}")
        ),
        Column(_("State"), _state),
        Column(_("Node"), lambda one: text(one.queue.node)),
        Column(_("Share of keys"), lambda one: share(one.slots / 1024), right=True),
        Column(_("Log start offset"), lambda one: number(one.low), right=True),
        Column(_("Log end offset"), lambda one: number(one.head), right=True),
        Column(_("Size"), lambda one: Cell(one.queue.bytes, "size"), right=True),
        Column(_("Unread by"), _unread),
        Column(_("ID"), lambda one: code(one.queue.queue)),
    ]
    if manages:
        columns.append(Column(_("Change"), lambda one: _change(name, one)))
    return part(request, columns, queues, Empty(_("No queues yet.")), word="queues")


def _state(one: QueueDrain) -> Cell:
    return rows.state(
        "away" if one.head is None else "draining" if one.draining else one.queue.state
    )


def _unread(one: QueueDrain) -> Cell:
    unread = [f"{group.group}: {group.messages}" for group in one.unread if group.messages]
    return text(", ".join(unread) or _("nobody"))


def _change(name: str, one: QueueDrain) -> Cell:
    where = to("queue-state", name, one.queue.queue)
    if one.queue.state == "read_write":
        return text(_("close"), where)
    if one.queue.state == "read_only" and not one.draining:
        return text(_("open"), where)
    return text(None)


def _groups(found: Sequence[SubscriptionRow], name: str) -> Table:
    columns: Columns[SubscriptionRow] = [
        Column(_("Group"), lambda one: rows.group(one.group)),
        Column(_("State"), rows.subscription),
        Column(_("Unread"), lambda one: number(one.lag), right=True),
        Column(_("Oldest unread"), lambda one: rows.age(one.lag_ms), right=True),
        Column(_("Since"), lambda one: when(one.created_at_ms)),
    ]
    hint = Empty(
        _("No group subscribes to this topic. Subscribe one:"),
        f"catmq subscribe GROUP {name}",
    )
    return plain(columns, found, hint)


def _producers(found: Sequence[ProducerView], name: str) -> Table:
    columns: Columns[ProducerView] = [
        Column(_("Producer"), lambda one: text(one.name)),
        Column(_("Address"), lambda one: code(one.address or None)),
        Column(_("Client"), lambda one: text(one.sdk or None)),
        Column(
            _("Messages, last hour"), lambda one: number(one.messages_last_hour), right=True
        ),
        Column(_("Last message"), lambda one: when(one.last_seen_at_ms)),
        Column(_("First message"), lambda one: when(one.first_seen_at_ms)),
    ]
    hint = Empty(
        _("Nobody has sent to this topic in the last seven days."),
        f"catmq send {name} 'hello'",
    )
    return plain(columns, found, hint)


def _facts(view: TopicView) -> list[Any]:
    state = rows.state(view.state)
    return [
        Fact(_("State"), state.value, kind="badge", tone=state.tone),
        Fact(_("Kind"), rows.state(view.kind).value),
        *facts(TOPIC, view),
        Fact(_("Layout version"), view.layout_version),
        Fact(_("Created"), view.created_at_ms, kind="when"),
        Fact(_("Changes"), _("audit log"), f"{to('audit')}?name={view.name}"),
    ]
