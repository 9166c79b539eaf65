"""The management endpoints as typed calls: topics, groups, positions, nodes, brokers, looking at messages.

    admin = Admin(HttpTransport("http://127.0.0.1:8000", api_key=...))
    admin.create_topic("orders", queues=4)

Answers are the API's own objects, as dicts; TypedDicts, here and in `*_shapes`, name what is in them. An
answer may hold more than its type says: newer brokers add fields. Every call raises what `Transport.request`
raises.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal, TypedDict, cast

from catmq_client.admin.dead_letters import DeadLetters
from catmq_client.admin.group_shapes import Group, GroupLag, Moves, Plan, Rebalance, Start, Subscription
from catmq_client.admin.plan_shapes import ReadPlan
from catmq_client.admin.queue_shapes import LayoutChange, QueueRow, QueueState, TagMatches
from catmq_client.errors import OptionError
from catmq_client.http import wire
from catmq_client.http.transport import Transport, api_path

PAGE = 1000  # rows a request; the API's limit
# Up to 210 characters: failure topics have longer names than users may give.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,209}", re.ASCII)
NAME_RULE = "use letters, digits, '.', '_', '-', the first a letter or digit"
BROKER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,209}", re.ASCII)  # by default host:port
BROKER_RULE = NAME_RULE.replace("'-',", "'-', ':',")


class TopicRow(TypedDict):
    """A topic in a list."""

    name: str
    kind: str
    state: str
    queues: int
    keyed: str
    retention_days: int
    created_at_ms: int


class Layout(TypedDict):
    """Queue of each of the 1,024 key slots."""

    version: int
    slots: list[int]


class Topic(TypedDict):
    """A topic with its queues."""

    name: str
    kind: str
    state: str
    queues: list[QueueRow]
    layout: Layout
    keyed: str
    on_unknown: str
    retention_days: int
    keep_unread_days: int
    retention_bytes: int | None
    max_messages_per_s: int | None
    max_bytes_per_s: int | None
    owners: str
    department: str
    alarm_emails: str
    remark: str
    created_at_ms: int


class DelayedPage(TypedDict):
    """Messages that wait (message_id, due_at_ms, queue, key, body_bytes, …) and how many there are; nodes
    that are `away` are not counted."""

    messages: list[dict[str, Any]]
    next: str | None
    count: int
    away: list[str]


class Broker(TypedDict):
    """A broker. `alive`: heard of within 10 s, and it did not say that it stops."""

    name: str
    url: str
    state: Literal["in", "out"]
    alive: bool
    version: str
    started_at_ms: int
    last_seen_at_ms: int
    stopped_at_ms: int | None


class Node(TypedDict):
    """A database that holds message tables. Passwords are never answered."""

    name: str
    kind: str
    engine: str
    host: str | None
    port: int | None
    database: str
    state: str
    special: bool
    epoch: int
    queues: int


class FoundMessages(TypedDict):
    """Messages found by one search, each with `body_bytes`; `scanned` messages were looked at for it."""

    messages: list[dict[str, Any]]
    scanned: int
    next: str | None


class Key(TypedDict):
    """An API key, without its secret; what it may send in a second (None: any number)."""

    name: str
    rights: dict[str, list[str]]
    max_messages_per_s: int | None
    max_bytes_per_s: int | None
    created_at_ms: int


class Admin:
    """Calls of the management API over a transport. None is repeated: a failure goes to who asked."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.dead = DeadLetters(transport)

    def topics(self, *, search: str | None = None) -> Iterator[TopicRow]:
        """All topics by name, or those whose name contains `search`."""
        for row in self._pages("topics", search):
            yield cast(TopicRow, row)

    def topic(self, name: str) -> Topic:
        """One topic with its queues."""
        return cast(Topic, self._call("GET", path_of("topics", topic=name)))

    def create_topic(self, name: str, *, queues: int = 4, **settings: object) -> Topic:
        """Creates a topic. Settings: node, retention_days, keep_unread_days, keyed, on_unknown, …"""
        body = {"name": name, "queues": queues, **given(settings)}
        return cast(Topic, self._call("POST", "/api/v1/topics", body=body))

    def change_topic(self, name: str, **settings: object) -> TopicRow:
        """Changes retention_days, keep_unread_days, retention_bytes (None: no limit), keyed, on_unknown, …"""
        return cast(TopicRow, self._call("PATCH", path_of("topics", topic=name), body=settings))

    def expand_topic(
        self, name: str, *, queues: int, node: str | None = None, dry_run: bool = False
    ) -> LayoutChange:
        """Gives a topic so many more queues, on `node` or spread."""
        body = {"queues": queues, "dry_run": dry_run, **given({"node": node})}
        return cast(LayoutChange, self._call("POST", path_of("topics", topic=name) + "/expand", body=body))

    def shrink_topic(
        self, name: str, *, queues: list[int] | None = None, count: int | None = None, dry_run: bool = False
    ) -> LayoutChange:
        """Closes queues, given by id or how many; they are read to their end and retired then."""
        body = {"dry_run": dry_run, **given({"queues": queues, "count": count})}
        return cast(LayoutChange, self._call("POST", path_of("topics", topic=name) + "/shrink", body=body))

    def queues(self, topic: str) -> list[QueueState]:
        """The queues of a topic, and what is unread in them."""
        return cast(list[QueueState], self._call("GET", path_of("topics", topic=topic) + "/queues")["queues"])

    def queue(self, topic: str, queue: int) -> QueueState:
        """One queue of a topic, and what is unread in it."""
        return cast(QueueState, self._call("GET", path_of("topics", topic=topic) + f"/queues/{queue}"))

    def change_queue(
        self, topic: str, queue: int, *, state: Literal["read_only", "read_write"]
    ) -> QueueState:
        """Closes a queue for sends, or opens it; the last open one of a topic stays open."""
        path = path_of("topics", topic=topic) + f"/queues/{queue}"
        return cast(QueueState, self._call("PATCH", path, body={"state": state}))

    def delete_topic(self, name: str) -> None:
        """Deletes a topic; refused while groups subscribe to it. Its tables are dropped after 3 days."""
        self._call("DELETE", path_of("topics", topic=name), params={"confirm": name})

    def messages(self, topic: str, *, queue: int, offset: int, limit: int) -> list[dict[str, Any]]:
        """Up to `limit` (≤ 1,000) messages of one queue from an offset on; each with `body_bytes`."""
        params = {"queue": queue, "offset": offset, "limit": limit}
        answer = self._call("GET", path_of("topics", topic=topic) + "/messages", params=params)
        return [{**message, "body_bytes": wire.body_of(message)} for message in answer["messages"]]

    def delayed(self, topic: str, *, after: str | None = None, limit: int = 100) -> DelayedPage:
        """A page of the messages that wait for their time, by id; `next` is the `after` of the one behind."""
        params = {"limit": limit, **given({"after": after})}
        answer = self._call("GET", path_of("topics", topic=topic) + "/delayed", params=params)
        messages = [{**message, "body_bytes": wire.body_of(message)} for message in answer["messages"]]
        return cast(DelayedPage, {**answer, "messages": messages})

    def recall(self, message_id: str) -> None:
        """Takes back a delayed message; 409 `already_delivered` when it is in its queue."""
        self._call("DELETE", api_path("messages", message_id))

    def tag_matches(self, topic: str, tags: str) -> TagMatches:
        """Count how many of a topic's last 1,000 messages the filter `tags`, as "new || paid", would take."""
        path = path_of("topics", topic=topic) + "/tag-matches"
        return cast(TagMatches, self._call("GET", path, params={"tags": tags}))

    def read_plan(self, topic: str) -> ReadPlan:
        """Tables and ranges for a job that reads a topic straight from its nodes; needs the right admin."""
        return cast(ReadPlan, self._call("GET", path_of("topics", topic=topic) + "/read-plan"))

    def find(self, topic: str, *, after: str | None = None, **wanted: object) -> FoundMessages:
        """One look through a topic, of 2 s at most; go on with its `next` as `after` until that is None.

        `wanted`, all of which must hold: key, tag, trace_id, header ("name:value"), contains (text of the
        body), from_ms and to_ms (stored at or after, and before), queue; `limit` (≤ 1,000) messages.
        """
        params = given({**wanted, "after": after})
        answer = self._call("GET", path_of("topics", topic=topic) + "/messages", params=params)
        found = [{**message, "body_bytes": wire.body_of(message)} for message in answer["messages"]]
        return {"messages": found, "scanned": answer["scanned"], "next": answer["next"]}

    def groups(self, *, search: str | None = None) -> Iterator[Group]:
        """All groups by name, or those whose name contains `search`."""
        for row in self._pages("groups", search):
            yield cast(Group, row)

    def group(self, name: str) -> Group:
        """One group with its subscriptions and members."""
        return cast(Group, self._call("GET", path_of("groups", group=name)))

    def create_group(self, name: str, **settings: object) -> Group:
        """Creates a group. Settings: mode (clustering or broadcasting), session_timeout_ms, owners, …"""
        return cast(Group, self._call("POST", "/api/v1/groups", body={"name": name, **given(settings)}))

    def change_group(self, name: str, **settings: object) -> Group:
        """Changes stopped, session_timeout_ms, allow_addresses, max_active_members (None: all), owners, …"""
        return cast(Group, self._call("PATCH", path_of("groups", group=name), body=settings))

    def delete_group(self, name: str) -> None:
        """Deletes a group with its positions; refused while it has members."""
        self._call("DELETE", path_of("groups", group=name), params={"confirm": name})

    def subscribe(self, group: str, topic: str, *, start: Start = "earliest") -> Subscription:
        """Subscribes a group to a topic; its position in every queue is made now, where `start` says."""
        path = path_of("groups", group=group) + "/subscriptions"
        return cast(Subscription, self._call("POST", path, body={"topic": topic, "start": start}))

    def subscription(self, group: str, topic: str) -> Subscription:
        """One subscription."""
        return cast(Subscription, self._call("GET", path_of("groups", group=group, subscriptions=topic)))

    def change_subscription(self, group: str, topic: str, **settings: object) -> Subscription:
        """Changes stopped, stopped_queues (ids, in place of those before), ordered, retries, threads, …"""
        path = path_of("groups", group=group, subscriptions=topic)
        return cast(Subscription, self._call("PATCH", path, body=settings))

    def unsubscribe(self, group: str, topic: str) -> None:
        """Ends a subscription and forgets its positions."""
        self._call("DELETE", path_of("groups", group=group, subscriptions=topic))

    def lag(self, group: str) -> GroupLag:
        """Return the lag of a group in each of its queues."""
        return cast(GroupLag, self._call("GET", path_of("groups", group=group) + "/offsets"))

    def reset_offsets(
        self,
        group: str,
        topic: str | None = None,
        *,
        to: Literal["earliest", "latest", "offset", "time"],
        dry_run: bool = False,
        **where: object,
    ) -> Moves:
        """Moves a group's positions, also while it runs; None: in all its topics.

        `where`: queues (list of ids, default all), instance (of a broadcasting group: whose positions),
        `offset` with to="offset", `at_ms` (since 1970 UTC) or `ago_ms` (back from the server's now) with
        to="time".
        """
        body = {"to": to, "dry_run": dry_run, **given({"topic": topic, **where})}
        return cast(Moves, self._call("PATCH", path_of("groups", group=group) + "/offsets", body=body))

    def undo_offsets(self, group: str, reset: str | None = None, *, dry_run: bool = False) -> Moves:
        """Moves positions back to where a reset found them; None: the last one that was not undone."""
        body = {"dry_run": dry_run, **given({"reset": reset})}
        return cast(Moves, self._call("POST", path_of("groups", group=group) + "/offsets/undo", body=body))

    def offset_moves(self, group: str, *, page: int = 100) -> Iterator[dict[str, Any]]:
        """Positions of a group that were moved by hand, the newest first; `page` are fetched at a time."""
        yield from self._pages("moves", path=path_of("groups", group=group) + "/offsets/moves", limit=page)

    def rebalance(self, group: str, *, dry_run: bool = False) -> Plan:
        """Shares a group's queues among its members anew, now."""
        path = path_of("groups", group=group) + "/rebalance"
        return cast(Plan, self._call("POST", path, body={"dry_run": dry_run}))

    def rebalances(self, group: str, *, page: int = 100) -> Iterator[Rebalance]:
        """A group's rebalances, the newest first; `page` (≤ 1,000) are fetched at a time."""
        path = path_of("groups", group=group) + "/rebalances"
        for row in self._pages("rebalances", path=path, limit=page):
            yield cast(Rebalance, row)

    def nodes(self) -> Iterator[Node]:
        """All nodes by name."""
        for row in self._pages("nodes"):
            yield cast(Node, row)

    def key(self, name: str) -> Key:
        """One API key's rights and limits."""
        return cast(Key, self._call("GET", path_of("keys", key=name)))

    def change_key(self, name: str, **settings: object) -> Key:
        """Changes max_messages_per_s, max_bytes_per_s: what the key may send (None: any number)."""
        return cast(Key, self._call("PATCH", path_of("keys", key=name), body=settings))

    def brokers(self) -> list[Broker]:
        """All brokers by name."""
        return cast(list[Broker], self._call("GET", "/api/v1/brokers")["brokers"])

    def change_broker(self, name: str, *, state: Literal["in", "out"]) -> Broker:
        """Pulls a broker out, so that it takes no more work, or in; the last one in service stays in."""
        return cast(Broker, self._call("PATCH", path_of("brokers", broker=name), body={"state": state}))

    def forget_broker(self, name: str) -> None:
        """Takes a broker that no longer lives off the list."""
        self._call("DELETE", path_of("brokers", broker=name), params={"confirm": name})

    def _pages(
        self, plural: str, search: str | None = None, *, path: str | None = None, limit: int = PAGE
    ) -> Iterator[dict[str, Any]]:
        params: dict[str, object] = {"limit": limit, **given({"search": search})}
        while True:
            answer = self._call("GET", path or f"/api/v1/{plural}", params=params)
            yield from answer[plural]
            if answer.get("next") is None:
                return
            params["after"] = answer["next"]

    def _call(
        self,
        method: str,
        path: str,
        *,
        body: dict[str, Any] | None = None,
        params: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        return self._transport.request(method, path, body=body, params=params)


def given(settings: dict[str, object]) -> dict[str, Any]:
    """The settings that have a value: the others keep the broker's default."""
    return {name: value for name, value in settings.items() if value is not None}


def path_of(collection: str, **names: str) -> str:
    """`path_of("groups", group="g", subscriptions="t")` is `/api/v1/groups/g/subscriptions/t`.

    Raises OptionError for what can be no name: `.` and `..` would change the path on its way.
    """
    parts: list[str] = []
    for field, name in names.items():
        pattern, rule = (BROKER_NAME, BROKER_RULE) if field == "broker" else (NAME, NAME_RULE)
        if not pattern.fullmatch(name):
            what = field.removesuffix("s") if field != "subscriptions" else "topic"
            raise OptionError(f"{what}: {name!r} is no name: {rule}")
        parts += [field, name] if parts else [collection, name]
    return api_path(*parts)
