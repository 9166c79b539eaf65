"""The management API as typed calls: topics, groups, offsets, nodes, brokers, messages.

    admin = Admin(HttpTransport("http://127.0.0.1:8000", api_key=...))
    admin.create_topic("orders", queues=4)

Answers are the API's objects as dicts, typed by the TypedDicts in `shapes`. They may have
more fields than the type: newer brokers add fields. Every call raises the errors of
`Transport.request`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, cast

from catmq_client.admin.calls import Calls, drop_none, path_of, with_body_bytes
from catmq_client.admin.dead_letters import DeadLetters
from catmq_client.admin.shapes import (
    Broker,
    Definitions,
    DelayedPage,
    DoctorReport,
    FoundMessages,
    Group,
    GroupLag,
    Imported,
    Key,
    KeyIndex,
    LayoutChange,
    Leases,
    Moves,
    NewKey,
    NewSendToken,
    Node,
    Plan,
    QueueState,
    ReadPlan,
    Rebalance,
    SendToken,
    Start,
    Subscription,
    TagMatches,
    Topic,
    TopicProducer,
    TopicRow,
    Trace,
)
from catmq_client.http.transport import Transport, api_path

BASE_TIMEOUT_S = 10.0
IMPORT_TIMEOUT_S = 600.0
DOCTOR_TIMEOUT_S = 30.0


class Admin(Calls):
    """Calls of the management API over a transport. Failed calls raise and are not
    repeated.
    """

    def __init__(self, transport: Transport) -> None:
        super().__init__(transport)
        self.dead_letters: DeadLetters = DeadLetters(transport)

    def topics(self, *, search: str | None = None) -> Iterator[TopicRow]:
        """Return all topics by name, or those whose name contains `search`."""
        return self._pages("/api/v1/topics", "topics", search=search)

    def topic(self, name: str) -> Topic:
        return cast(Topic, self._call("GET", path_of("topics", topic=name)))

    def create_topic(self, name: str, *, queues: int = 4, **settings: object) -> Topic:
        """Create a topic. `settings` are node, retention_days, keep_unread_days, keyed, …"""
        body = {"name": name, "queues": queues, **drop_none(settings)}
        return cast(Topic, self._call("POST", "/api/v1/topics", body=body))

    def change_topic(self, name: str, **settings: object) -> TopicRow:
        """Change retention_days, retention_bytes (None: no limit), keyed, on_unknown, …"""
        return cast(
            TopicRow, self._call("PATCH", path_of("topics", topic=name), body=settings)
        )

    def expand_topic(
        self, name: str, *, queues: int, node: str | None = None, dry_run: bool = False
    ) -> LayoutChange:
        """Add queues to a topic, on `node` or spread over the nodes."""
        body = {"queues": queues, "dry_run": dry_run, **drop_none({"node": node})}
        return cast(
            LayoutChange,
            self._call("POST", path_of("topics", topic=name) + "/expand", body=body),
        )

    def shrink_topic(
        self,
        name: str,
        *,
        queues: list[int] | None = None,
        count: int | None = None,
        dry_run: bool = False,
    ) -> LayoutChange:
        """Close queues, by ids or by a count. They are retired when all groups read them."""
        body = {"dry_run": dry_run, **drop_none({"queues": queues, "count": count})}
        return cast(
            LayoutChange,
            self._call("POST", path_of("topics", topic=name) + "/shrink", body=body),
        )

    def queues(self, topic: str) -> list[QueueState]:
        """Return the queues of a topic, with their unread messages by group."""
        return cast(
            list[QueueState],
            self._call("GET", path_of("topics", topic=topic) + "/queues")["queues"],
        )

    def queue(self, topic: str, queue: int) -> QueueState:
        """Return a queue of a topic, with its unread messages by group."""
        return cast(
            QueueState,
            self._call("GET", path_of("topics", topic=topic) + f"/queues/{queue}"),
        )

    def change_queue(
        self, topic: str, queue: int, *, state: Literal["read_only", "read_write"]
    ) -> QueueState:
        """Close a queue for sends, or open it; the last open one of a topic stays open."""
        path = path_of("topics", topic=topic) + f"/queues/{queue}"
        return cast(QueueState, self._call("PATCH", path, body={"state": state}))

    def producers(self, topic: str) -> list[TopicProducer]:
        """Return the clients that sent to a topic in the last seven days, the latest first."""
        answer = self._call("GET", path_of("topics", topic=topic) + "/producers")
        return cast(list[TopicProducer], answer["producers"])

    def key_index(self, topic: str) -> KeyIndex:
        """Return which queues of a topic have an index on the keys of their messages."""
        path = path_of("topics", topic=topic) + "/key-index"
        return cast(KeyIndex, self._call("GET", path))

    def delete_topic(self, name: str) -> None:
        """Delete a topic. Refused while groups subscribe to it.

        Its tables are dropped after 3 days.
        """
        self._call("DELETE", path_of("topics", topic=name), params={"confirm": name})

    def send_tokens(self, topic: str) -> list[SendToken]:
        """Return the send tokens of a topic, which Java clients must name."""
        path = path_of("topics", topic=topic) + "/send-tokens"
        return cast(list[SendToken], self._call("GET", path)["tokens"])

    def create_send_token(self, topic: str) -> NewSendToken:
        """Create a send token, at most two per topic. Only this answer has the token."""
        return cast(
            NewSendToken,
            self._call("POST", path_of("topics", topic=topic) + "/send-tokens"),
        )

    def delete_send_token(self, topic: str, token: str) -> None:
        """Delete a send token by its id. Without the last one every Java client may send."""
        path = path_of("topics", topic=topic) + f"/send-tokens/{token}"
        self._call("DELETE", path, params={"confirm": token})

    def messages(
        self, topic: str, *, queue: int, offset: int, limit: int, wait_ms: int = 0
    ) -> list[dict[str, Any]]:
        """Return up to `limit` (≤ 1,000) messages of a queue from an offset.

        They have `body_bytes`. `wait_ms` (≤ 30,000) is the time to wait for a first message
        at the end of the queue.
        """
        params = {"queue": queue, "offset": offset, "limit": limit}
        timeout_s = BASE_TIMEOUT_S + wait_ms / 1000
        # Brokers of an earlier release refuse the parameter.
        if wait_ms:
            params["wait_ms"] = wait_ms
        path = path_of("topics", topic=topic) + "/messages"
        answer = self._call("GET", path, params=params, timeout_s=timeout_s)
        return [with_body_bytes(message) for message in answer["messages"]]

    def delayed(
        self, topic: str, *, after: str | None = None, limit: int = 100
    ) -> DelayedPage:
        """Return a page of delayed messages, by id. Its `next` is the next page's `after`."""
        params = {"limit": limit, **drop_none({"after": after})}
        answer = self._call(
            "GET", path_of("topics", topic=topic) + "/delayed", params=params
        )
        messages = [with_body_bytes(message) for message in answer["messages"]]
        return cast(DelayedPage, {**answer, "messages": messages})

    def recall(self, message_id: str) -> None:
        """Delete a delayed message; 409 `already_delivered` if it is already in its queue."""
        self._call("DELETE", api_path("messages", message_id))

    def tag_matches(
        self, topic: str, tags: str = "", headers: Mapping[str, Sequence[str]] | None = None
    ) -> TagMatches:
        """Count how many of a topic's last 1,000 messages match the filters together.

        `tags` as "new || paid", `headers` as {"region": ["eu", "us"]}.
        """
        path = path_of("topics", topic=topic) + "/tag-matches"
        filters = {"tags": tags, **({"headers": json.dumps(headers)} if headers else {})}
        return cast(TagMatches, self._call("GET", path, params=filters))

    def traces(self, topic: str, message_id: str) -> list[Trace]:
        """Return the sampled attempts at a message: by whom, when, and for how long."""
        path = path_of("topics", topic=topic) + "/traces"
        return cast(
            list[Trace],
            self._call("GET", path, params={"message_id": message_id})["traces"],
        )

    def read_plan(self, topic: str) -> ReadPlan:
        """Return tables and ranges for a job that reads a topic from its nodes.

        Needs the right `admin`.
        """
        return cast(
            ReadPlan, self._call("GET", path_of("topics", topic=topic) + "/read-plan")
        )

    def find(
        self, topic: str, *, after: str | None = None, **wanted: object
    ) -> FoundMessages:
        """Search a topic for up to 2 s.

        Repeat with `next` of the answer as `after` until it is None. All conditions in
        `wanted` must match: key, tag, trace_id, header ("name:value"), contains (text of
        the body), from_ms and to_ms (stored at or after, and before), queue. `limit` (≤
        1,000) is the maximum number of messages.
        """
        params = drop_none({**wanted, "after": after})
        answer = self._call(
            "GET", path_of("topics", topic=topic) + "/messages", params=params
        )
        messages = [with_body_bytes(message) for message in answer["messages"]]
        page = {"messages": messages, "scanned": answer["scanned"], "next": answer["next"]}
        # Brokers of an earlier release do not say how they searched: they have no index.
        page["searched_by"] = answer.get("searched_by", "range")
        return cast(FoundMessages, page)

    def groups(self, *, search: str | None = None) -> Iterator[Group]:
        """Return all groups by name, or those whose name contains `search`."""
        return self._pages("/api/v1/groups", "groups", search=search)

    def group(self, name: str) -> Group:
        return cast(Group, self._call("GET", path_of("groups", group=name)))

    def create_group(self, name: str, **settings: object) -> Group:
        """Create a group. `settings` are mode (clustering, broadcasting, share), owners, …"""
        return cast(
            Group,
            self._call(
                "POST", "/api/v1/groups", body={"name": name, **drop_none(settings)}
            ),
        )

    def change_group(self, name: str, **settings: object) -> Group:
        """Change stopped, allow_addresses, max_active_members (None: all), owners, …"""
        return cast(
            Group, self._call("PATCH", path_of("groups", group=name), body=settings)
        )

    def delete_group(self, name: str) -> None:
        """Delete a group with its committed offsets; refused while it has members."""
        self._call("DELETE", path_of("groups", group=name), params={"confirm": name})

    def subscribe(
        self,
        group: str,
        topic: str,
        *,
        start: Start = "earliest",
        start_at_ms: int | None = None,
        start_ago_ms: int | None = None,
    ) -> Subscription:
        """Subscribe a group to a topic. `start` sets its committed offset in every queue.

        With `start_at_ms` (since 1970 UTC) or `start_ago_ms` (back from the server's now)
        it is the first message stored at that time or later.
        """
        path = path_of("groups", group=group) + "/subscriptions"
        since = drop_none({"start_at_ms": start_at_ms, "start_ago_ms": start_ago_ms})
        body = {"topic": topic, "start": start, **since}
        return cast(Subscription, self._call("POST", path, body=body))

    def subscription(self, group: str, topic: str) -> Subscription:
        return cast(
            Subscription,
            self._call("GET", path_of("groups", group=group, subscriptions=topic)),
        )

    def change_subscription(
        self, group: str, topic: str, **settings: object
    ) -> Subscription:
        """Change stopped, stopped_queues (ids, replacing the former), retries, threads, …"""
        path = path_of("groups", group=group, subscriptions=topic)
        return cast(Subscription, self._call("PATCH", path, body=settings))

    def unsubscribe(self, group: str, topic: str) -> None:
        """End a subscription and delete its committed offsets."""
        self._call("DELETE", path_of("groups", group=group, subscriptions=topic))

    def lag(self, group: str) -> GroupLag:
        return cast(
            GroupLag, self._call("GET", path_of("groups", group=group) + "/offsets")
        )

    def reset_offsets(
        self,
        group: str,
        topic: str | None = None,
        *,
        to: Literal["earliest", "latest", "offset", "time", "group"],
        dry_run: bool = False,
        **where: object,
    ) -> Moves:
        """Reset committed offsets of a group, of all its topics if `topic` is None.

        The group may be running. `where` has queues (list of ids, default all), instance
        (of a broadcasting group), `offset` with to="offset", `at_ms` (since 1970 UTC) or
        `ago_ms` (back from the server's now) with to="time", `source_group` with
        to="group": the committed offsets of another group in the topic.
        """
        body = {"to": to, "dry_run": dry_run, **drop_none({"topic": topic, **where})}
        return cast(
            Moves,
            self._call("PATCH", path_of("groups", group=group) + "/offsets", body=body),
        )

    def undo_offsets(
        self, group: str, reset: str | None = None, *, dry_run: bool = False
    ) -> Moves:
        """Undo a reset of offsets. None is the last reset that was not undone."""
        body = {"dry_run": dry_run, **drop_none({"reset": reset})}
        return cast(
            Moves,
            self._call("POST", path_of("groups", group=group) + "/offsets/undo", body=body),
        )

    def offset_moves(self, group: str, *, page: int = 100) -> Iterator[dict[str, Any]]:
        """Return the offset resets of a group, newest first.

        `page` rows are fetched at a time.
        """
        return self._pages(
            path_of("groups", group=group) + "/offsets/moves", "moves", limit=page
        )

    def share_runs(
        self, group: str, *, queue: int | None = None, limit: int = 100
    ) -> Leases:
        """Return up to `limit` (≤ 1,000) runs of a share group, in a queue or in all."""
        params = {"limit": limit, **drop_none({"queue": queue})}
        path = path_of("groups", group=group) + "/share/runs"
        return cast(Leases, self._call("GET", path, params=params))

    def release_runs(self, group: str, *, queue: int, first: int) -> int:
        """End the leases of runs that begin at an offset. Return their number."""
        path = path_of("groups", group=group) + "/share/runs/release"
        return int(
            self._call("POST", path, body={"queue": queue, "first": first})["released"]
        )

    def rebalance(self, group: str, *, dry_run: bool = False) -> Plan:
        """Rebalance a group's queues now."""
        path = path_of("groups", group=group) + "/rebalance"
        return cast(Plan, self._call("POST", path, body={"dry_run": dry_run}))

    def rebalances(self, group: str, *, page: int = 100) -> Iterator[Rebalance]:
        """Return a group's rebalances, newest first.

        `page` (≤ 1,000) rows are fetched at a time.
        """
        path = path_of("groups", group=group) + "/rebalances"
        return self._pages(path, "rebalances", limit=page)

    def export(self, *, topic: str | None = None) -> Definitions:
        """Return the topics that match a pattern such as `orders*`, for an import.

        Their subscriptions and groups are included.
        """
        return cast(
            Definitions,
            self._call("GET", "/api/v1/export", params=drop_none({"topic": topic})),
        )

    def import_definitions(
        self,
        document: Mapping[str, Any],
        *,
        existing: Literal["refuse", "keep", "change"] = "refuse",
        dry_run: bool = False,
    ) -> Imported:
        """Create what a document of `export` defines and does not exist.

        The call may be repeated. `existing` says whether a resource with other settings is
        an error, kept, or changed.
        """
        body = {"document": document, "existing": existing, "dry_run": dry_run}
        answer = self._call("POST", "/api/v1/import", body=body, timeout_s=IMPORT_TIMEOUT_S)
        return cast(Imported, answer)

    def nodes(self) -> Iterator[Node]:
        return self._pages("/api/v1/nodes", "nodes")

    def keys(self, *, search: str | None = None) -> Iterator[Key]:
        """Return the API keys that the caller may create, or those whose name contains
        `search`. Their texts are not stored.
        """
        return self._pages("/api/v1/keys", "keys", search=search)

    def create_key(
        self,
        name: str,
        *,
        rights: Mapping[str, Sequence[str]],
        max_messages_per_s: int | None = None,
        max_bytes_per_s: int | None = None,
    ) -> NewKey:
        """Create an API key. `rights` are name patterns by right: {"produce": ["orders*"]}.

        Only this answer has the key itself, as `api_key`.
        """
        limits: dict[str, object] = {
            "max_messages_per_s": max_messages_per_s,
            "max_bytes_per_s": max_bytes_per_s,
        }
        body = {
            "name": name,
            "rights": {right: list(patterns) for right, patterns in rights.items()},
            **drop_none(limits),
        }
        return cast(NewKey, self._call("POST", "/api/v1/keys", body=body))

    def key(self, name: str) -> Key:
        return cast(Key, self._call("GET", path_of("keys", key=name)))

    def change_key(self, name: str, **settings: object) -> Key:
        """Change the quota of a key: max_messages_per_s, max_bytes_per_s (None: no limit)."""
        return cast(Key, self._call("PATCH", path_of("keys", key=name), body=settings))

    def delete_key(self, name: str) -> None:
        """Revoke a key. Brokers refuse requests with it within a second."""
        self._call("DELETE", path_of("keys", key=name), params={"confirm": name})

    def doctor(self) -> DoctorReport:
        """Let a broker check the installation, and return its faults, errors first.

        It takes up to 10 s. Needs the right admin on everything.
        """
        answer = self._call("GET", "/api/v1/doctor", timeout_s=DOCTOR_TIMEOUT_S)
        return cast(DoctorReport, answer)

    def brokers(self) -> list[Broker]:
        return cast(list[Broker], self._call("GET", "/api/v1/brokers")["brokers"])

    def change_broker(self, name: str, *, state: Literal["in", "out"]) -> Broker:
        """Drain a broker ("out") or enable it ("in"). The last in service stays enabled."""
        return cast(
            Broker,
            self._call("PATCH", path_of("brokers", broker=name), body={"state": state}),
        )

    def forget_broker(self, name: str) -> None:
        """Remove a broker that no longer runs from the list."""
        self._call("DELETE", path_of("brokers", broker=name), params={"confirm": name})
