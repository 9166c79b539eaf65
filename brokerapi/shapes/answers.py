"""Management answers: the layers' views as the objects that the API promises (see management)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from messagestore.consume.lag import QueueLag
from messagestore.consume.offset_reset import Move
from messagestore.topology.topics import TopicState
from metadata.brokers.discovery import BrokerView
from metadata.db.paging import Page
from metadata.groups.groups import GroupView, MemberView
from metadata.groups.offset_resets import PastMove
from metadata.groups.subscription_rows import SubscriptionView
from metadata.membership.history import RebalanceView
from metadata.membership.rebalance import Moves
from metadata.monitoring.progress import GroupProgress
from metadata.nodes.node_rows import NodeView
from metadata.rules.groups.delivery import SEPARATOR, Delivery
from metadata.topics.topic_rows import TopicView
from metadata.users.api_keys import KeyView

V = TypeVar("V")
PEOPLE = ("owners", "department", "alarm_emails", "description")
GROUP_SETTINGS = (
    "session_timeout_ms",
    "allow_addresses",
    "deny_addresses",
    "max_active_members",
    "alarm_lag",
    "alarm_lag_s",
    *PEOPLE,
)
RATES = ("max_messages_per_s", "max_bytes_per_s")
SETTINGS = (
    "keyed",
    "on_unknown",
    "retention_days",
    "keep_unread_days",
    "retention_bytes",
    *RATES,
    *PEOPLE,
)


def page(plural: str, found: Page[V], shape: Callable[[V], dict[str, Any]]) -> dict[str, Any]:
    """A page of a list: {"topics": [...], "next": the name to ask after, or null}."""
    return {plural: [shape(item) for item in found.items], "next": found.next}


def topic(state: TopicState) -> dict[str, Any]:
    """A topic with its layout and its queues."""
    queues = [
        {**_some(one.queue, ("queue", "number", "node", "state")), "low": one.low, "head": one.head}
        for one in state.queues
    ]
    layout = {"version": state.topic.layout_version, "slots": state.topic.layout}
    return {**topic_summary(state.topic), "queues": queues, "layout": layout}


def topic_summary(view: TopicView) -> dict[str, Any]:
    """A topic in a list, or after a change: its queues counted."""
    return {**_some(view, ("name", "kind", "state", *SETTINGS, "created_at_ms")), "queues": len(view.queues)}


def group(view: GroupView) -> dict[str, Any]:
    """A group with its subscriptions and members."""
    members = [member(one) for one in view.members]
    return {**group_summary(view), "subscriptions": subscriptions(view.subscriptions), "members": members}


def group_summary(view: GroupView) -> dict[str, Any]:
    """A group in a list."""
    names = ("name", "mode", "stopped", "generation", "rebalancing")
    return _some(view, (*names, *GROUP_SETTINGS, "created_at_ms"))


def member(view: MemberView) -> dict[str, Any]:
    """A consumer that is in a group."""
    names = ("name", "instance_id", "consumer_id_prefix", "address", "sdk", "generation")
    return _some(view, (*names, "joined_at_ms", "heartbeat_age_ms", "queues", "active"))


def subscriptions(views: Iterable[SubscriptionView]) -> list[dict[str, Any]]:
    """Subscriptions in a list."""
    return [subscription(view) for view in views]


def subscription(view: SubscriptionView) -> dict[str, Any]:
    """A topic that a group reads."""
    named = _some(view, ("group", "topic", "state", "start", "stopped", "stopped_queues", "created_at_ms"))
    return named | delivery(view.delivery)


def delivery(settings: Delivery) -> dict[str, Any]:
    """Return the delivery settings of a subscription; the tags as operators write them."""
    return {**asdict(settings), "tags": f" {SEPARATOR} ".join(settings.tags)}


def offsets(group: str, lags: Sequence[QueueLag], found: GroupProgress | None) -> dict[str, Any]:
    """Return a group's offsets, sum of lags and worst age, null while one of them is not known."""
    names = ("topic", "queue", "number", "instance", "committed", "head", "low", "lag", "lag_ms")
    behind = [one.lag for one in lags if one.lag is not None]
    ages = [one.lag_ms for one in lags if one.lag_ms is not None]
    return {
        "group": group,
        "lag": sum(behind) if len(behind) == len(lags) else None,
        "lag_ms": max(ages, default=0) if len(ages) == len(lags) else None,
        "progress": progress(found) if found else None,
        "queues": [_some(one, (*names, "owner", "epoch")) for one in lags],
    }


def progress(found: GroupProgress) -> dict[str, Any]:
    """Return True if a group catches up, and by which figures."""
    said, pace = found.said, found.pace
    return {
        "state": said.state,
        "per_s": said.per_s,
        "catches_up_in_s": said.in_s,
        "sent_per_s": pace.sent,
        "pulled_per_s": pace.pulled,
        "handled_per_s": pace.handled,
        "lag": found.lag,
        "lag_before": found.lag_before,
        "between_s": found.between_s,
    }


def moves(planned: Iterable[Move]) -> list[dict[str, Any]]:
    """Positions that move."""
    return [
        {
            **_some(one, ("topic", "queue", "number", "skipped", "repeated", "asked")),
            "from": one.from_offset,
            "to": one.to_offset,
        }
        for one in planned
    ]


def moved(made: Sequence[Move], *, dry_run: bool) -> dict[str, Any]:
    """Return the offsets that a reset moved, or would move."""
    return {"dry_run": dry_run, "reset": made[0].reset or None if made else None, "moves": moves(made)}


def past_move(view: PastMove) -> dict[str, Any]:
    """A move of the past."""
    names = ("id", "reset", "topic", "queue", "number", "instance", "done", "undoes", "at_ms", "actor")
    return {**_some(view, names), "from": view.from_offset, "to": view.to_offset}


def rebalanced(done: Moves, *, dry_run: bool) -> dict[str, Any]:
    """Return the moves that a rebalance made, or would make."""
    planned = [{**_move(one, one.source, one.target), "at_once": one.at_once} for one in done.moves]
    return {"dry_run": dry_run, "generation": done.generation, "moves": planned}


def rebalance(view: RebalanceView) -> dict[str, Any]:
    """A rebalance of the past."""
    made = [{**_move(one, one.from_member, one.to_member), "pause_ms": one.pause_ms} for one in view.moves]
    return {**_some(view, ("id", "generation", "cause", "at_ms", "assignment")), "moves": made}


def _move(one: object, source: str | None, target: str | None) -> dict[str, Any]:
    return {**_some(one, ("queue", "topic")), "from": source, "to": target}


def node(view: NodeView) -> dict[str, Any]:
    """A node, without passwords."""
    names = ("name", "kind", "engine", "host", "port", "database", "username", "state", "dedicated", "epoch")
    places = ("replica_host", "replica_port", "reader_username")
    more = ("capacity_gb", "disk", "quarantined", "queues", "created_at_ms")
    return _some(view, (*names, *places, *more))


def broker(view: BrokerView) -> dict[str, Any]:
    """A broker of the registry."""
    names = ("name", "url", "state", "alive", "version", "started_at_ms", "last_seen_at_ms", "stopped_at_ms")
    return _some(view, names)


def key(view: KeyView) -> dict[str, Any]:
    """An API key, without its secret."""
    return _some(view, ("name", "rights", *RATES, "created_at_ms"))


def _some(view: object, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(view, name) for name in names}
