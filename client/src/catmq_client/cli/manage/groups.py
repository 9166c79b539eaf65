"""catmq group, catmq subscribe, catmq unsubscribe"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from catmq_client.admin.api import Admin
from catmq_client.admin.calls import PAGE
from catmq_client.admin.shapes import Group, Rebalance, SlowHandler, Subscription
from catmq_client.cli.arguments import Target, argument_error, parse_target
from catmq_client.cli.connection import Brokers, Command
from catmq_client.cli.declared import options
from catmq_client.cli.forms import Paint, is_table
from catmq_client.cli.output import (
    Columns,
    duration_column,
    field_columns,
    format_duration,
    format_facts,
    format_rows,
    format_time,
    note,
    print_rows,
    time_column,
)
from catmq_client.cli.verbs import (
    CHANGED,
    DRY_RUN,
    GROUP,
    NAME,
    QUEUES,
    TABLE,
    TOPIC,
    Argument,
    Noun,
    Verb,
    action,
    detail,
    limit,
    listing,
    present_options,
    search,
    settings,
    show_row,
)
from catmq_client.cli.wait import WAIT, wait_until_done
from catmq_client.errors import NotFound

STARTS = (
    "earliest, latest, a TIME like 2026-03-01T12:00, or a time ago like -15m (s, m, h, d)"
)


def start_position(text: str) -> Target:
    """Return a position where a subscription may start: any but an offset."""
    with suppress(argparse.ArgumentTypeError):
        target = parse_target(text)
        # An offset would mean an unrelated message in each queue of the topic.
        if target.to != "offset":
            return target
    raise argument_error(f"{text!r}: give {STARTS}")


MODE = Argument(
    "--mode",
    "members share the queues (clustering, the default), each instance reads all (broadcasting), "
    "or members lease messages of any queue (share)",
    choices=("clustering", "broadcasting", "share"),
)
SETTINGS = options("group")
ONLY_TOPIC = Argument("--topic TOPIC", "only this topic")
START = Argument(
    "--from POSITION",
    f"where to start: {STARTS} (default earliest)",
    dest="start",
    type=start_position,
    default=Target("earliest"),
)

LIST: Columns = {
    **field_columns("name mode stopped"),
    "SESSION TIMEOUT": duration_column("session_timeout_ms"),
    "CREATED": time_column("created_at_ms"),
}
FACTS: Columns = {
    **field_columns("name mode stopped"),
    "session timeout": duration_column("session_timeout_ms"),
    "allowed addresses": lambda group: group.get("allow_addresses") or "all",
    "denied addresses": "deny_addresses",
    "active members": lambda group: (
        "all"
        if group.get("max_active_members") is None
        else f"at most {group['max_active_members']}"
    ),
    **field_columns("description generation"),
    "created": time_column("created_at_ms"),
}
SHARE_FACTS: Columns = {
    "lease": duration_column("lease_ms"),
    "messages of a lease": "run_messages",
    "maximum deliveries": lambda group: group.get("max_deliveries") or "no limit",
}
SUBSCRIPTIONS: Columns = {
    **field_columns("topic state"),
    # A lambda, because the function is defined below.
    "FROM": lambda row: describe_start(row),
    "STOPPED": "stopped",
    "STOPPED QUEUES": lambda row: join_ids(row.get("stopped_queues", ())),
}
MEMBERS: Columns = {
    "MEMBER": "name",
    **field_columns("address sdk"),
    "JOINED": time_column("joined_at_ms"),
    "LAST HEARD": duration_column("heartbeat_age_ms"),
    "ACTIVE": "active",
    "QUEUES": lambda row: join_ids(row["queues"]),
}
PROCESSES: Columns = {
    "MEMBER": "name",
    "THREADS": lambda row: f"{row['process']['busy']} of {row['process']['threads']}",
    "BUFFERED": lambda row: row["process"]["buffered"],
    "BUFFERED BYTES": lambda row: row["process"]["buffered_bytes"],
    "HANDLED": lambda row: row["process"]["handled"],
    "FAILED": lambda row: row["process"]["failed"],
    "SLOWEST HANDLER": lambda row: describe_slowest(row["process"]["slowest"]),
    "REPORTED": duration_column("process_age_ms"),
}
MOVE_COLUMNS: Columns = field_columns("topic queue from to at_once")
REBALANCES: Columns = {
    "TIME": time_column("at_ms"),
    **field_columns("generation cause"),
    "MOVES": lambda row: len(row["moves"]),
    "LONGEST PAUSE": lambda row: format_duration(longest_pause(row)),
}


def describe_start(subscription: Subscription) -> str:
    """Return where a subscription started: `earliest`, `latest`, or a time."""
    return format_time(subscription.get("start_at_ms")) or subscription["start"]


def subscribe_group(admin: Admin, args: argparse.Namespace) -> dict[str, Any]:
    """Subscribe a group. Return the answer, with the start as text."""
    start: Target = args.start
    subscription = admin.subscribe(
        args.group,
        args.topic,
        start="latest" if start.to == "latest" else "earliest",
        start_at_ms=start.at_ms,
        start_ago_ms=start.ago_ms,
    )
    return {**subscription, "from": describe_start(subscription)}


def join_ids(queues: Iterable[int]) -> str:
    """Return ids of queues as the text of a cell."""
    return " ".join(map(str, queues))


def describe_slowest(handler: SlowHandler | None) -> str:
    """Return the message of the slowest handler of a process, and how long it has run."""
    if handler is None:
        return ""
    return f"{handler['queue']}-{handler['offset']} for {format_duration(handler['running_ms'])}"


def members_page(group: Group, colours: Paint) -> str:
    """Return the output of `catmq group members`: members, and reports of their processes."""
    processes = [member for member in group["members"] if member.get("process")]
    parts = [format_rows(group["members"], MEMBERS, colours)]
    if processes:
        parts.append(format_rows(processes, PROCESSES, colours))
    return "\n".join(parts)


def longest_pause(row: Rebalance) -> int | None:
    """Return the longest pause of a queue in ms, None if none paused or all still do."""
    return max(
        (move["pause_ms"] for move in row["moves"] if move["pause_ms"] is not None),
        default=None,
    )


def group_page(group: Group, colours: Paint) -> str:
    """Return the output of `catmq group show`."""
    parts = (
        format_facts(
            group, {**FACTS, **(SHARE_FACTS if group["mode"] == "share" else {})}, colours
        ),
        format_rows(group["subscriptions"], SUBSCRIPTIONS, colours),
        members_page(group, colours),
    )
    return "\n".join(parts)


def create_group(admin: Admin, args: argparse.Namespace) -> Group:
    return admin.create_group(args.name, mode=args.mode, **present_options(args, SETTINGS))


def switch_command(*, stopped: bool) -> Command:
    """Return the command that pauses or resumes delivery.

    It acts on a whole group, on a topic of it (--topic), or on queues (--queue).
    """

    def run(args: argparse.Namespace, brokers: Brokers) -> int:
        admin = brokers.admin()
        if args.queue:
            for topic, queues in queues_by_topic(args, admin).items():
                show_row(
                    switch_queues(admin, args.name, topic, queues, stopped=stopped),
                    args.output,
                )
            return 0
        scope = option = ""
        if args.topic:
            changed: Any = admin.change_subscription(args.name, args.topic, stopped=stopped)
            scope, option = f": topic {args.topic}", f" --topic {args.topic}"
        else:
            changed = admin.change_group(args.name, stopped=stopped)
        done = (
            f"paused; resume it: catmq group resume {args.name}{option}"
            if stopped
            else "resumed"
        )
        note(f"group {args.name}{scope} {done}")
        show_row(changed, args.output)
        return 0

    return run


def queues_by_topic(args: argparse.Namespace, admin: Admin) -> dict[str, set[int]]:
    """Return the queues of `--queue` by topic.

    Raises NotFound if the group does not read a queue.
    """
    if args.topic:
        return {args.topic: set(args.queue)}
    # Queue ids are unique in an installation, so --queue alone determines the topic.
    topics = {row["queue"]: row["topic"] for row in admin.lag(args.name)["queues"]}
    queues: dict[str, set[int]] = {}
    for queue in args.queue:
        if queue not in topics:
            readable = ", ".join(map(str, sorted(topics))) or "none"
            raise NotFound(
                f"queue {queue} is not read by group {args.name}; it reads {readable}"
            )
        queues.setdefault(topics[queue], set()).add(queue)
    return queues


def switch_queues(
    admin: Admin, group: str, topic: str, queues: set[int], *, stopped: bool
) -> Any:
    """Pause or resume queues of a topic. Return the subscription afterwards.

    The other queues keep their state.
    """
    before = subscription = admin.subscription(group, topic)
    stopped_before = set(before["stopped_queues"])
    stopped_after = stopped_before | queues if stopped else stopped_before - queues
    # The API replaces the whole list, so it is written only if it changes.
    if stopped_after != stopped_before:
        subscription = admin.change_subscription(
            group, topic, stopped_queues=sorted(stopped_after)
        )
    for queue in sorted(queues):
        if stopped:
            done = "was already paused" if queue in stopped_before else "paused"
        else:
            done = "resumed" if queue in stopped_before else "was not paused"
        note(f"group {group}: queue {queue} of {topic} {done}")
    if before["stopped"] and not stopped:
        note(
            f"all of {topic} is also paused; resume it: catmq group resume {group} --topic {topic}"
        )
    return subscription


def rebalance_group(args: argparse.Namespace, brokers: Brokers) -> int:
    """Rebalance a group. With `--wait`, return when the new owners read."""
    admin = brokers.admin()
    plan: Any = admin.rebalance(args.name, dry_run=args.dry_run)
    common_fields = {
        "group": args.name,
        "dry_run": plan["dry_run"],
        "generation": plan["generation"],
    }
    print_rows(
        ({**common_fields, **move} for move in plan["moves"]), MOVE_COLUMNS, args.output
    )
    if is_table(args.output):
        summary = f"{len(plan['moves'])} queues moved; generation {plan['generation']}"
        note("nothing moved (--dry-run)" if args.dry_run else summary)
    # Without moves there is no new owner to wait for.
    if args.wait and not args.dry_run and plan["moves"]:
        continues = "the queues move all the same"
        return (
            0
            if wait_until_done(
                lambda: describe_moving(admin, args.name, plan["generation"]),
                continues=continues,
            )
            else 1
        )
    return 0


def describe_moving(admin: Admin, group: str, generation: int) -> str:
    """Return how many queues of a rebalance still pause, '' if none does.

    A later rebalance ends the wait.
    """
    newest = next(iter(admin.rebalances(group, page=1)), None)
    # A later rebalance has its own moves, so the wait for this rebalance is over.
    if newest is None or newest["generation"] != generation:
        return ""
    paused = sum(
        move["pause_ms"] is None and move["to"] is not None for move in newest["moves"]
    )
    return (
        f"{paused} of {len(newest['moves'])} queues wait for their new member"
        if paused
        else ""
    )


NOUN = Noun(
    "group",
    "create, list, show, change, pause, resume, rebalance, delete groups",
    (
        action(
            "create",
            "create a group",
            (NAME, MODE, *SETTINGS),
            create_group,
            done="group {name} created; let it read a topic: catmq subscribe {name} TOPIC",
        ),
        listing(
            "list",
            "list groups",
            (search("groups"),),
            lambda admin, args: admin.groups(search=args.search),
            columns=LIST,
        ),
        detail(
            "show",
            "show a group with its subscriptions and members",
            (NAME,),
            lambda admin, args: admin.group(args.name),
            page=group_page,
        ),
        detail(
            "members",
            "show the members of a group, and what their processes do",
            (NAME,),
            lambda admin, args: admin.group(args.name),
            page=members_page,
        ),
        action(
            "delete",
            "delete a group and its offsets",
            (NAME,),
            lambda admin, args: admin.delete_group(args.name),
            done="group {name} deleted",
            asks="group",
        ),
        settings(
            "change a group's settings",
            (NAME,),
            SETTINGS,
            lambda admin, args, given: admin.change_group(args.name, **given),
            label="group {name}",
        ),
        Verb(
            "pause",
            "pause delivery to a group, of all topics, one topic or some queues",
            (NAME, ONLY_TOPIC, QUEUES, CHANGED),
            switch_command(stopped=True),
            old="stop",
        ),
        Verb(
            "resume",
            "resume paused delivery",
            (NAME, ONLY_TOPIC, QUEUES, CHANGED),
            switch_command(stopped=False),
            old="start",
        ),
        Verb(
            "rebalance",
            "rebalance a group's queues now",
            (NAME, DRY_RUN, WAIT, TABLE),
            rebalance_group,
        ),
        listing(
            "rebalances",
            "list rebalances of a group, newest first",
            (NAME, limit(20)),
            lambda admin, args: admin.rebalances(args.name, page=min(args.limit, PAGE)),
            columns=REBALANCES,
        ),
    ),
)
SUBSCRIBE = action(
    "subscribe",
    "subscribe a group to a topic",
    (GROUP, TOPIC, START),
    subscribe_group,
    done="group {answer[group]} reads {answer[topic]} from {answer[from]}",
)
UNSUBSCRIBE = action(
    "unsubscribe",
    "end a subscription and delete its offsets",
    (GROUP, TOPIC),
    lambda admin, args: admin.unsubscribe(args.group, args.topic),
    done="group {group} no longer reads {topic}",
    asks="the subscription of group {group} to topic",
)
