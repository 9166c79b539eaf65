"""Pages of topics: the list, and a topic with its queues, groups and settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from messagestore.topology import drains, key_indexes
from messagestore.topology.drains import QueueDrain
from metadata.listing import chart_marks, topic_lists
from metadata.listing.internal_topics import (
    InternalTopic,
    InternalTopics,
    find_internal_topics,
)
from metadata.listing.pages import ListQuery
from metadata.listing.topic_lists import SubscriptionRow, TopicRow
from metadata.monitoring import metrics_history
from metadata.rules.rights import Right
from metadata.rules.settings import TOPIC
from metadata.rules.topics.states import QueueState, TopicKind
from metadata.topics import producers, topic_rows
from metadata.topics.producers import ProducerView
from portal.auth.access import actor, may
from portal.kit import cells, charts, navigation, outages, pages
from portal.kit.pages import Fact, Link, page_url
from portal.kit.setting_fields import setting_facts
from portal.kit.tables import (
    Cell,
    Column,
    Columns,
    EmptyHint,
    code,
    code_with_fold,
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
from portal.templatetags.formats import format_count

# Subscribed groups on the page of a topic.
MAX_GROUPS = 200


def topics_list(request: HttpRequest) -> HttpResponse:
    kind = request.GET.get("kind", "")
    # An unknown kind in the URL shows the normal topics.
    kind = kind if kind in ("internal", TopicKind.FAILURE) else TopicKind.NORMAL
    query = parse_list_query(request)
    topics = topic_lists.topics(query=query, kind=kind, actor=actor(request))
    # A search and the other kinds list internal topics as rows of their own.
    is_folded = kind == TopicKind.NORMAL and not query.search
    internal = (
        find_internal_topics(
            topics={row.name for row in topics.items}, actor=actor(request)
        )
        if is_folded
        else InternalTopics()
    )
    # Sent messages are counted by the minute, so the small chart needs no query per topic.
    columns: Columns[TopicRow] = [
        Column(
            _("Topic"),
            lambda row: _topic_cell(row.name, internal.of_topics.get(row.name, ())),
            "name",
        ),
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
    table = list_table(request, columns, topics, empty=hint)
    counts = topic_lists.count_by_kind(actor=actor(request))
    # The list leaves out internal and retry topics: their numbers stand on their tabs.
    links = {
        TopicKind.NORMAL: Link(_("Topics"), page_url("topics")),
        "internal": Link(
            _("Internal topics"),
            f"{page_url('topics')}?kind=internal",
            count=counts["internal"],
        ),
        TopicKind.FAILURE: Link(
            _("Retry topics"),
            f"{page_url('topics')}?kind=failure",
            count=counts[TopicKind.FAILURE],
        ),
    }
    # Most installations have no internal topics, so they need no tab.
    if not counts["internal"] and kind != "internal":
        del links["internal"]
    filters = [
        replace(link, tone="on" if key == kind else "") for key, link in links.items()
    ]
    folded_rows = [
        (
            _("Topics of Celery in the virtual host %(host)s: %(count)d")
            % {"host": host, "count": len(belonging)},
            _internal_links(belonging),
        )
        for host, belonging in internal.of_hosts.items()
    ]
    return pages.render_list(
        request,
        _("Topics"),
        table,
        section="topics",
        actions=actions,
        filters=filters,
        folded_rows=folded_rows,
    )


def _topic_cell(name: str, belonging: Sequence[InternalTopic]) -> Cell:
    """Return the name of a topic, with the internal topics that belong to it folded below."""
    summary = ngettext("%d internal topic", "%d internal topics", len(belonging))
    return code_with_fold(
        name,
        page_url("topic", name),
        summary % len(belonging),
        _internal_links(belonging),
    )


def _internal_links(topics: Sequence[InternalTopic]) -> list[Link]:
    """Return a link to each internal topic, with its purpose and its unread messages."""
    links = []
    for topic in topics:
        notes = [_("retries of %s") % topic.group] if topic.group else []
        if topic.lag:
            notes.append(_("unread: %s") % format_count(topic.lag))
        links.append(Link(topic.name, page_url("topic", topic.name), note=", ".join(notes)))
    return links


def topic(request: HttpRequest, name: str) -> HttpResponse:
    view = topic_rows.find_topic(name=name, actor=actor(request))
    # Nodes that do not answer leave dashes: their names are shown above the page.
    queues = drains.describe(topic=name, actor=actor(request))
    # The page shows all groups at once, without paging.
    all_groups = ListQuery(rows=MAX_GROUPS)
    groups = topic_lists.subscriptions(
        query=all_groups, actor=actor(request), topic=name
    ).items
    span, points = charts.read_series(request, topic_id=view.id)
    marks = chart_marks.list_marks(for_s=span.length_s, topic=name, actor=actor(request))
    key_index = key_indexes.describe(topic=name, actor=actor(request))
    manages = may(request, Right.MANAGE, name)
    actions = [
        Link(_("Send"), page_url("send", name), "primary"),
        Link(_("Settings"), page_url("topic-settings", name)),
        Link(_("Send tokens"), page_url("topic-tokens", name)),
        Link(_("Expand"), page_url("topic-expand", name)),
        Link(_("Shrink"), page_url("topic-shrink", name)),
        Link(_("Clean now"), page_url("topic-clean", name)),
        Link(_("Delete"), page_url("topic-delete", name), "danger"),
    ]
    state_badge = cells.state(view.state)
    group_columns: Columns[SubscriptionRow] = [
        Column(_("Group"), lambda row: cells.group(row.group)),
        Column(_("State"), cells.subscription_state),
        Column(_("Unread"), lambda row: number(row.lag), right=True),
        Column(_("Oldest unread"), lambda row: cells.age(row.lag_ms), right=True),
        Column(_("Since"), lambda row: timestamp(row.created_at_ms)),
    ]
    no_groups = EmptyHint(
        _("No group subscribes to this topic. Subscribe one:"),
        f"catmq subscribe GROUP {name}",
    )
    producer_columns: Columns[ProducerView] = [
        Column(_("Producer"), lambda row: text(row.name)),
        Column(_("Address"), lambda row: code(row.address or None)),
        Column(_("Client"), lambda row: text(row.sdk or None)),
        Column(
            _("Messages, last hour"), lambda row: number(row.messages_last_hour), right=True
        ),
        Column(_("Last message"), lambda row: timestamp(row.last_seen_at_ms)),
        Column(_("First message"), lambda row: timestamp(row.first_seen_at_ms)),
    ]
    no_producers = EmptyHint(
        _("Nobody has sent to this topic in the last seven days."),
        f"catmq send {name} 'hello'",
    )
    # Queues on silent nodes have no figures.
    reported = [state for state in queues if state.head is not None]
    # Sizes are measured by a job, so a new topic has none for up to an hour.
    sizes = [state.queue.bytes for state in queues if state.queue.bytes is not None]
    messages_url = f"{page_url('messages')}?topic={name}&queue="
    columns: list[Column[QueueDrain]] = [
        Column(
            _("Queue"),
            lambda row: cells.queue(row.queue.queue, f"{messages_url}{row.queue.queue}"),
        ),
        Column(
            _("State"),
            lambda row: cells.state(
                "away"
                if row.head is None
                else "draining"
                if row.draining
                else row.queue.state
            ),
        ),
        Column(_("Node"), lambda row: text(row.queue.node)),
        Column(_("Share of keys"), lambda row: share(row.slots / 1024), right=True),
        Column(_("Log start offset"), lambda row: number(row.low), right=True),
        Column(_("Log end offset"), lambda row: number(row.head), right=True),
        Column(_("Size"), lambda row: Cell(row.queue.bytes, "size"), right=True),
        Column(
            _("Unread by"),
            lambda row: text(
                ", ".join(
                    f"{lag.group}: {lag.messages}" for lag in row.unread if lag.messages
                )
                or _("nobody")
            ),
        ),
        Column(_("ID"), lambda row: text(str(row.queue.queue)), right=True),
    ]
    if manages:
        columns.append(Column(_("Change"), lambda row: _queue_action(name, row)))
    return pages.render_page(
        request,
        "topics/topic",
        name,
        **navigation.for_topic(name, "topic"),
        live=True,
        actions=actions if manages else [],
        tiles=[
            Fact(
                _("Sent per second"),
                metrics_history.read_pace(topic_id=view.id).sent,
                kind="rate",
                trend=charts.trend(points, lambda point: point.sent),
            ),
            Fact(
                _("Total sent"), sum(state.head or 0 for state in reported), kind="number"
            ),
            Fact(
                _("Kept"),
                sum((state.head or 0) - (state.low or 0) for state in reported),
                f"{page_url('messages')}?topic={view.name}",
                kind="number",
            ),
            Fact(
                _("Size"),
                sum(sizes) if sizes else None,
                kind="size",
                note=_("measured every hour"),
            ),
            Fact(
                _("Queues"),
                sum(state.queue.state != QueueState.RETIRED for state in queues),
                kind="number",
            ),
            Fact(_("Retention, days"), view.retention_days, kind="number"),
        ],
        rates=charts.rate_chart(points, marks),
        lags=charts.lag_chart(points, marks),
        spans=charts.span_links(span),
        queues=split_table(
            request, columns, queues, EmptyHint(_("No queues yet.")), parameter="queues"
        ),
        groups=simple_table(group_columns, groups, no_groups),
        producers=simple_table(
            producer_columns,
            producers.list_producers(topic=name, actor=actor(request)),
            no_producers,
        ),
        facts=[
            Fact(_("State"), state_badge.value, kind="badge", tone=state_badge.tone),
            Fact(_("Kind"), cells.state(view.kind).value),
            *setting_facts(TOPIC, view),
            Fact(
                _("Queues with a key index"),
                _("%(indexed)d of %(all)d")
                % {"indexed": key_index.ready_count, "all": len(key_index.queues)},
            ),
            Fact(_("Layout version"), view.layout_version),
            Fact(_("Created"), view.created_at_ms, kind="when"),
            Fact(_("Changes"), _("audit log"), f"{page_url('audit')}?name={view.name}"),
        ],
        away=outages.silent_nodes_of_topic(queues),
    )


def _queue_action(name: str, state: QueueDrain) -> Cell:
    url = page_url("queue-state", name, state.queue.queue)
    if state.queue.state == QueueState.READ_WRITE:
        return text(_("close"), url)
    if state.queue.state == QueueState.READ_ONLY and not state.draining:
        return text(_("open"), url)
    return text(None)
