"""Descriptions of the schema's properties: each name has the same text wherever it appears.

A shape may describe a property itself; then its text is used. Settings are described where
they are declared.
"""

from __future__ import annotations

from typing import Any

from metadata.rules import settings
from metadata.rules.setting_types import Setting

MESSAGES = {
    "attempt": "0, or in a retry topic which retry this is",
    "batch_id": "UUIDv7 that the sender chose before its first try; a repeat with it "
    "stores nothing twice",
    "body": "body as text, if its bytes are UTF-8",
    "body_base64": "body in base64, if its bytes are not UTF-8",
    "body_bytes": "body as bytes; in MessagePack only",
    "delay_ms": "deliver so many ms after the send",
    "deliver_at_ms": "deliver at this time, ms since 1970 UTC",
    "due_at_ms": "time when it is delivered, ms since 1970 UTC",
    "form": "`rows`: messages as lists instead of objects, if Accept asks for them, too",
    "headers": "names and texts that go with the message",
    "key": "key; messages with the same key go to the same queue, in order",
    "message_id": "queue and offset, such as 7-42; of a delayed message its own id",
    "messages": "messages",
    "missing": "offsets of the page that have no message, and why",
    "origin_topic": "topic whose failed messages this retry topic holds",
    "origins": "where each message of a retry topic failed first, in the order of the messages",
    "producer": "API key or account that sent it",
    "reason": "`expired`: deleted by retention; `lost`: declared when a node was lost; "
    "`unexplained`: the queue is corrupt",
    "receipts": "each: one result for each message; runs: runs of offsets",
    "rows": "messages as lists: offset, key, tag, headers, body, trace id, time, attempt",
    "scanned": "messages that were looked at",
    "searched_by": "`index`: by the key index of the queues; `range`: by reading all messages "
    "of a time; `both`: some queues in either way",
    "size": "size of the body in bytes",
    "stored_at_ms": "time of the database when it was stored, ms since 1970 UTC",
    "tag": "tag, by which subscriptions filter",
    "trace_id": "id that finds the message again in the traces of applications",
}
GROUPS = {
    "address": "address that the member registered from",
    "assigned": "queues that the member owns or is about to own",
    "assignment": "member of each queue",
    "assignment_changed": "true if the member should heartbeat now, because its queues changed",
    "committed": "committed offset: the first that is not handled",
    "consumer_id": "id of the member",
    "created": "subscriptions and groups that the registration made",
    "epoch": "epoch of an ownership, or of a node; calls with an earlier one are refused",
    "generation": "number of the group's assignment; it rises with each change",
    "group": "name of the group",
    "groups": "groups",
    "head": "log end offset: the offset of the next message",
    "heartbeat_age_ms": "time since the last heartbeat",
    "heartbeat_interval_ms": "how often the member should heartbeat",
    "incarnation": "UUID of the process that registers; a new one replaces the old member",
    "instance": "instance of a broadcasting group",
    "instance_id": "name under which a member keeps its queues over a quick restart",
    "joined_at_ms": "time of the registration, ms since 1970 UTC",
    "lag": "unread messages",
    "lag_ms": "age of the oldest unread message",
    "low": "log start offset: earlier messages are past retention",
    "max_bytes": "most bytes of bodies in the answer",
    "max_messages": "most messages in the answer",
    "members": "members of the group",
    "mode": "clustering: members share the queues; broadcasting: each reads all",
    "next_offset": "offset to pull from next",
    "offset": "offset of a message in its queue",
    "offsets": "offsets to commit",
    "owned": "queues that the member still works on, with their epochs",
    "owner": "member that owns the queue",
    "progress": "whether the group catches up with its topics",
    "revoked": "queues to give up: finish, commit and release them",
    "sdk": "name and version of the client",
    "slots": "id of the queue for each of the 1,024 slots",
    "start": "earliest or latest: where a new subscription begins",
    "subscriptions": "subscriptions, or settings of the subscriptions by topic",
    "wait_ms": "how long to wait for messages if there are none",
}
SHARES = {
    "begun": "whether messages of the run have begun, so that this lease counts as a delivery",
    "count_begun": "true: leases of messages that were leased before count once the member "
    "reports begun",
    "deliveries": "how often the run was leased; leases that count for nothing are left out",
    "delivery": "the `deliveries` that came with an uncounted run; 0 for any other",
    "done": "reports on runs, or what came of each",
    "end": "offset behind the last one of the run",
    "finished": "ranges of offsets that are finished, or how many messages are",
    "first": "first offset of the run",
    "grant": "names one lease of one run",
    "holding": "runs that the member has",
    "in_flight": "messages that are leased",
    "lease_left_ms": "time until the lease ends; negative when it has",
    "recover": "true: first the runs of this member that `holding` does not list",
    "recovered": "true: the member held this run before",
    "redelivered": "messages that are leased for the second time or more",
    "release": "offsets to deliver again now",
    "released": "how many leases ended",
    "renew": "true: the lease begins anew",
    "uncounted": "true: the lease counts as a delivery when the member reports begun",
    "unseen": "offsets that no application got: deliver them again now, this lease counts "
    "as no delivery",
}
FAILURES = {
    "all": "true: all that match the filter",
    "asked_by": "who asked for it",
    "away": "nodes that did not answer, so what they hold is missing here",
    "dead": "messages that became dead letters",
    "died_at_ms": "time when it became a dead letter, ms since 1970 UTC",
    "dropped": "dead letters that were deleted",
    "error": "the error",
    "error_class": "class of the error",
    "failure_topic": "retry topic of the group",
    "final": "true: a dead letter now",
    "first_at_ms": "time of the first one, ms since 1970 UTC",
    "first_failed_at_ms": "time of the first failure, ms since 1970 UTC",
    "ids": "ids of dead letters",
    "last": "true: no retry is left, so it becomes a dead letter",
    "last_at_ms": "time of the last one, ms since 1970 UTC",
    "redriven": "messages that were sent again",
    "redrives": "redrives",
    "refused": "messages that were not taken, with the reason",
    "repeated": "handled messages that will be delivered again",
    "rate": "most messages a second",
    "retried": "messages that wait for a retry",
    "skipped": "messages that are left out",
    "waiting": "messages that wait for their time",
}
PLACES = {
    "brokers": "brokers",
    "database": "database of the node: a schema, or on SQLite a file",
    "engine": "mysql (also MariaDB) or sqlite",
    "from_offset": "first offset of a gap",
    "host": "host of the database server",
    "kind": "normal, or failure for retries and dead letters",
    "last_seen_at_ms": "time of its last sign of life, ms since 1970 UTC",
    "layout_version": "number of the layout; it rises with each change",
    "lost": "what each group loses",
    "node": "name of the node",
    "nodes": "nodes",
    "notes": "remarks for people",
    "number": "number of the queue within its topic, from 0",
    "password": "password of the account",
    "plan": "what would be done",
    "port": "port of the database server",
    "primary_answers": "true if the primary still answers",
    "queue": "id of the queue",
    "queue_strict": "false: if `queue` takes no messages, another queue of the topic will do",
    "queues": "queues",
    "rebalances": "rebalances",
    "table": "table of the queue's messages",
    "target": "server that takes over, as host:port",
    "to_offset": "offset behind the last one of a gap",
    "topic": "name of the topic",
    "topics": "topics",
    "unread": "unread messages",
    "url": "address of the broker",
    "username": "name of the account",
    "version": "version",
}
OTHERS = {
    "outcome": "outcome of the attempt: handled or failed; delivered, if no more is known",
    "took_ms": "duration of the attempt in ms; null: only the delivery is known",
    "report_every_ms": "how often a heartbeat may bring a report of the process, ms",
    "report": "report of the member's process",
    "busy": "threads at work",
    "buffered": "messages in memory that no handler has begun",
    "buffered_bytes": "size of their bodies in bytes",
    "handled": "messages handled since the process started",
    "failed": "attempts that failed since the process started",
    "slowest": "handler call that runs for the longest time; null: none runs",
    "running_ms": "how long it has run, ms",
    "producers": "producers, the last one first",
    "token": "id of the send token",
    "tokens": "send tokens of the topic",
    "member": "name of the member",
    "traces": "attempts at messages",
    "after": "value of `next` in the page before",
    "code": "code for programs",
    "confirm": "name of what is deleted, again",
    "contains": "text that the body contains",
    "from_ms": "stored at this time or later, ms since 1970 UTC",
    "gap": "range of offsets that a promotion gave up; go on behind it",
    "header": "header as name=value",
    "layout": "queue of each key slot",
    "limit": "most items in the answer",
    "origin": "where the message failed first",
    "result": "result of each message of the run, if they were not stored",
    "search": "text that the name contains",
    "to_ms": "stored before this time, ms since 1970 UTC",
    "broker": "name of the broker",
    "consumer": "id of the member",
    "redrive": "id of the redrive",
    "about": "what the finding is about",
    "actor": "who did it",
    "ago_ms": "to what was stored so many ms ago",
    "api_key": "the new key; it is shown only once",
    "api_version": "version of the API",
    "at_ms": "time, ms since 1970 UTC",
    "because": "reasons why it is degraded or not ready",
    "cause": "cause",
    "count": "how many",
    "created_at_ms": "time when it was created, ms since 1970 UTC",
    "detail": "explanation for people",
    "dry_run": "true: only show what would change",
    "features": "optional fields that this broker takes and earlier releases refuse; "
    "pull_commit: `commit` in a pull",
    "errors": "details: wrong fields, or counts by error",
    "field": "path of a field, such as messages[3].key",
    "findings": "findings; an empty list is a good result",
    "finished_at_ms": "time when it ended, ms since 1970 UTC; null while it runs",
    "from": "offset or queue before",
    "id": "id",
    "keys": "API keys",
    "limits": "limits of this broker",
    "message": "explanation, and what to do",
    "metadata_silent_ms": "how long the metadata database has not answered; sends, pulls "
    "and commits go on",
    "moves": "what moves",
    "name": "name",
    "next": "value of `after` for the next page; null on the last one",
    "reset": "id of a reset, by which it can be undone",
    "results": "result of each one, in the order of the request",
    "retriable": "true: the same request may succeed later",
    "retry_after_ms": "wait at least so long before the next try",
    "rights": "rights by action: patterns of names",
    "runs": "runs of offsets, if receipts were not asked for",
    "started_at_ms": "time of its start, ms since 1970 UTC",
    "state": "state",
    "status": "HTTP status",
    "title": "meaning of the code",
    "to": "offset, queue or position after",
    "type": "address of the description of the code",
}
TEXTS = {**MESSAGES, **GROUPS, **SHARES, **FAILURES, **PLACES, **OTHERS}


COUNTED = ("messages", "queues")  # a number of them has the same name as the list


def described(name: str, kind: object = None) -> str:
    """Return the description of a property of a JSON type, '' if there is none.

    >>> described("committed"), described("messages", "integer")
    ('committed offset: the first that is not handled', 'number of messages')
    """
    if name in COUNTED and kind == "integer":
        return f"number of {name}"
    for declarations in (
        settings.SUBSCRIPTION,
        settings.TOPIC,
        settings.GROUP,
        settings.NODE,
    ):
        setting = declarations.get(name)
        if name not in TEXTS and isinstance(setting, Setting):
            return setting.help or setting.label
    return TEXTS.get(name, "")


def add_descriptions(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Describe the properties and parameters that have no description. A postprocessing
    hook of drf-spectacular.
    """
    for component in result["components"]["schemas"].values():
        if text := component.get("description"):
            # The line breaks of a docstring are those of the source code.
            paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
            component["description"] = "\n\n".join(paragraphs)
        for name, property_schema in component.get("properties", {}).items():
            if "description" not in property_schema and (
                text := described(name, property_schema.get("type"))
            ):
                property_schema["description"] = text
    for path in result["paths"].values():
        for operation in path.values():
            for property_schema in operation.get("parameters", ()):
                of_shape = property_schema.get("schema", {}).get("description", "")
                if (
                    text := property_schema.get("description")
                    or of_shape
                    or described(property_schema["name"])
                ):
                    property_schema["description"] = text
    return result
