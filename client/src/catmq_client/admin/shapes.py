"""Shapes of the management API's answers.

Written by `manage.py settings_reference --write` from the OpenAPI schema. Newer brokers add
fields; brokers of an older release omit some.
"""

# ruff: noqa: UP013 - one statement for each type keeps the written file short

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

Start = Literal["earliest", "latest"]

# A queue; `low` (log start offset) and `head` (log end offset) are null while its node is
# down.
QueueRow = TypedDict(
    "QueueRow",
    {
        # id of the queue
        "queue": int,
        # its number within the topic
        "number": int,
        # name of the node
        "node": str,
        "state": str,
        # log start offset: earlier messages are past retention
        "low": int | None,
        # log end offset: the offset of the next message
        "head": int | None,
    },
)

# Number of messages that a group has not read; null while a node does not answer.
Unread = TypedDict(
    "Unread",
    {
        # name of the group
        "group": str,
        # unread messages; of the slowest instance in a broadcasting group
        "messages": int | None,
    },
)

# A queue that was added, or drains.
ChangedQueue = TypedDict(
    "ChangedQueue",
    {
        # id of the queue; null if it is only planned
        "queue": int | None,
        # its number within the topic
        "number": int,
        # name of the node
        "node": str,
        "state": str,
    },
)

# Changes that an expand or shrink made, or with `dry_run` would make.
LayoutChange = TypedDict(
    "LayoutChange",
    {
        # name of the topic
        "topic": str,
        # true: only show what would change
        "dry_run": bool,
        # number of the layout; it rises with each change
        "layout_version": int,
        "queues": list[ChangedQueue],
        # of 1,024
        "moved_slots": int,
        # share of the keys that move to another queue, 0 to 1
        "moved_share": float,
        # unread messages by group, in the queues that lose slots
        "unread": list[Unread],
    },
)

# Result of a filter on the last messages of a topic.
TagMatches = TypedDict(
    "TagMatches",
    {
        # number of messages, the last ones of each queue in equal shares
        "looked_at": int,
        # number of matching messages
        "matching": int,
        # nodes that did not answer
        "away": list[str],
    },
)

# A queue; `low` (log start offset) and `head` (log end offset) are null while its node is
# down.
QueueState = TypedDict(
    "QueueState",
    {
        # id of the queue
        "queue": int,
        # its number within the topic
        "number": int,
        # name of the node
        "node": str,
        "state": str,
        # log start offset: earlier messages are past retention
        "low": int | None,
        # log end offset: the offset of the next message
        "head": int | None,
        # slots of 1,024 that the queue serves
        "slots": int,
        # it is closed, and will be retired when all groups have read it
        "draining": bool,
        # by group
        "unread": list[Unread],
    },
)

# A topic in a list; `queues` counts.
TopicRow = TypedDict(
    "TopicRow",
    {
        "name": str,
        # normal, or failure for retries and dead letters
        "kind": str,
        "state": str,
        # time when it was created, ms since 1970 UTC
        "created_at_ms": int,
        # Time to keep messages, read or not.
        "retention_days": int,
        # Time to keep messages that an active group has not read; 0: no longer than read
        # messages.
        "keep_unread_days": int,
        # Maximum size of the stored messages. MySQL and MariaDB drop whole partitions and
        # always keep the current one. The first partitions of a queue hold 100,000 messages
        # each. null: no limit
        "retention_bytes": int | None,
        # Keyed sends to a closed queue
        "keyed": Literal["strict", "available"],
        # Sends are refused. What was accepted before, such as delayed messages, is still
        # delivered.
        "read_only": bool,
        # Sends with an unknown outcome
        "on_unknown": Literal["fail", "resend"],
        # Find messages by key with an index, which sends have to maintain. A change is made
        # in the background, queue by queue, while the topic is in use.
        "key_index": bool,
        # Limit for all brokers together. null: no limit
        "max_messages_per_s": int | None,
        # Limit for message bodies, for all brokers together. null: no limit
        "max_bytes_per_s": int | None,
        # Names of the users who may manage it, separated by commas.
        "owners": str,
        # Department
        "department": str,
        # Addresses that receive its alarms, separated by commas.
        "alarm_emails": str,
        # Description
        "description": str,
        # number of queues
        "queues": int,
    },
)

# Slot → queue id; slot = crc32(UTF-8 key) mod 1024.
Layout = TypedDict(
    "Layout",
    {
        "version": int,
        # id of the queue for each of the 1,024 slots
        "slots": list[int],
    },
)

# A topic.
Topic = TypedDict(
    "Topic",
    {
        "name": str,
        # normal, or failure for retries and dead letters
        "kind": str,
        "state": str,
        # time when it was created, ms since 1970 UTC
        "created_at_ms": int,
        # Time to keep messages, read or not.
        "retention_days": int,
        # Time to keep messages that an active group has not read; 0: no longer than read
        # messages.
        "keep_unread_days": int,
        # Maximum size of the stored messages. MySQL and MariaDB drop whole partitions and
        # always keep the current one. The first partitions of a queue hold 100,000 messages
        # each. null: no limit
        "retention_bytes": int | None,
        # Keyed sends to a closed queue
        "keyed": Literal["strict", "available"],
        # Sends are refused. What was accepted before, such as delayed messages, is still
        # delivered.
        "read_only": bool,
        # Sends with an unknown outcome
        "on_unknown": Literal["fail", "resend"],
        # Find messages by key with an index, which sends have to maintain. A change is made
        # in the background, queue by queue, while the topic is in use.
        "key_index": bool,
        # Limit for all brokers together. null: no limit
        "max_messages_per_s": int | None,
        # Limit for message bodies, for all brokers together. null: no limit
        "max_bytes_per_s": int | None,
        # Names of the users who may manage it, separated by commas.
        "owners": str,
        # Department
        "department": str,
        # Addresses that receive its alarms, separated by commas.
        "alarm_emails": str,
        # Description
        "description": str,
        "queues": list[QueueRow],
        # queue of each key slot
        "layout": Layout,
    },
)

# Delayed messages. `next`: `after` of the next page (null: none). `count`: all delayed
# messages, counted up to 100,000 on each node. `away`: nodes that did not answer.
DelayedPage = TypedDict(
    "DelayedPage",
    {
        "messages": list[dict[str, Any]],
        # value of `after` for the next page; null on the last one
        "next": str | None,
        # how many
        "count": int,
        # nodes that did not answer, so what they hold is missing here
        "away": list[str],
    },
)

# A broker. Clients use brokers with `alive` true and state `in`.
Broker = TypedDict(
    "Broker",
    {
        "name": str,
        # address of the broker
        "url": str,
        # `in`, or `out` if it is drained
        "state": str,
        # it reported within 10 s, and is not stopping
        "alive": bool,
        "version": str,
        # time of its start, ms since 1970 UTC
        "started_at_ms": int,
        # time of its last sign of life, ms since 1970 UTC
        "last_seen_at_ms": int,
        # when it began to stop
        "stopped_at_ms": int | None,
    },
)

# A node, without its password.
Node = TypedDict(
    "Node",
    {
        "name": str,
        # normal, or failure for retries and dead letters
        "kind": str,
        # mysql (also MariaDB) or sqlite
        "engine": str,
        # host of the database server
        "host": str,
        # port of the database server
        "port": int | None,
        # database of the node: a schema, or on SQLite a file
        "database": str,
        # name of the account
        "username": str,
        "state": str,
        # Use for new queues only when named
        "dedicated": bool,
        # epoch of an ownership, or of a node; calls with an earlier one are refused
        "epoch": int,
        # On MySQL and MariaDB, free space is not watched without a capacity.
        "capacity_gb": int | None,
        # Pulls are served from the replica while the node is down. It must have the same
        # database and account.
        "replica_host": str,
        # Port of its replica
        "replica_port": int | None,
        # Encryption of connections to the node and its replica. A change is tried before it
        # is saved.
        "tls": str,
        # Certificates that verify accepts, in PEM, at the same path on all brokers.
        "tls_ca": str,
        # number of queues
        "queues": int,
        # time when it was created, ms since 1970 UTC
        "created_at_ms": int,
        # account that jobs use to read it; empty if there is none
        "reader_username": str,
        # reason why brokers do not serve it; empty if they do
        "quarantined": str,
        # server of several that brokers write to; empty for a single server
        "writer": str,
        # ok, low, or full (no more sends)
        "disk": str,
        # version of its tables; null until this broker has asked the node
        "schema_version": int | None,
        # manage.py upgrade_nodes can raise the version
        "upgrade_possible": bool,
    },
)

# Messages, and how many were scanned. `next` is the `offset` of the next page of a queue,
# or the `after` of the next page of a search; null: none. `searched_by` is there after a
# search, `missing` if a page of a queue skipped offsets. With `form=rows` and `Accept:
# application/msgpack;messages=rows`, a page of a queue has `rows`, as in pulls, and
# `messages` is empty.
FoundMessages = TypedDict(
    "FoundMessages",
    {
        "messages": list[dict[str, Any]],
        # messages that were looked at
        "scanned": int,
        # value of `after` for the next page; null on the last one
        "next": int | str | None,
        # `index`: by the key index of the queues; `range`: by reading all messages of a
        # time; `both`: some queues in either way
        "searched_by": str,
        # offsets of the page that have no message, and why
        "missing": NotRequired[list[dict[str, Any]]],
        # messages as lists: offset, key, tag, headers, body, trace id, time, attempt
        "rows": NotRequired[list[list[Any]]],
    },
)

# An API key, without its secret.
Key = TypedDict(
    "Key",
    {
        # Limit for all brokers together. null: no limit
        "max_messages_per_s": int | None,
        # Limit for message bodies, for all brokers together. null: no limit
        "max_bytes_per_s": int | None,
        "name": str,
        # rights by action: patterns of names
        "rights": dict[str, list[str]],
        # time when it was created, ms since 1970 UTC
        "created_at_ms": int,
    },
)

# A new API key; only this answer has `api_key`.
NewKey = TypedDict(
    "NewKey",
    {
        # Limit for all brokers together. null: no limit
        "max_messages_per_s": int | None,
        # Limit for message bodies, for all brokers together. null: no limit
        "max_bytes_per_s": int | None,
        "name": str,
        # rights by action: patterns of names
        "rights": dict[str, list[str]],
        # time when it was created, ms since 1970 UTC
        "created_at_ms": int,
        # the new key; it is shown only once
        "api_key": str,
    },
)

# A send token of a topic, which Java clients must name; the token itself is not stored.
SendToken = TypedDict(
    "SendToken",
    {
        "id": str,
        # time when it was created, ms since 1970 UTC
        "created_at_ms": int,
    },
)

# A new send token; only this answer has `token`.
NewSendToken = TypedDict(
    "NewSendToken",
    {
        "id": str,
        # time when it was created, ms since 1970 UTC
        "created_at_ms": int,
        # what Java clients give as the token of their producer
        "token": str,
    },
)

# A topic that a group reads.
Subscription = TypedDict(
    "Subscription",
    {
        # name of the group
        "group": str,
        # name of the topic
        "topic": str,
        "state": str,
        # earliest or latest: where a new subscription begins
        "start": str,
        # time when it was created, ms since 1970 UTC
        "created_at_ms": int,
        # The topic is not delivered to the group.
        "stopped": bool,
        # Queues that are not delivered.
        "stopped_queues": list[int],
        # Deliver only messages with one of these tags, separated by || or commas. empty:
        # all messages
        "tags": str,
        # Deliver only messages that have each of these headers, with one of its values.
        # empty: all messages
        "headers": dict[str, list[str]],
        # Time between storing a message and delivering it.
        "delay_s": int,
        # Retry failed messages in place. A failed message blocks its queue until it
        # succeeds or has no retries left.
        "ordered": bool,
        # Retries after the first delivery. After the last one, the message becomes a dead
        # letter.
        "retries": int,
        # Pauses before retry 1, 2, …, such as 10,30,60. The last one repeats.
        "retry_delays_s": list[int],
        # Time to keep dead letters.
        "dead_days": int,
        # Maximum time of a handler call. A call that takes longer counts as failed. null:
        # no limit
        "handler_timeout_ms": int | None,
        # Consecutive failures that pause the subscription. null: never
        "breaker_failures": int | None,
        # Length of the pause, after which one message is tried.
        "breaker_pause_s": int,
        # Threads of each member. null: the client decides
        "threads": int | None,
        # Maximum number of messages in one call of a handler. null: the client decides
        "handler_batch": int | None,
        # Maximum number of messages that one poll returns. null: the client decides
        "max_poll_records": int | None,
        # Maximum time that a fetch waits for a message. null: the client decides
        "fetch_max_wait_ms": int | None,
        # Share of the messages of which is recorded which member handled them, when and for
        # how long. Kept for 3 days, at most 10,000 attempts of a group; 0: none.
        "trace_percent": int,
        # it started at what was stored then or later; null: `start` says it
        "start_at_ms": int | None,
    },
)

# The handler call of a process that runs for the longest time, and the first message of it.
SlowHandler = TypedDict(
    "SlowHandler",
    {
        # id of the queue
        "queue": int,
        # offset of a message in its queue
        "offset": int,
        # for how long it ran when the process reported it
        "running_ms": int,
    },
)

# Report of a member's process about itself.
ProcessReport = TypedDict(
    "ProcessReport",
    {
        # threads for handlers
        "threads": int,
        # threads in which a handler is at work
        "busy": int,
        # messages in memory that no handler has begun
        "buffered": int,
        # bytes of their bodies
        "buffered_bytes": int,
        # messages handled since the process started
        "handled": int,
        # attempts that failed since then
        "failed": int,
        # null while no handler is at work
        "slowest": SlowHandler | None,
    },
)

# A member of a group.
Member = TypedDict(
    "Member",
    {
        "name": str,
        # name under which a member keeps its queues over a quick restart
        "instance_id": str | None,
        # beginning of the consumer id, as in logs; not valid as an id
        "consumer_id_prefix": str,
        # address that the member registered from
        "address": str,
        # name and version of the client
        "sdk": str,
        # generation that it has applied
        "generation": int,
        # time of the registration, ms since 1970 UTC
        "joined_at_ms": int,
        # time since the last heartbeat
        "heartbeat_age_ms": int | None,
        "queues": list[int],
        # false: it stands by because of the group's limits
        "active": bool,
        # null: its client reports nothing
        "process": NotRequired[ProcessReport | None],
        # time since that report
        "process_age_ms": NotRequired[int | None],
    },
)

# A group.
Group = TypedDict(
    "Group",
    {
        "name": str,
        # clustering: members share the queues; broadcasting: each reads all
        "mode": str,
        # The topic is not delivered to the group.
        "stopped": bool,
        # number of the group's assignment; it rises with each change
        "generation": int,
        # time when it was created, ms since 1970 UTC
        "created_at_ms": int,
        # Time without a heartbeat after which a member loses its queues.
        "session_timeout_ms": int,
        # Unread messages in one topic that raise an alarm. null: the server's default
        "alarm_lag": int | None,
        # Age of the oldest unread message in one topic that raises an alarm. null: the
        # server's default
        "alarm_lag_s": int | None,
        # In share groups: time after which messages that a member neither finished nor
        # renewed are delivered to another one.
        "lease_ms": NotRequired[int],
        # In share groups: maximum number of messages that are leased together.
        "run_messages": NotRequired[int],
        # In share groups: deliveries of a message after which it becomes a dead letter; 0:
        # no limit.
        "max_deliveries": NotRequired[int],
        # Members that may own queues at the same time. Further members stand by. null: no
        # limit
        "max_active_members": int | None,
        # Addresses or networks whose members may own queues, such as 10.0.0.0/8, separated
        # by commas. empty: all
        "allow_addresses": str,
        # Addresses or networks whose members may not own queues, separated by commas. They
        # take precedence over allowed addresses. empty: none
        "deny_addresses": str,
        # Names of the users who may manage it, separated by commas.
        "owners": str,
        # Department
        "department": str,
        # Addresses that receive its alarms, separated by commas.
        "alarm_emails": str,
        # Description
        "description": str,
        # a new assignment is due
        "rebalancing": bool,
        # subscriptions, or settings of the subscriptions by topic
        "subscriptions": list[Subscription],
        # members of the group
        "members": list[Member],
    },
)

# The committed offset of a group or instance in a queue; lag = log end offset (`head`) -
# committed.
QueueLag = TypedDict(
    "QueueLag",
    {
        # name of the topic
        "topic": str,
        # id of the queue
        "queue": int,
        # number of the queue within its topic, from 0
        "number": int,
        # committed offset: the first that is not handled
        "committed": int | None,
        # log end offset: the offset of the next message
        "head": int | None,
        # log start offset: earlier messages are past retention
        "low": int | None,
        # unread messages
        "lag": int | None,
        # member that owns the queue
        "owner": str | None,
        # epoch of an ownership, or of a node; calls with an earlier one are refused
        "epoch": int,
        # runs of offsets, if receipts were not asked for
        "runs": int | None,
        # messages that are leased
        "in_flight": NotRequired[int | None],
        # messages that are leased for the second time or more
        "redelivered": NotRequired[int | None],
        # null unless the group is broadcasting
        "instance": str | None,
        # age of the oldest unread message, ms
        "lag_ms": int | None,
        # null unless messages are leased in a share group
        "oldest_lease_ms": NotRequired[int | None],
    },
)

# A run: offsets `first` to `end` (not included), `messages` of which are not finished.
# `owner` is the name of the member, null for nobody; `lease_left_ms` is negative when the
# lease is over.
LeasedRun = TypedDict(
    "LeasedRun",
    {
        # name of the topic
        "topic": str,
        # id of the queue
        "queue": int,
        # number of the queue within its topic, from 0
        "number": int,
        # first offset of the run
        "first": int,
        # offset behind the last one of the run
        "end": int,
        # member that owns the queue
        "owner": str | None,
        # how often the run was leased; leases that count for nothing are left out
        "deliveries": int,
        # number of messages
        "messages": int,
        # ranges of offsets that are finished, or how many messages are
        "finished": int,
        # time until the lease ends; negative when it has
        "lease_left_ms": int,
    },
)

# Runs by queue and offset; `away` names the nodes that did not answer.
Leases = TypedDict(
    "Leases",
    {
        # runs of offsets, if receipts were not asked for
        "runs": list[LeasedRun],
        # nodes that did not answer, so what they hold is missing here
        "away": list[str],
    },
)

# The trend of a group in the topics where it is not paused; rates are of the last minute or
# two.  A message counts as handled when a commit moves the position of the group, or of one
# instance, past it.
Progress = TypedDict(
    "Progress",
    {
        "state": Literal[
            "unknown",
            "paused",
            "no_members",
            "nothing_sent",
            "keeps_up",
            "too_little_data",
            "stalled",
            "steady",
            "catches_up",
            "falls_behind",
        ],
        # messages per second by which the lag grows or shrinks; null: neither
        "per_s": float | None,
        # seconds until the lag is 0; null unless state is catches_up
        "catches_up_in_s": float | None,
        # messages sent to the topics of the group
        "sent_per_s": float,
        # pulled messages, including repeated ones
        "pulled_per_s": float,
        # handled messages; null if not counted
        "handled_per_s": float | None,
        # unread messages
        "lag": int | None,
        # unread messages `between_s` ago
        "lag_before": int | None,
        # at most about 600
        "between_s": float,
    },
)

# The offsets of a group; `lag` is the sum, `lag_ms` the maximum.
GroupLag = TypedDict(
    "GroupLag",
    {
        # name of the group
        "group": str,
        # unread messages
        "lag": int | None,
        # age of the oldest unread message
        "lag_ms": int | None,
        # whether the group catches up with its topics
        "progress": NotRequired[Progress | None],
        "queues": list[QueueLag],
    },
)

# A committed offset that moves. A move forward skips messages, a move backward repeats
# them.
Move = TypedDict(
    "Move",
    {
        # name of the topic
        "topic": str,
        # id of the queue
        "queue": int,
        # number of the queue within its topic, from 0
        "number": int,
        # messages that are left out
        "skipped": int,
        # handled messages that will be delivered again
        "repeated": int,
        # true: not moved, as `source_group` has no offset in this queue
        "kept": bool,
        # requested offset, if the queue has only the nearest one (`to`)
        "asked": int | None,
        # offset or queue before
        "from": int,
        # offset, queue or position after
        "to": int,
    },
)

# Offsets that a reset moved, or with `dry_run` would move.
Moves = TypedDict(
    "Moves",
    {
        # true: only show what would change
        "dry_run": bool,
        # id for undoing it; null: nothing moved
        "reset": str | None,
        # what moves
        "moves": list[Move],
    },
)

# A queue that moves from one member to another (null: none).
PlannedMove = TypedDict(
    "PlannedMove",
    {
        # id of the queue
        "queue": int,
        # name of the topic
        "topic": str,
        # offset or queue before
        "from": str | None,
        # offset, queue or position after
        "to": str | None,
        # no member must release it first
        "at_once": bool,
    },
)

# A queue that moved from one member to another (null: none), and its pause.
PastMove = TypedDict(
    "PastMove",
    {
        # id of the queue
        "queue": int,
        # name of the topic
        "topic": str,
        # offset or queue before
        "from": str | None,
        # offset, queue or position after
        "to": str | None,
        # null while the pause lasts, or if the queue moved again before it ended
        "pause_ms": int | None,
    },
)

# Moves that a rebalance made, or with `dry_run` would make.
Plan = TypedDict(
    "Plan",
    {
        # true: only show what would change
        "dry_run": bool,
        # number of the group's assignment; it rises with each change
        "generation": int,
        # what moves
        "moves": list[PlannedMove],
    },
)

# A rebalance of the past; `assignment` maps members to the queues meant for them.
Rebalance = TypedDict(
    "Rebalance",
    {
        "id": int,
        # number of the group's assignment; it rises with each change
        "generation": int,
        "cause": str,
        # time, ms since 1970 UTC
        "at_ms": int,
        # member of each queue
        "assignment": dict[str, list[int]],
        # what moves
        "moves": list[PastMove],
    },
)

# A queue. Readable are the offsets from `low` (log start) to `head` - 1 (log end), without
# gaps.
PlannedQueue = TypedDict(
    "PlannedQueue",
    {
        # id of the queue
        "queue": int,
        # its number within the topic
        "number": int,
        # name of the node
        "node": str,
        # table of the queue's messages
        "table": str,
        # log start offset: earlier messages are past retention
        "low": int,
        # durable log end offset
        "head": int,
        # lost offsets: from, to (excluded)
        "gaps": list[list[int]],
    },
)

# A node; user name and password are empty without a reader account, or without `admin` on
# `*`.
PlannedNode = TypedDict(
    "PlannedNode",
    {
        "name": str,
        # mysql (also MariaDB) or sqlite
        "engine": str,
        # host of the database server
        "host": str,
        # port of the database server
        "port": int,
        # the schema on mysql, the file's path on sqlite
        "database": str,
        # identity of the node's data
        "identity": str,
        # oldest release of CatMQ whose jobs can read its tables; empty: any
        "min_release": str,
        # name of the account
        "username": str,
        # password of the account
        "password": str,
        # Encryption of connections to the node and its replica. A change is tried before it
        # is saved.
        "tls": str,
        # Certificates that verify accepts, in PEM, at the same path on all brokers.
        "tls_ca": str,
    },
)

# Queues and nodes of a topic's messages.
ReadPlan = TypedDict(
    "ReadPlan",
    {
        # name of the topic
        "topic": str,
        "queues": list[PlannedQueue],
        "nodes": list[PlannedNode],
    },
)

# An attempt at a message that was in the sample of a group.
Trace = TypedDict(
    "Trace",
    {
        # name of the group
        "group": str,
        # name of the member, or its instance
        "member": str,
        # failed attempts before this one
        "attempt": int,
        # handled, failed, or delivered if nothing else is known
        "outcome": str,
        # time when it began, ms since 1970 UTC
        "at_ms": int,
        # how long it took; null if that is not known
        "took_ms": int | None,
    },
)

# A producer of a topic: an API key at an address, with a client.
TopicProducer = TypedDict(
    "TopicProducer",
    {
        # name of the API key; java for Java clients without one
        "name": str,
        # address it sent from; of a Java client, the one that it gives itself
        "address": str,
        # name and version of the client, by its User-Agent
        "sdk": str,
        # time of its first message, ms since 1970 UTC
        "first_seen_at_ms": int,
        # time of its last message, to about 20 s, ms since 1970 UTC
        "last_seen_at_ms": int,
        # estimated number of messages that it sent in the last hour
        "messages_last_hour": int,
    },
)

# A queue, and the state of its key index.
QueueIndex = TypedDict(
    "QueueIndex",
    {
        # id of the queue
        "queue": int,
        # its number within the topic
        "number": int,
        # name of the node
        "node": str,
        # `ready`: searches use it; `changing`: it is built or dropped, or a run that did so
        # was interrupted; `none`
        "key_index": str,
    },
)

# The key index of a topic: its setting, and the state of each queue.
KeyIndex = TypedDict(
    "KeyIndex",
    {
        # name of the topic
        "topic": str,
        # the setting key_index
        "wanted": bool,
        "queues": list[QueueIndex],
    },
)

# Topics, groups and subscriptions; settings that are missing have their defaults.
Definitions = TypedDict(
    "Definitions",
    {
        # version of the document, 1
        "version": int,
        "topics": list[dict[str, Any]],
        "groups": list[dict[str, Any]],
        # subscriptions, or settings of the subscriptions by topic
        "subscriptions": list[dict[str, Any]],
    },
)

# A field that has another value in the document.
Difference = TypedDict(
    "Difference",
    {
        # path of a field, such as messages[3].key
        "field": str,
        # value in this installation
        "here": Any,
        # value in the document
        "there": Any,
    },
)

# An entry of the document.
ImportStep = TypedDict(
    "ImportStep",
    {
        # where it stands in the document, such as topics[3]
        "place": str,
        # topic, group or subscription
        "kind": str,
        # name; of a subscription group/topic
        "name": str,
        # create, change, same, keep, conflict or unfinished
        "outcome": str,
        # why it is a conflict or unfinished
        "problem": str,
        # settings that differ from those there are
        "differences": list[Difference],
    },
)

# Steps of an import, done or with `dry_run` planned.
Imported = TypedDict(
    "Imported",
    {
        # true: only show what would change
        "dry_run": bool,
        # entries of the document, in the order in which they are made
        "steps": list[ImportStep],
    },
)

# A dead letter; `topic`, `queue` and `offset` are those of the original message.
DeadLetter = TypedDict(
    "DeadLetter",
    {
        # name of the topic
        "topic": str,
        # id of the queue
        "queue": int,
        # offset of a message in its queue
        "offset": int,
        # key; messages with the same key go to the same queue, in order
        "key": str | None,
        # tag, by which subscriptions filter
        "tag": str | None,
        # the last error
        "error": str,
        # time of the first failure, ms since 1970 UTC
        "first_failed_at_ms": int,
        # size of the body in bytes
        "size": int,
        "id": str,
        # id that finds the message again in the traces of applications
        "trace_id": str | None,
        # number of failures
        "attempts": int,
        # kind of its last error, the text before the first colon
        "error_class": str,
        # time when it became a dead letter, ms since 1970 UTC
        "died_at_ms": int,
    },
)

# Number of a topic's dead letters with one kind of error.
DeadLetterCount = TypedDict(
    "DeadLetterCount",
    {
        # name of the topic
        "topic": str,
        # class of the error
        "error_class": str,
        # how many
        "count": int,
        # time of the first one, ms since 1970 UTC
        "first_at_ms": int,
        # time of the last one, ms since 1970 UTC
        "last_at_ms": int,
    },
)

# Counts by topic and kind of error, the largest first.
DeadLetterSummary = TypedDict(
    "DeadLetterSummary",
    {
        # how many
        "count": int,
        # details: wrong fields, or counts by error
        "errors": list[DeadLetterCount],
        # nodes that did not answer, so what they hold is missing here
        "away": list[str],
    },
)

# A redrive (running, done, stopped, failed). `skipped`: left as dead letters. `detail`:
# pause reason.
Redrive = TypedDict(
    "Redrive",
    {
        "id": int,
        # name of the group
        "group": str,
        # offset, queue or position after
        "to": str,
        # most messages a second
        "rate": int,
        "state": str,
        # messages that were sent again
        "redriven": int,
        # messages that are left out
        "skipped": int,
        # explanation for people
        "detail": str,
        # who asked for it
        "asked_by": str,
        # time when it was created, ms since 1970 UTC
        "created_at_ms": int,
        # time when it ended, ms since 1970 UTC; null while it runs
        "finished_at_ms": int | None,
        # name of the topic
        "topic": str | None,
        # the error
        "error": str | None,
        # dead letters that matched at the time of the request
        "total": int,
    },
)

# A message that is waiting for a retry; `topic`, `queue` and `offset` are those of the
# original.
RetryMessage = TypedDict(
    "RetryMessage",
    {
        # name of the topic
        "topic": str,
        # id of the queue
        "queue": int,
        # offset of a message in its queue
        "offset": int,
        # key; messages with the same key go to the same queue, in order
        "key": str | None,
        # tag, by which subscriptions filter
        "tag": str | None,
        # the error
        "error": str,
        # time of the first failure, ms since 1970 UTC
        "first_failed_at_ms": int,
        # size of the body in bytes
        "size": int,
        # number of the retry
        "attempt": int,
        # time when it is delivered, ms since 1970 UTC
        "due_at_ms": int,
    },
)

# Number of a topic's retries that are not due yet, and of those that are due and unread.
RetryCount = TypedDict(
    "RetryCount",
    {
        # name of the topic
        "topic": str,
        # retry topic of the group
        "failure_topic": str,
        # messages that wait for their time
        "waiting": int,
        # unread messages
        "unread": int,
    },
)

# Messages that are waiting for a retry.
Retries = TypedDict(
    "Retries",
    {
        "topics": list[RetryCount],
        "messages": list[RetryMessage],
        # nodes that did not answer, so what they hold is missing here
        "away": list[str],
    },
)

# A fault, why it matters and what to do.
DoctorFinding = TypedDict(
    "DoctorFinding",
    {
        # `warning`, or `error`: something does not work
        "severity": str,
        # name of the fault, which keeps its meaning in later releases
        "key": str,
        # node, metadata, broker, job, key, alarm, topic or doctor
        "kind": str,
        # name of the object; empty for the whole installation
        "name": str,
        # what is wrong
        "cause": str,
        # why it matters
        "why": str,
        # what to do
        "remedy": str,
    },
)

# Faults of the installation, errors first.
DoctorReport = TypedDict(
    "DoctorReport",
    {
        # 0: no findings; 1: only warnings; 2: errors
        "exit_code": int,
        # number of checks that were made
        "checks": int,
        # findings; an empty list is a good result
        "findings": list[DoctorFinding],
    },
)
